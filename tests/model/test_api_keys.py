"""API keys: their form, and what is kept of their secret."""

from __future__ import annotations

import hashlib
import secrets
from random import Random

from penstock.model.api_keys import API_KEY_LENGTH, API_SECRET_LENGTH, TOKEN_LENGTH, new_api_key, new_token


def test_a_key_has_the_form_that_gateways_accept() -> None:
    key = new_api_key(secrets.choice)

    assert (len(key.id), len(key.secret)) == (API_KEY_LENGTH, API_SECRET_LENGTH)
    assert key.id.isalnum()
    assert key.id == key.id.upper()
    assert key.secret.isalnum()


def test_only_the_hash_of_a_secret_is_stored_and_its_text_is_not_shown() -> None:
    key = new_api_key(secrets.choice)

    assert key.secret_sha256 == hashlib.sha256(key.secret.encode()).hexdigest()
    assert key.secret not in repr(key)


def test_randomness_comes_from_the_caller() -> None:
    assert new_api_key(Random(7).choice) == new_api_key(Random(7).choice)
    assert len(new_token(Random(7).choice)) == TOKEN_LENGTH
