from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scale.policy import Policy
from penstock.scale.sizing import (
    believed,
    clamped,
    learned,
    members_for,
    members_sharing,
    rung_above,
    rung_below,
    step_above,
    step_below,
)
from penstock.scale.values import Memory
from tests.scale.stories import POLICY


@pytest.mark.parametrize(
    ("loads", "capacity", "members"),
    [
        ([25.0] * 24, 100.0, 6),  # four each
        ([26.0] * 24, 100.0, 8),  # only three fit, so nine would be no better than eight
        ([10.0] * 12, 1000.0, 1),
        ([80.0] + [15.0] * 23, 100.0, 12),  # the hot one leaves room for one other
        ([120.0] + [15.0] * 23, 100.0, 24),  # more than one member can do: no more than one each helps
        ([0.0] * 8, 100.0, 1),
        ([], 100.0, 1),
    ],
)
def test_members_are_counted_in_partitions_that_one_can_carry(
    loads: list[float], capacity: float, members: int
) -> None:
    assert members_for(loads, capacity) == members


@given(
    load=st.floats(0.1, 1000),
    partitions=st.integers(1, 500),
    capacity=st.floats(0.1, 10_000),
)
def test_the_fullest_member_fits_and_one_rung_fewer_would_not(
    load: float, partitions: int, capacity: float
) -> None:
    members = members_for([load] * partitions, capacity)

    fullest = math.ceil(partitions / members) * load
    assert fullest <= capacity * (1 + 1e-6) or members == partitions
    below = rung_below(members, partitions)
    assert below == members or math.ceil(partitions / below) * load > capacity * (1 - 1e-6)


def test_rungs_skip_counts_that_change_nothing() -> None:
    ladder = [1]
    while ladder[-1] < 24:
        ladder.append(rung_above(ladder[-1], 24))

    assert ladder == [1, 2, 3, 4, 5, 6, 8, 12, 24]
    assert [rung_below(count, 24) for count in ladder[1:]] == ladder[:-1]
    assert rung_below(30, 24) == 24
    assert rung_above(30, 24) == 30


@pytest.mark.parametrize("asked", [25, 28, 29, 30, 1000])
def test_replicas_are_clamped_to_partitions_where_keda_lets_one_too_many_through(asked: int) -> None:
    assert clamped(asked, partitions=5, lagging=5, policy=POLICY) == 5


@pytest.mark.parametrize(
    ("changed", "replicas"),
    [
        ({"limit_to": "laggingPartitions"}, 3),
        ({"limit_to": "none"}, 40),
        ({"replicas_max": 7}, 7),
        ({"consumers_per_replica": 4}, 3),
        ({"replicas_min": 20}, 20),
    ],
)
def test_the_clamp_follows_the_policy(changed: dict[str, object], replicas: int) -> None:
    policy = replace(POLICY, **changed)  # type: ignore[arg-type]  # fields of Policy

    assert clamped(40, partitions=12, lagging=3, policy=policy) == replicas


def test_a_pace_without_backlog_only_raises_what_is_believed() -> None:
    memory = learned(Memory(), 0.0, None, 80.0)
    assert (memory.capacity, memory.learned_at) == (80.0, None)
    assert learned(memory, 1.0, None, 60.0).capacity == 80.0


def test_a_pace_under_backlog_is_the_capacity_and_may_lower_it() -> None:
    memory = learned(Memory(capacity=140.0), 5.0, 100.0, 100.0)
    assert (memory.capacity, memory.learned_at) == (100.0, 5.0)
    assert learned(memory, 6.0, 60.0, 60.0).capacity == 80.0  # halfway: one measurement is noisy


def test_a_belief_ends() -> None:
    policy = Policy(group="g", relearn=100)
    memory = Memory(capacity=100.0, learned_at=1000.0)

    assert believed(memory, 1099.0, policy)
    assert not believed(memory, 1100.0, policy)
    assert not believed(Memory(capacity=100.0), 0.0, policy)


def test_a_share_group_is_counted_by_its_sum_and_not_held_to_its_partitions() -> None:
    share = replace(POLICY, group_type="share", topics=("orders",))

    assert members_sharing([120.0, 30.0], 50.0) == 3
    assert clamped(40, partitions=2, lagging=2, policy=share) == 40
    assert (step_above(1), step_above(8), step_below(8), step_below(1)) == (2, 10, 6, 1)
