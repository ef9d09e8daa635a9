"""Rolls of large clusters, simulated with the control plane's decisions."""

from __future__ import annotations

import pytest

from penstock.sim.roll_batches import simulate


def test_the_same_seed_gives_the_same_roll() -> None:
    assert simulate(3, 12) == simulate(3, 12)


@pytest.mark.parametrize("seed", range(3))
def test_a_small_cluster_is_rolled_one_broker_at_a_time(seed: int) -> None:
    outcome = simulate(seed, 6)
    assert outcome.batches == 6
    assert outcome.zones_at_once == 1
    assert outcome.under_minimum_seconds == 0


def test_a_larger_cluster_is_rolled_in_batches_of_one_zone() -> None:
    outcome = simulate(1, 90)
    assert outcome.batches == 30
    assert outcome.ratio < 0.6
    assert outcome.zones_at_once == 1
    assert outcome.under_minimum_seconds == 0
