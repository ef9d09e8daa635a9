"""Usage reports that are lost, late, repeated and out of order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.usage_reports import FALLBACK_SECONDS, Counters, SharingState, decide

QUOTA = 300.0
INTERVAL = 10.0
GATEWAYS = ("a", "b", "c")


def counters(
    gateway: str, interval: int, used: float, throttled: float = 0.0, incarnation: str = "1"
) -> Counters:
    return Counters(gateway, incarnation, interval, interval * INTERVAL, used, throttled)


def first_decision() -> SharingState:
    """Three gateways that have reported once, without use."""
    return decide(SharingState(QUOTA), [counters(gateway, 0, 0.0) for gateway in GATEWAYS], now=0.0)


def test_the_first_split_is_even() -> None:
    assert first_decision().shares == pytest.approx(dict.fromkeys(GATEWAYS, 100.0))


def test_a_tenant_at_one_gateway_gets_its_quota_there_after_one_interval() -> None:
    state = decide(
        first_decision(),
        [counters("a", 1, 1000.0, 5.0), counters("b", 1, 0.0), counters("c", 1, 0.0)],
        now=10.0,
    )

    assert state.shares["a"] >= 0.95 * QUOTA


@given(st.permutations(range(9)), st.data())
def test_order_and_repetition_of_reports_do_not_matter(order: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.floats(0, 5000), min_size=9, max_size=9))
    reports = [counters(GATEWAYS[n % 3], 1 + n // 3, sum(numbers[n % 3 : n + 1 : 3])) for n in range(9)]

    straight = decide(first_decision(), reports, now=30.0)
    shuffled = decide(first_decision(), [reports[n] for n in (*order, *order[:4])], now=30.0)

    assert shuffled == straight


def test_a_late_report_changes_nothing() -> None:
    now = [counters(gateway, 2, 500.0) for gateway in GATEWAYS]
    state = decide(first_decision(), now, now=20.0)

    after = decide(state, [counters(gateway, 3, 700.0) for gateway in GATEWAYS], now=30.0)
    with_late = decide(
        state, [counters("a", 1, 9000.0), *(counters(p, 3, 700.0) for p in GATEWAYS)], now=30.0
    )

    assert with_late == after


@given(
    losses=st.lists(
        st.sets(st.sampled_from(GATEWAYS)), min_size=1, max_size=int(FALLBACK_SECONDS / INTERVAL)
    ),
    use=st.lists(st.floats(0, 2000), min_size=18, max_size=18),
    waits=st.integers(0, 2**18 - 1),
)
def test_lost_reports_never_let_gateways_enforce_more_than_the_quota(
    losses: list[set[str]], use: list[float], waits: int
) -> None:
    """A gateway whose report was lost may not have received its share either: it keeps the old one."""
    state = first_decision()
    enforced = dict(state.shares)
    used, waited = dict.fromkeys(GATEWAYS, 0.0), dict.fromkeys(GATEWAYS, 0.0)
    for interval, lost in enumerate(losses, 1):
        for number, gateway in enumerate(GATEWAYS):
            used[gateway] += use[(3 * interval + number) % 18]
            waited[gateway] += waits >> (3 * interval + number) % 18 & 1
        reporting = [gateway for gateway in GATEWAYS if gateway not in lost]
        arrived = [counters(gateway, interval, used[gateway], waited[gateway]) for gateway in reporting]

        state = decide(state, arrived, now=interval * INTERVAL)

        enforced.update({gateway: state.shares[gateway] for gateway in reporting})
        assert sum(enforced.values()) <= QUOTA * (1 + 1e-9)


def test_a_silent_gateway_keeps_its_share_until_it_has_fallen_back() -> None:
    state = decide(
        first_decision(),
        [counters("a", 1, 1000.0, 5.0), counters("b", 1, 0.0), counters("c", 1, 0.0)],
        now=10.0,
    )
    kept = state.shares["a"]

    soon = decide(state, [counters("b", 2, 100.0, 5.0), counters("c", 2, 0.0)], now=20.0)
    later = decide(
        state, [counters("b", 8, 100.0, 5.0), counters("c", 8, 0.0)], now=10.0 + FALLBACK_SECONDS + 10
    )

    assert soon.shares["a"] == pytest.approx(kept)
    assert later.shares["a"] == pytest.approx(QUOTA / 3)


def test_the_share_of_an_expired_gateway_goes_to_the_others() -> None:
    far = 30
    state = decide(first_decision(), [counters("b", far, 0.0), counters("c", far, 0.0)], now=far * INTERVAL)

    assert set(state.shares) == {"b", "c"}
    assert sum(state.shares.values()) == pytest.approx(QUOTA)


def test_a_restarted_gateway_counts_from_zero() -> None:
    before = decide(first_decision(), [counters(gateway, 1, 900.0) for gateway in GATEWAYS], now=10.0)

    reports: list[Any] = [
        counters("a", 2, 500.0, 4.0, incarnation="2"),
        counters("b", 2, 900.0),
        counters("c", 2, 900.0),
    ]
    after = decide(before, reports, now=20.0)

    assert after.shares["a"] > 1.5 * after.shares["b"]


def test_a_tenant_without_reports_has_no_gateways() -> None:
    assert decide(SharingState(QUOTA), [], now=0.0) == SharingState(QUOTA)
