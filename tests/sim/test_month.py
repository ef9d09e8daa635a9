"""A month of placement, in small."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.balance.cells import FULL
from penstock.sim.month import POLICIES, Cluster, Policy, Setting, loads_at, population, simulate

SMALL = Setting(tenants=1_000, days=12, cells=10)
BY_NAME = {policy.name: policy for policy in POLICIES}


def test_the_same_seed_gives_the_same_month() -> None:
    policy = BY_NAME["two choices, moves"]

    assert simulate(3, policy, SMALL) == simulate(3, policy, SMALL)
    assert simulate(3, policy, SMALL) != simulate(4, policy, SMALL)


def test_nobody_has_a_load_before_it_comes_or_after_it_left() -> None:
    people = population(1, SMALL)
    hour = 200

    use = loads_at(people, hour, np.random.default_rng(1))

    absent = (people.arrives > hour) | (people.leaves <= hour)
    assert absent.any()
    assert not use[absent].any()
    assert use[~absent].sum() > 0


def test_two_choices_fill_cells_more_evenly_than_chance() -> None:
    def hottest(policy: Policy) -> float:
        return float(np.mean([simulate(seed, policy, SMALL).hottest_to_mean for seed in range(1, 6)]))

    assert hottest(BY_NAME["two choices"]) < hottest(BY_NAME["random"])


@pytest.mark.parametrize("name", ["random", "two choices", "least loaded"])
def test_moves_keep_cells_from_being_full(name: str) -> None:
    staying, moving = (simulate(2, BY_NAME[each], SMALL) for each in (name, f"{name}, moves"))

    assert moving.moves > 0
    assert moving.hours_full < staying.hours_full


def test_everybody_who_is_there_has_a_cell() -> None:
    people = population(1, SMALL)
    cluster = Cluster(BY_NAME["two choices, moves"], people, SMALL, seed=1)
    chance = np.random.default_rng(1)
    for hour in range(100):
        cluster.admit(hour)
        use = loads_at(people, hour, chance)
        cluster.measure(use, hour)
        cluster.relieve(use, hour)

    there = (people.arrives < 100) & (people.leaves > 99)
    assert (cluster.home[there] >= 0).all()
    assert (cluster.home[~there] < 0).all()
    assert max(load.highest for load in cluster.measured) < 2 * FULL
