"""Reports that are lost, late, repeated and out of order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.reports import FALLBACK_SECONDS, Counters, Shared, decide

QUOTA = 300.0
INTERVAL = 10.0
POINTS = ("a", "b", "c")


def told(point: str, turn: int, used: float, throttled: float = 0.0, incarnation: str = "1") -> Counters:
    return Counters(point, incarnation, turn, turn * INTERVAL, used, throttled)


def begun() -> Shared:
    """Three points that have reported once, at nothing."""
    return decide(Shared(QUOTA), [told(point, 0, 0.0) for point in POINTS], now=0.0)


def test_the_first_split_is_even() -> None:
    assert begun().shares == pytest.approx(dict.fromkeys(POINTS, 100.0))


def test_a_lopsided_tenant_gets_its_quota_where_it_works_after_one_interval() -> None:
    state = decide(begun(), [told("a", 1, 1000.0, 5.0), told("b", 1, 0.0), told("c", 1, 0.0)], now=10.0)

    assert state.shares["a"] >= 0.95 * QUOTA


@given(st.permutations(range(9)), st.data())
def test_neither_order_nor_repeats_matter(order: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.floats(0, 5000), min_size=9, max_size=9))
    reports = [told(POINTS[n % 3], 1 + n // 3, sum(numbers[n % 3 : n + 1 : 3])) for n in range(9)]

    straight = decide(begun(), reports, now=30.0)
    shuffled = decide(begun(), [reports[n] for n in (*order, *order[:4])], now=30.0)

    assert shuffled == straight


def test_a_late_report_changes_nothing() -> None:
    now = [told(point, 2, 500.0) for point in POINTS]
    state = decide(begun(), now, now=20.0)

    after = decide(state, [told(point, 3, 700.0) for point in POINTS], now=30.0)
    with_late = decide(state, [told("a", 1, 9000.0), *(told(p, 3, 700.0) for p in POINTS)], now=30.0)

    assert with_late == after


@given(
    losses=st.lists(st.sets(st.sampled_from(POINTS)), min_size=1, max_size=int(FALLBACK_SECONDS / INTERVAL)),
    use=st.lists(st.floats(0, 2000), min_size=18, max_size=18),
    waits=st.integers(0, 2**18 - 1),
)
def test_whatever_is_lost_no_more_than_the_quota_is_enforced(
    losses: list[set[str]], use: list[float], waits: int
) -> None:
    """A point that did not report did not hear either, as far as anybody can know: it keeps its share."""
    state = begun()
    enforced = dict(state.shares)
    used, waited = dict.fromkeys(POINTS, 0.0), dict.fromkeys(POINTS, 0.0)
    for turn, lost in enumerate(losses, 1):
        for number, point in enumerate(POINTS):
            used[point] += use[(3 * turn + number) % 18]
            waited[point] += waits >> (3 * turn + number) % 18 & 1
        heard = [point for point in POINTS if point not in lost]
        arrived = [told(point, turn, used[point], waited[point]) for point in heard]

        state = decide(state, arrived, now=turn * INTERVAL)

        enforced.update({point: state.shares[point] for point in heard})
        assert sum(enforced.values()) <= QUOTA * (1 + 1e-9)


def test_a_point_that_is_silent_keeps_its_share_until_it_has_fallen_back() -> None:
    state = decide(begun(), [told("a", 1, 1000.0, 5.0), told("b", 1, 0.0), told("c", 1, 0.0)], now=10.0)
    kept = state.shares["a"]

    soon = decide(state, [told("b", 2, 100.0, 5.0), told("c", 2, 0.0)], now=20.0)
    later = decide(state, [told("b", 8, 100.0, 5.0), told("c", 8, 0.0)], now=10.0 + FALLBACK_SECONDS + 10)

    assert soon.shares["a"] == pytest.approx(kept)
    assert later.shares["a"] == pytest.approx(QUOTA / 3)


def test_a_point_that_is_gone_leaves_its_share_to_the_others() -> None:
    far = 30
    state = decide(begun(), [told("b", far, 0.0), told("c", far, 0.0)], now=far * INTERVAL)

    assert set(state.shares) == {"b", "c"}
    assert sum(state.shares.values()) == pytest.approx(QUOTA)


def test_a_new_process_at_a_point_begins_to_count_at_nothing() -> None:
    before = decide(begun(), [told(point, 1, 900.0) for point in POINTS], now=10.0)

    reports: list[Any] = [told("a", 2, 500.0, 4.0, incarnation="2"), told("b", 2, 900.0), told("c", 2, 900.0)]
    after = decide(before, reports, now=20.0)

    assert after.shares["a"] > 1.5 * after.shares["b"]


def test_a_tenant_nobody_reports_has_no_points() -> None:
    assert decide(Shared(QUOTA), [], now=0.0) == Shared(QUOTA)
