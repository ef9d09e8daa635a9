"""A month of placement, at a small scale."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.balance.cells import FULL
from penstock.sim.cell_month import POLICIES, Cluster, Policy, Scale, generate_population, loads_at, simulate

SMALL = Scale(tenants=1_000, days=12, cells=10)
BY_NAME = {policy.name: policy for policy in POLICIES}


def test_the_same_seed_gives_the_same_month() -> None:
    policy = BY_NAME["two choices, moves"]

    assert simulate(3, policy, SMALL) == simulate(3, policy, SMALL)
    assert simulate(3, policy, SMALL) != simulate(4, policy, SMALL)


def test_a_tenant_has_no_load_before_it_arrives_or_after_it_left() -> None:
    population = generate_population(1, SMALL)
    hour = 200

    use = loads_at(population, hour, np.random.default_rng(1))

    absent = (population.arrives > hour) | (population.leaves <= hour)
    assert absent.any()
    assert not use[absent].any()
    assert use[~absent].sum() > 0


def test_two_choices_fill_cells_more_evenly_than_random_placement() -> None:
    def hottest(policy: Policy) -> float:
        return float(np.mean([simulate(seed, policy, SMALL).hottest_to_mean for seed in range(1, 6)]))

    assert hottest(BY_NAME["two choices"]) < hottest(BY_NAME["random"])


@pytest.mark.parametrize("name", ["random", "two choices", "least loaded"])
def test_moves_keep_cells_from_filling_up(name: str) -> None:
    staying, moving = (simulate(2, BY_NAME[each], SMALL) for each in (name, f"{name}, moves"))

    assert moving.moves > 0
    assert moving.hours_full < staying.hours_full


def test_every_present_tenant_has_a_cell() -> None:
    population = generate_population(1, SMALL)
    cluster = Cluster(BY_NAME["two choices, moves"], population, SMALL, seed=1)
    rng = np.random.default_rng(1)
    for hour in range(100):
        cluster.admit(hour)
        use = loads_at(population, hour, rng)
        cluster.measure(use, hour)
        cluster.relieve(use, hour)

    present = (population.arrives < 100) & (population.leaves > 99)
    assert (cluster.cell_of[present] >= 0).all()
    assert (cluster.cell_of[~present] < 0).all()
    assert max(load.highest for load in cluster.measured) < 2 * FULL
