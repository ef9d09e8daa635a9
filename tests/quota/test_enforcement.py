"""The limits that a gateway enforces, with and without published shares."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.events import Dimension, QuotaShares
from penstock.model.ids import LogicalClusterId
from penstock.quota.enforcement import enforced_limits

INGRESS = Dimension.INGRESS_BYTES
QUOTA = {INGRESS: 300.0}
NOW = 1_000_000


def published(limits: dict[str, float], **more: Any) -> QuotaShares:
    split = {gateway: {str(INGRESS): limit} for gateway, limit in limits.items()}
    values: dict[str, Any] = {"time_ms": NOW, "valid_ms": 60_000, "quota": {str(INGRESS): 300.0}} | more
    return QuotaShares(
        tenant=LogicalClusterId("lkc-aaaaaa"), epoch=1, sequence=1, shares=split, limits=split, **values
    )


def test_a_published_limit_is_enforced() -> None:
    assert enforced_limits(QUOTA, published({"a": 250.0, "b": 50.0}), "a", NOW, 1) == {INGRESS: 250.0}


def test_a_published_limit_is_enforced_until_it_expires_then_the_even_split() -> None:
    shares = published({"a": 250.0, "b": 50.0})

    assert enforced_limits(QUOTA, shares, "a", NOW + 60_000, 1) == {INGRESS: 250.0}
    assert enforced_limits(QUOTA, shares, "a", NOW + 60_001, 1) == {INGRESS: 150.0}


def test_without_shares_the_configured_number_of_gateways_splits_the_quota() -> None:
    assert enforced_limits(QUOTA, None, "a", NOW, 3) == {INGRESS: 100.0}


def test_a_gateway_with_new_traffic_takes_an_even_split_until_it_has_a_share() -> None:
    assert enforced_limits(QUOTA, published({"a": 200.0, "b": 100.0}), "c", NOW, 1) == {INGRESS: 100.0}


def test_a_changed_quota_applies_before_the_coordinator_knows_it() -> None:
    assert enforced_limits({INGRESS: 30.0}, published({"a": 250.0, "b": 50.0}), "a", NOW, 1) == {
        INGRESS: 25.0
    }


def test_a_dimension_without_published_limits_is_split_evenly() -> None:
    both = {INGRESS: 300.0, Dimension.REQUESTS: 10.0}

    assert enforced_limits(both, published({"a": 250.0, "b": 50.0}), "a", NOW, 1)[Dimension.REQUESTS] == 5.0


@given(
    st.floats(0.1, 1e9),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e9), max_size=3),
    st.integers(0, 200_000),
)
def test_no_gateway_ever_enforces_more_than_the_whole_quota(
    quota: float, limits: dict[str, float], later: int
) -> None:
    assert enforced_limits({INGRESS: quota}, published(limits), "a", NOW + later, 1)[INGRESS] <= quota
