"""How many replicas a load needs, counted in whole partitions that one member can handle.

A member owns whole partitions. With 24 partitions, 9 replicas are no better than 8: the fullest
member has three partitions either way. Sizing therefore asks how many partitions one member can
handle, and how many members that makes. A useful count is one at which the fullest member owns
fewer partitions; other counts would only cost a rebalance.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import Memory

BLEND: Final = 0.5  # weight of a new capacity measurement against the remembered one


def members_for(loads: Sequence[float], capacity: float) -> int:
    """The fewest members such that the fullest one stays within `capacity`.

    The fullest member is assumed to own the hottest partition and otherwise average ones. If the
    hottest partition alone exceeds `capacity`, one member for each partition is the most that helps.
    """
    count = len(loads)
    if count == 0 or capacity <= 0:
        return 1
    hottest = max(loads)
    others = (sum(loads) - hottest) / (count - 1) if count > 1 else 0.0
    if hottest > capacity:
        return count
    carried = count if others <= 0 else min(count, 1 + int((capacity - hottest) / others + 1e-9))
    return math.ceil(count / carried)


def share_group_members(loads: Sequence[float], capacity: float) -> int:
    """The same for a share group, whose members share records instead of owning partitions."""
    return max(1, math.ceil(sum(loads) / capacity - 1e-9)) if capacity > 0 else 1


def step_above(members: int) -> int:
    """A quarter more, at least one: the step of a share group."""
    return members + max(1, members // 4)


def step_below(members: int) -> int:
    return max(1, members - max(1, members // 4))


def useful_count_above(members: int, partitions: int) -> int:
    """The next larger count at which the fullest member owns fewer partitions."""
    if members >= partitions:
        return members
    fullest = math.ceil(partitions / max(members, 1))
    return math.ceil(partitions / max(fullest - 1, 1))


def useful_count_below(members: int, partitions: int) -> int:
    """The next smaller count at which the fullest member owns more partitions, at least one."""
    if partitions == 0 or members <= 1:
        return max(members, 1)
    if members > partitions:
        return partitions
    return min(members - 1, math.ceil(partitions / (math.ceil(partitions / members) + 1)))


def replicas_of(members: int, policy: Policy) -> int:
    return math.ceil(members / policy.consumers_per_replica)


def clamped(replicas: int, *, partitions: int, lagging: int, policy: Policy) -> int:
    """Limits replicas, not lag, to what the group can use (KEDA issue 4483) and to the policy."""
    usable = {"partitions": partitions, "laggingPartitions": max(lagging, 1)}.get(policy.limit_to)
    if usable and policy.group_type != "share":
        replicas = min(replicas, replicas_of(usable, policy))
    return within_limits(replicas, policy)


def within_limits(replicas: int, policy: Policy) -> int:
    return max(min(replicas, policy.replicas_max), policy.replicas_min, 1)


def with_capacity(memory: Memory, now: float, measured: float | None, busiest: float) -> Memory:
    """The memory with the capacity of one member updated from a new sample.

    Under backlog the measured rate is the capacity, so it may lower the remembered one. Without
    backlog it is a lower bound and can only raise it.
    """
    known = memory.capacity
    if measured is not None:
        blended = known + BLEND * (measured - known) if known and memory.measured_at is not None else measured
        return replace(memory, capacity=blended, measured_at=now)
    if busiest > (known or 0.0):
        return replace(memory, capacity=busiest)
    return memory


def capacity_is_current(memory: Memory, now: float, policy: Policy) -> bool:
    """Whether the capacity was measured within `relearn` seconds: consumers change with each release."""
    return memory.measured_at is not None and 0 <= now - memory.measured_at < policy.relearn
