"""The server side of SCRAM against the client side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.metadata_image import ScramCredential
from penstock.kafka.scram import HASHES, Exchange, check_final, final_message, first_message, keys_of
from penstock.shadow.login import LoginRejected, challenge, verify

MECHANISM = "SCRAM-SHA-512"


def credential(password: str, mechanism: str = MECHANISM) -> ScramCredential:
    keys = keys_of(HASHES[mechanism], password, b"salt", 4096)
    return ScramCredential(b"salt", keys.stored, keys.server, 4096)


@pytest.mark.parametrize("mechanism", HASHES)
def test_both_sides_authenticate_each_other(mechanism: str) -> None:
    exchange = Exchange(HASHES[mechanism], "a,b=c", "secret", "client")
    known = {("a,b=c", mechanism): credential("secret", mechanism)}
    sent = challenge(mechanism, first_message(exchange), "server", known)
    proof = final_message(exchange, sent.message)
    check_final(proof, verify(sent, proof.message))
    assert sent.user == "a,b=c"


@pytest.mark.parametrize("user", ["node", "unknown"])
def test_a_wrong_password_and_an_unknown_user_fail_alike(user: str) -> None:
    exchange = Exchange("sha512", user, "wrong", "client")
    sent = challenge(MECHANISM, first_message(exchange), "server", {("node", MECHANISM): credential("right")})
    proof = final_message(exchange, sent.message)
    with pytest.raises(LoginRejected, match="authentication failed"):
        verify(sent, proof.message)


@given(st.binary(max_size=200))
def test_other_bytes_are_rejected(message: bytes) -> None:
    known = {("node", MECHANISM): credential("right")}
    with pytest.raises(LoginRejected):
        verify(challenge(MECHANISM, b"n,,n=node,r=abc", "server", known), message)


@pytest.mark.parametrize("message", [b"", b"n,,r=abc", b"y,,n=node,r=abc", b"\xff", b"n" * 5000])
def test_an_invalid_first_message_is_rejected(message: bytes) -> None:
    with pytest.raises(LoginRejected):
        challenge(MECHANISM, message, "server", {})


def test_an_unknown_mechanism_is_rejected() -> None:
    with pytest.raises(LoginRejected, match="PLAIN"):
        challenge("PLAIN", b"n,,n=a,r=b", "server", {})
