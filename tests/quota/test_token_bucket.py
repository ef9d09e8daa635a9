"""Token buckets; time is passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.quota.token_bucket import THROTTLE_SECONDS_MAX, UNLIMITED, Bucket, throttle_ms


def test_a_request_larger_than_the_tokens_passes_and_leaves_debt() -> None:
    bucket = Bucket.full(100.0, now=0.0)

    assert bucket.spend(350.0, now=0.0) == pytest.approx(2.5)
    assert bucket.spend(0.0, now=2.5) == pytest.approx(0.0)


def test_an_idle_bucket_saves_at_most_one_burst() -> None:
    bucket = Bucket.full(100.0, now=0.0)

    assert bucket.spend(100.0, now=1000.0) == 0.0
    assert bucket.spend(100.0, now=1000.0) == pytest.approx(1.0)


def test_debt_is_paid_at_the_new_rate_after_a_change() -> None:
    bucket = Bucket.full(100.0, now=0.0)
    bucket.spend(300.0, now=0.0)

    bucket.retune(400.0, now=0.0)

    assert bucket.wait_seconds() == pytest.approx(0.5)


def test_a_new_limit_starts_with_no_saved_tokens() -> None:
    bucket = Bucket.full(UNLIMITED, now=0.0)
    assert bucket.spend(1e12, now=0.0) == 0.0

    bucket.retune(100.0, now=0.0)

    assert bucket.spend(100.0, now=0.0) == pytest.approx(1.0)


def test_after_one_request_a_zero_rate_blocks_forever() -> None:
    bucket = Bucket.full(0.0, now=0.0)

    assert bucket.spend(1.0, now=0.0) == UNLIMITED


@pytest.mark.parametrize(("seconds", "expected_ms"), [(0.0, 0), (0.0001, 1), (0.25, 250), (7.0, 1000)])
def test_throttle_times_are_whole_milliseconds_and_never_too_short(seconds: float, expected_ms: int) -> None:
    assert throttle_ms(seconds, at_most=THROTTLE_SECONDS_MAX) == expected_ms


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 10)), min_size=1, max_size=50),
)
def test_a_client_that_obeys_the_throttle_passes_at_most_rate_burst_and_one_request(
    rate: float, requests: list[tuple[float, float]]
) -> None:
    bucket = Bucket.full(rate, now=0.0)
    now, passed = 0.0, 0.0
    for amount, pause in requests:
        before = passed
        passed += amount
        assert before <= rate * now + rate + 1e-6 * max(1.0, passed)
        now += bucket.spend(amount, now) + pause


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1, 1)), max_size=30))
def test_a_clock_that_goes_back_creates_no_tokens(requests: list[tuple[float, float]]) -> None:
    bucket = Bucket.full(10.0, now=0.0)
    now = latest = spent = 0.0
    for amount, step in requests:
        now += step
        latest = max(latest, now)
        bucket.spend(amount, now)
        spent += amount

    assert bucket.tokens <= 10.0 * latest + 10.0 - 0.0
    assert bucket.tokens <= 10.0


def test_what_may_not_go_into_debt_is_refused_until_there_is_enough() -> None:
    bucket = Bucket.full(2.0, 0.0)

    taken = [bucket.take(1.0, now) for now in (0.0, 0.0, 0.25, 0.5)]

    assert taken == [True, True, False, True]
    assert bucket.wait_seconds() == 0.0
    assert Bucket.full(UNLIMITED, 0.0).take(1e9, 0.0)
