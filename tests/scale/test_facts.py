from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.scale.facts import facts_of
from penstock.scale.values import GroupState
from tests.scale.stories import POLICY, Story


def test_rates_slope_and_drain_time_of_a_growing_and_a_draining_partition() -> None:
    story = Story(partitions=2, members=2, end=[1000, 9000], committed=[1000, 1000])
    story.passes(120, arrive=[30, 10], consume=[20, 50])

    growing, draining = facts_of(story.window).partitions

    assert (growing.arrival, growing.consumed) == (30, 20)
    assert growing.slope == pytest.approx(10)
    assert growing.drain_seconds == float("inf")
    assert draining.slope == pytest.approx(-40)
    assert draining.drain_seconds == pytest.approx(draining.lag / 40)


def test_one_odd_sample_turns_neither_the_smoothed_lag_nor_the_slope() -> None:
    story = Story(partitions=1, members=1).passes(100, arrive=50, consume=50)
    story.end[0] += 5000
    story.passes(10, arrive=50, consume=50)
    facts = facts_of(story.window).partitions[0]

    assert facts.lag_now == 5000
    assert facts.lag == 0
    assert abs(facts.slope) < 1


@pytest.mark.parametrize("smoothing", ["median", "mean"])
def test_how_long_lag_is_high_counts_back_to_the_last_break(smoothing: str) -> None:
    policy = replace(POLICY, smoothing=smoothing, smoothing_samples=1)
    story = Story(policy, partitions=1, members=1, end=[2000], committed=[1000])  # 1000 behind
    story.passes(60, arrive=10)
    story.committed[0] = story.end[0] - 100  # a dip
    story.passes(10, arrive=10)
    story.end[0] += 900
    story.passes(40, arrive=10)

    facts = facts_of(story.window).partitions[0]

    # four samples since the dip, and 5/9 of the step from 100 to 1000 lies above 500
    assert facts.above_for == pytest.approx(30 + 10 * 5 / 9)


def test_capacity_is_the_pace_of_members_that_never_run_out_of_work() -> None:
    story = Story(partitions=4, members=2, end=[9000, 9000, 1000, 1000], committed=[1000] * 4)
    story.passes(80, arrive=[40, 40, 10, 10], consume=[30, 20, 10, 10])

    facts = facts_of(story.window)

    assert facts.capacity == pytest.approx(50)  # the first member's two partitions together
    assert facts.busiest == pytest.approx(50)


def test_without_backlog_the_capacity_is_unknown() -> None:
    facts = facts_of(Story(partitions=4, members=2).passes(80, arrive=20).window)

    assert facts.capacity is None
    assert facts.busiest == pytest.approx(40)


def test_a_pace_that_spans_a_rebalance_is_nobodys_capacity() -> None:
    story = Story(partitions=2, members=1, end=[9000, 9000], committed=[1000, 1000])
    story.passes(60, arrive=10, consume=20)
    story.members, story.generation = 2, 2
    story.passes(30, arrive=10, consume=20)

    facts = facts_of(story.window)

    assert (facts.capacity, facts.steady_for) == (None, 20)


def test_a_rebalance_alone_ends_the_steady_time() -> None:
    story = Story().passes(60, arrive=5)
    story.state = GroupState.REBALANCING
    story.passes(10, arrive=5)
    story.state = GroupState.STABLE
    story.passes(20, arrive=5)

    assert facts_of(story.window).steady_for == 10


def test_the_peak_is_that_of_the_low_time() -> None:
    story = Story(replace(POLICY, low_seconds=100), partitions=2, members=1)
    story.passes(200, arrive=100)
    story.passes(110, arrive=5)
    story.passes(50, arrive=20)

    assert facts_of(story.window).peak == pytest.approx(2 * 17.5, rel=0.2)


def test_a_backlog_is_all_that_the_owner_has_because_clients_take_one_partition_after_the_other() -> None:
    story = Story(replace(POLICY, stall=100), partitions=2, members=1, end=[9000] * 2, committed=[1000] * 2)
    story.passes(80, arrive=5, consume=[80, 0])

    first, second = facts_of(story.window).partitions

    assert second.consumed == 0
    assert first.slope == second.slope == pytest.approx(-70)
    assert first.backlog == second.backlog


def test_a_stuck_partition_does_not_weigh_on_its_neighbours() -> None:
    story = Story(partitions=2, members=1, end=[9000, 9000], committed=[1000, 1000])
    story.passes(120, arrive=[5, 500], consume=[80, 0])

    first, second = facts_of(story.window).partitions

    assert first.slope == pytest.approx(-75)
    assert second.slope == pytest.approx(500)
