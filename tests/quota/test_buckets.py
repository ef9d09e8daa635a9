"""Token buckets, with time passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.buckets import THROTTLE_SECONDS_MAX, UNLIMITED, Bucket, throttle_ms


def test_a_request_larger_than_what_is_there_passes_and_is_paid_for_afterwards() -> None:
    bucket = Bucket.full(100.0, now=0.0)

    assert bucket.spend(350.0, now=0.0) == pytest.approx(2.5)
    assert bucket.spend(0.0, now=2.5) == pytest.approx(0.0)


def test_an_idle_bucket_saves_one_burst_and_no_more() -> None:
    bucket = Bucket.full(100.0, now=0.0)

    assert bucket.spend(100.0, now=1000.0) == 0.0
    assert bucket.spend(100.0, now=1000.0) == pytest.approx(1.0)


def test_debt_is_paid_at_the_new_rate_after_a_change() -> None:
    bucket = Bucket.full(100.0, now=0.0)
    bucket.spend(300.0, now=0.0)

    bucket.retune(400.0, now=0.0)

    assert bucket.wait_seconds() == pytest.approx(0.5)


def test_a_limit_where_there_was_none_begins_with_nothing_saved() -> None:
    bucket = Bucket.full(UNLIMITED, now=0.0)
    assert bucket.spend(1e12, now=0.0) == 0.0

    bucket.retune(100.0, now=0.0)

    assert bucket.spend(100.0, now=0.0) == pytest.approx(1.0)


def test_nothing_passes_twice_through_a_limit_of_nothing() -> None:
    bucket = Bucket.full(0.0, now=0.0)

    assert bucket.spend(1.0, now=0.0) == UNLIMITED


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 0), (0.0001, 1), (0.25, 250), (7.0, 1000)])
def test_waits_are_told_in_whole_milliseconds_and_never_too_short(seconds: float, told: int) -> None:
    assert throttle_ms(seconds, at_most=THROTTLE_SECONDS_MAX) == told


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 10)), min_size=1, max_size=50),
)
def test_who_waits_as_told_passes_at_most_rate_burst_and_one_request(
    rate: float, asked: list[tuple[float, float]]
) -> None:
    bucket = Bucket.full(rate, now=0.0)
    now, passed = 0.0, 0.0
    for amount, pause in asked:
        before = passed
        passed += amount
        assert before <= rate * now + rate + 1e-6 * max(1.0, passed)
        now += bucket.spend(amount, now) + pause


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1, 1)), max_size=30))
def test_a_clock_that_goes_back_gives_nothing_away(asked: list[tuple[float, float]]) -> None:
    bucket = Bucket.full(10.0, now=0.0)
    now = latest = spent = 0.0
    for amount, step in asked:
        now += step
        latest = max(latest, now)
        bucket.spend(amount, now)
        spent += amount

    assert bucket.tokens <= 10.0 * latest + 10.0 - 0.0
    assert bucket.tokens <= 10.0
