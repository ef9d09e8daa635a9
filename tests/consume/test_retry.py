"""Retry policies by type of exception."""

from __future__ import annotations

from random import Random

from penstock.consume.retry import Retry


def test_the_most_specific_type_counts() -> None:
    policy = Retry(attempts=3, by_type={LookupError: Retry(attempts=1), OSError: Retry(attempts=None)})
    assert policy.pause_seconds(KeyError(), 1, Random(1)) is None
    assert policy.pause_seconds(ConnectionError(), 10_000, Random(1)) is not None
    assert policy.pause_seconds(ValueError(), 2, Random(1)) is not None
    assert policy.pause_seconds(ValueError(), 3, Random(1)) is None
