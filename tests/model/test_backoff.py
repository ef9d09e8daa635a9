"""Pauses grow up to a bound, and spread callers apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.backoff import Backoff


@given(st.integers(1, 200), st.floats(0.0, 1.0))
def test_a_pause_stays_within_its_bounds(failures: int, chance: float) -> None:
    backoff = Backoff(0.1, 30.0, jitter=0.2)
    assert 0.08 <= backoff.seconds(failures, chance) <= 36.0


def test_pauses_double_until_the_most() -> None:
    backoff = Backoff(1.0, 5.0, jitter=0.0)
    assert [backoff.seconds(failures, 0.9) for failures in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_without_a_chance_there_is_no_jitter() -> None:
    assert Backoff(1.0, 5.0).seconds(2) == 2.0
