"""What a gateway enforces, told and untold."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.events import Dimension, QuotaShares
from penstock.model.ids import LogicalClusterId
from penstock.quota.points import enforced

INGRESS = Dimension.INGRESS_BYTES
QUOTA = {INGRESS: 300.0}
NOW = 1_000_000


def told(limits: dict[str, float], **more: Any) -> QuotaShares:
    split = {point: {str(INGRESS): limit} for point, limit in limits.items()}
    values: dict[str, Any] = {"time_ms": NOW, "valid_ms": 60_000, "quota": {str(INGRESS): 300.0}} | more
    return QuotaShares(
        tenant=LogicalClusterId("lkc-aaaaaa"), epoch=1, sequence=1, shares=split, limits=split, **values
    )


def test_what_was_told_holds() -> None:
    assert enforced(QUOTA, told({"a": 250.0, "b": 50.0}), "a", NOW, 1) == {INGRESS: 250.0}


def test_what_was_told_holds_while_nobody_says_anything_else_and_then_the_even_split() -> None:
    shares = told({"a": 250.0, "b": 50.0})

    assert enforced(QUOTA, shares, "a", NOW + 60_000, 1) == {INGRESS: 250.0}
    assert enforced(QUOTA, shares, "a", NOW + 60_001, 1) == {INGRESS: 150.0}


def test_a_gateway_that_was_never_told_anything_goes_by_its_settings() -> None:
    assert enforced(QUOTA, None, "a", NOW, 3) == {INGRESS: 100.0}


def test_a_gateway_that_traffic_comes_to_anew_takes_an_even_part_until_it_is_told() -> None:
    assert enforced(QUOTA, told({"a": 200.0, "b": 100.0}), "c", NOW, 1) == {INGRESS: 100.0}


def test_a_changed_quota_counts_before_the_coordinator_has_heard_of_it() -> None:
    assert enforced({INGRESS: 30.0}, told({"a": 250.0, "b": 50.0}), "a", NOW, 1) == {INGRESS: 25.0}


def test_a_dimension_that_was_not_told_of_is_split_evenly() -> None:
    both = {INGRESS: 300.0, Dimension.REQUESTS: 10.0}

    assert enforced(both, told({"a": 250.0, "b": 50.0}), "a", NOW, 1)[Dimension.REQUESTS] == 5.0


@given(
    st.floats(0.1, 1e9),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e9), max_size=3),
    st.integers(0, 200_000),
)
def test_nobody_ever_enforces_more_than_the_whole_quota(
    quota: float, limits: dict[str, float], later: int
) -> None:
    assert enforced({INGRESS: quota}, told(limits), "a", NOW + later, 1)[INGRESS] <= quota
