"""A month of balancing: the same traffic under each policy, and every replica accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.balance.goals import GOALS
from penstock.sim import rebalance
from penstock.sim.rebalance import (
    COPY_BYTES_PER_SECOND,
    POLICIES,
    STEP_SECONDS,
    ZONES,
    Cluster,
    Population,
    Scale,
    simulate,
)

if TYPE_CHECKING:
    from penstock.sim.rebalance import Policy

SMALL = Scale(brokers=9, replicas=450, days=1.5)
COUNT_ONLY, ALL_GOALS, OVERLOAD_ONLY = POLICIES


def _run(cluster: Cluster, population: Population, steps: range) -> None:
    for step in steps:
        now = step * STEP_SECONDS
        population.step(now)
        cluster.create_topics()
        cluster.lose_brokers(step, now)
        costs = population.costs()
        cluster.copy(now)
        cluster.repair(costs, now)
        cluster.balance(costs, now)


def test_the_same_seed_gives_the_same_month() -> None:
    assert simulate(3, OVERLOAD_ONLY, SMALL) == simulate(3, OVERLOAD_ONLY, SMALL)


def test_the_policy_of_the_control_plane_has_its_goals() -> None:
    assert ALL_GOALS.goals is GOALS


def test_balancing_by_load_ends_overload_that_counting_does_not_see() -> None:
    scale = Scale(brokers=15, replicas=4_500, days=1)

    counted, balanced, relieved = (simulate(1, policy, scale) for policy in POLICIES)

    assert counted.hours_over > 0
    assert balanced.hours_over <= 0.2 * counted.hours_over
    assert relieved.hours_over <= 0.2 * counted.hours_over
    assert relieved.bytes < balanced.bytes


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_partition_keeps_three_replicas_in_three_zones(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "LOST_PER_MONTH", 12.0)
    population = Population(2, SMALL)
    cluster = Cluster(policy, population, SMALL, 2)

    _run(cluster, population, range(24))

    assert cluster.bytes_repaired > 0
    assert all(len(set(row)) == ZONES for row in (cluster.replicas % ZONES).tolist())


def test_a_lost_broker_is_emptied_replaced_and_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "LOST_PER_MONTH", 0.0)
    population = Population(1, SMALL)
    cluster = Cluster(OVERLOAD_ONLY, population, SMALL, 1)
    cluster.alive[4] = False
    cluster.lost_at[4] = 0.0

    _run(cluster, population, range(SMALL.steps))

    held = np.bincount(cluster.replicas.ravel(), minlength=SMALL.brokers)
    assert cluster.alive.all()
    assert not cluster.lost_at
    assert held[4] > 0


def test_no_broker_receives_more_in_a_step_than_copying_allows() -> None:
    population = Population(1, SMALL)
    cluster = Cluster(ALL_GOALS, population, SMALL, 1)
    moved = []

    for step in range(10):
        before = cluster.bytes_balanced + cluster.bytes_repaired
        _run(cluster, population, range(step, step + 1))
        moved.append(cluster.bytes_balanced + cluster.bytes_repaired - before)
        assert (cluster.copying <= 2.0 + 1e-9).all()

    assert 0 < max(moved) <= SMALL.brokers * COPY_BYTES_PER_SECOND * STEP_SECONDS
