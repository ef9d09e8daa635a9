from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scale.decision.policy import Policy
from penstock.scale.decision.sizing import (
    capacity_is_current,
    clamped,
    members_for,
    share_group_members,
    step_above,
    step_below,
    useful_count_above,
    useful_count_below,
    with_capacity,
)
from penstock.scale.decision.values import Memory
from tests.scale.scenarios import POLICY


@pytest.mark.parametrize(
    ("loads", "capacity", "members"),
    [
        ([25.0] * 24, 100.0, 6),  # four each
        ([26.0] * 24, 100.0, 8),  # only three fit, and nine members are no better than eight
        ([10.0] * 12, 1000.0, 1),
        ([80.0] + [15.0] * 23, 100.0, 12),  # the hot one leaves room for one other
        ([120.0] + [15.0] * 23, 100.0, 24),  # too much for one member: at most one each helps
        ([0.0] * 8, 100.0, 1),
        ([], 100.0, 1),
    ],
)
def test_members_are_counted_in_partitions_that_one_can_handle(
    loads: list[float], capacity: float, members: int
) -> None:
    assert members_for(loads, capacity) == members


@given(
    load=st.floats(0.1, 1000),
    partitions=st.integers(1, 500),
    capacity=st.floats(0.1, 10_000),
)
def test_the_fullest_member_fits_and_the_next_smaller_count_would_not(
    load: float, partitions: int, capacity: float
) -> None:
    members = members_for([load] * partitions, capacity)

    fullest = math.ceil(partitions / members) * load
    assert fullest <= capacity * (1 + 1e-6) or members == partitions
    below = useful_count_below(members, partitions)
    assert below == members or math.ceil(partitions / below) * load > capacity * (1 - 1e-6)


def test_useful_counts_skip_those_that_change_nothing() -> None:
    ladder = [1]
    while ladder[-1] < 24:
        ladder.append(useful_count_above(ladder[-1], 24))

    assert ladder == [1, 2, 3, 4, 5, 6, 8, 12, 24]
    assert [useful_count_below(count, 24) for count in ladder[1:]] == ladder[:-1]
    assert useful_count_below(30, 24) == 24
    assert useful_count_above(30, 24) == 30


@pytest.mark.parametrize("requested", [25, 28, 29, 30, 1000])
def test_replicas_are_clamped_to_partitions_where_keda_lets_one_too_many_through(requested: int) -> None:
    assert clamped(requested, partitions=5, lagging=5, policy=POLICY) == 5


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


def test_a_rate_without_backlog_can_only_raise_the_capacity() -> None:
    memory = with_capacity(Memory(), 0.0, None, 80.0)
    assert (memory.capacity, memory.measured_at) == (80.0, None)
    assert with_capacity(memory, 1.0, None, 60.0).capacity == 80.0


def test_a_rate_under_backlog_is_the_capacity_and_may_lower_it() -> None:
    memory = with_capacity(Memory(capacity=140.0), 5.0, 100.0, 100.0)
    assert (memory.capacity, memory.measured_at) == (100.0, 5.0)
    assert with_capacity(memory, 6.0, 60.0, 60.0).capacity == 80.0  # halfway: one measurement is noisy


def test_a_measured_capacity_expires() -> None:
    policy = Policy(group="g", relearn=100)
    memory = Memory(capacity=100.0, measured_at=1000.0)

    assert capacity_is_current(memory, 1099.0, policy)
    assert not capacity_is_current(memory, 1100.0, policy)
    assert not capacity_is_current(Memory(capacity=100.0), 0.0, policy)


def test_a_share_group_is_sized_by_its_total_load_and_not_limited_to_its_partitions() -> None:
    share = replace(POLICY, group_type="share", topics=("orders",))

    assert share_group_members([120.0, 30.0], 50.0) == 3
    assert clamped(40, partitions=2, lagging=2, policy=share) == 40
    assert (step_above(1), step_above(8), step_below(8), step_below(1)) == (2, 10, 6, 1)
