"""Pauses that grow, and policies by type."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.consume.retry import Backoff, Retry


@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_a_pause_stays_within_its_bounds(failures: int, random: Random) -> None:
    backoff = Backoff(0.1, 30.0, jitter=0.2)
    assert 0.08 <= backoff.seconds(failures, random) <= 36.0


def test_pauses_double_until_the_most() -> None:
    backoff = Backoff(1.0, 5.0, jitter=0.0)
    assert [backoff.seconds(failures, Random(1)) for failures in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_the_most_specific_type_counts() -> None:
    policy = Retry(attempts=3, by_type={LookupError: Retry(attempts=1), OSError: Retry(attempts=None)})
    assert policy.pause_seconds(KeyError(), 1, Random(1)) is None
    assert policy.pause_seconds(ConnectionError(), 10_000, Random(1)) is not None
    assert policy.pause_seconds(ValueError(), 2, Random(1)) is not None
    assert policy.pause_seconds(ValueError(), 3, Random(1)) is None
