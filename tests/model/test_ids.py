"""Ids: well-formed, distinct by kind, and drawn from the randomness passed in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import ids
from penstock.model.errors.settings import NameInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

PARSERS = [
    pytest.param(ids.physical_cluster_id, "pkc-7hq2mz", id="physical cluster"),
    pytest.param(ids.logical_cluster_id, "lkc-7hq2mz", id="logical cluster"),
    pytest.param(ids.service_account_id, "sa-7hq2mz", id="service account"),
]


@pytest.mark.parametrize(("parse", "example"), PARSERS)
def test_a_well_formed_id_is_accepted(parse: Callable[[str], str], example: str) -> None:
    assert parse(example) == example


@pytest.mark.parametrize(
    "spoil", [str.upper, lambda i: i + "a", lambda i: i[:-1], lambda i: i[:-1] + "l", lambda i: i + "\n"]
)
@pytest.mark.parametrize(("parse", "example"), PARSERS)
def test_a_malformed_id_is_refused_with_its_value(
    parse: Callable[[str], str], example: str, spoil: Callable[[str], str]
) -> None:
    spoilt = spoil(example)

    with pytest.raises(NameInvalid) as refusal:
        parse(spoilt)

    assert refusal.value.facts["value"] == spoilt


def test_an_id_of_another_kind_is_refused() -> None:
    with pytest.raises(NameInvalid):
        ids.logical_cluster_id("pkc-7hq2mz")


@given(st.integers())
def test_new_ids_are_well_formed_and_follow_the_seed(seed: int) -> None:
    first, second = random.Random(seed), random.Random(seed)

    created = (
        ids.new_physical_cluster_id(first.choice),
        ids.new_logical_cluster_id(first.choice),
        ids.new_service_account_id(first.choice),
    )

    assert created == (
        ids.physical_cluster_id(ids.new_physical_cluster_id(second.choice)),
        ids.logical_cluster_id(ids.new_logical_cluster_id(second.choice)),
        ids.service_account_id(ids.new_service_account_id(second.choice)),
    )


def test_a_service_accounts_kafka_user_has_its_tenants_prefix() -> None:
    tenant = ids.logical_cluster_id("lkc-7hq2mz")

    user = ids.kafka_user(tenant, ids.service_account_id("sa-000000"))

    assert user == "lkc-7hq2mz_sa-000000"
    assert user.startswith(ids.tenant_prefix(tenant))
