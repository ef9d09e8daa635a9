from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.scale.decision.values import GroupState
from tests.scale.scenarios import POLICY, Scenario, facts_of


def test_rates_slope_and_drain_time_of_a_growing_and_a_draining_partition() -> None:
    scenario = Scenario(partitions=2, members=2, end=[1000, 9000], committed=[1000, 1000])
    scenario.passes(120, arrive=[30, 10], consume=[20, 50])

    growing, draining = facts_of(scenario.window).partitions

    assert (growing.arrival, growing.consumed) == (30, 20)
    assert growing.slope == pytest.approx(10)
    assert growing.drain_seconds == float("inf")
    assert draining.slope == pytest.approx(-40)
    assert draining.drain_seconds == pytest.approx(draining.lag / 40)


def test_one_outlier_changes_neither_the_smoothed_lag_nor_the_slope() -> None:
    scenario = Scenario(partitions=1, members=1).passes(100, arrive=50, consume=50)
    scenario.end[0] += 5000
    scenario.passes(10, arrive=50, consume=50)
    facts = facts_of(scenario.window).partitions[0]

    assert facts.lag_now == 5000
    assert facts.lag == 0
    assert abs(facts.slope) < 1


@pytest.mark.parametrize("smoothing", ["median", "mean"])
def test_the_duration_of_high_lag_counts_from_the_last_dip(smoothing: str) -> None:
    policy = replace(POLICY, smoothing=smoothing, smoothing_samples=1)
    scenario = Scenario(policy, partitions=1, members=1, end=[2000], committed=[1000])  # 1000 behind
    scenario.passes(60, arrive=10)
    scenario.committed[0] = scenario.end[0] - 100  # a dip
    scenario.passes(10, arrive=10)
    scenario.end[0] += 900
    scenario.passes(40, arrive=10)

    facts = facts_of(scenario.window).partitions[0]

    # four samples since the dip, and 5/9 of the step from 100 to 1000 lies above 500
    assert facts.above_for == pytest.approx(30 + 10 * 5 / 9)


def test_capacity_is_the_rate_of_saturated_members() -> None:
    scenario = Scenario(partitions=4, members=2, end=[9000, 9000, 1000, 1000], committed=[1000] * 4)
    scenario.passes(80, arrive=[40, 40, 10, 10], consume=[30, 20, 10, 10])

    facts = facts_of(scenario.window)

    assert facts.capacity == pytest.approx(50)  # the first member's two partitions together
    assert facts.busiest == pytest.approx(50)


def test_without_backlog_the_capacity_is_unknown() -> None:
    facts = facts_of(Scenario(partitions=4, members=2).passes(80, arrive=20).window)

    assert facts.capacity is None
    assert facts.busiest == pytest.approx(40)


def test_a_rate_across_a_rebalance_is_not_a_capacity() -> None:
    scenario = Scenario(partitions=2, members=1, end=[9000, 9000], committed=[1000, 1000])
    scenario.passes(60, arrive=10, consume=20)
    scenario.members, scenario.generation = 2, 2
    scenario.passes(30, arrive=10, consume=20)

    facts = facts_of(scenario.window)

    assert (facts.capacity, facts.steady_for) == (None, 20)


def test_a_rebalance_alone_ends_the_steady_time() -> None:
    scenario = Scenario().passes(60, arrive=5)
    scenario.state = GroupState.REBALANCING
    scenario.passes(10, arrive=5)
    scenario.state = GroupState.STABLE
    scenario.passes(20, arrive=5)

    assert facts_of(scenario.window).steady_for == 10


def test_the_peak_covers_the_low_time() -> None:
    scenario = Scenario(replace(POLICY, low_seconds=100), partitions=2, members=1)
    scenario.passes(200, arrive=100)
    scenario.passes(110, arrive=5)
    scenario.passes(50, arrive=20)

    assert facts_of(scenario.window).peak() == pytest.approx(2 * 17.5, rel=0.2)


def test_a_backlog_covers_all_partitions_of_the_owner() -> None:
    scenario = Scenario(
        replace(POLICY, stall=100), partitions=2, members=1, end=[9000] * 2, committed=[1000] * 2
    )
    scenario.passes(80, arrive=5, consume=[80, 0])

    first, second = facts_of(scenario.window).partitions

    assert second.consumed == 0
    assert first.slope == second.slope == pytest.approx(-70)
    assert first.backlog == second.backlog


def test_a_stuck_partition_does_not_count_in_its_owners_backlog() -> None:
    scenario = Scenario(partitions=2, members=1, end=[9000, 9000], committed=[1000, 1000])
    scenario.passes(120, arrive=[5, 500], consume=[80, 0])

    first, second = facts_of(scenario.window).partitions

    assert first.slope == pytest.approx(-75)
    assert second.slope == pytest.approx(500)
