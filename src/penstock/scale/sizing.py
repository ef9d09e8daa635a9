"""How many replicas a load needs. Counted in partitions a member can carry, not in averages.

A member owns whole partitions. With 24 partitions, 9 replicas are no better than 8: the fullest
member has three partitions either way. So the count is found from the other end: how many
partitions can one member carry, and how many members is that. Steps that change nothing are
never taken, which is also what spares rebalances.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scale.policy import Policy
    from penstock.scale.values import Memory

BLEND: Final = 0.5  # weight of a new measurement of capacity against the one remembered


def members_for(loads: Sequence[float], capacity: float) -> int:
    """Fewest members such that the fullest one stays within `capacity`.

    The fullest member is taken to own the hottest partition and otherwise average ones. Where
    even one partition is too much for one member, a member for each partition is the most
    that helps.
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


def members_sharing(loads: Sequence[float], capacity: float) -> int:
    """The same for a share group: its members take records, not partitions, so the sum counts."""
    return max(1, math.ceil(sum(loads) / capacity - 1e-9)) if capacity > 0 else 1


def step_above(members: int) -> int:
    """A quarter more, at least one: where there are no rungs."""
    return members + max(1, members // 4)


def step_below(members: int) -> int:
    return max(1, members - max(1, members // 4))


def rung_above(members: int, partitions: int) -> int:
    """The next larger count at which the fullest member owns fewer partitions."""
    if members >= partitions:
        return members
    fullest = math.ceil(partitions / max(members, 1))
    return math.ceil(partitions / max(fullest - 1, 1))


def rung_below(members: int, partitions: int) -> int:
    """The next smaller count at which the fullest member owns more partitions, at least one."""
    if partitions == 0 or members <= 1:
        return max(members, 1)
    if members > partitions:
        return partitions
    return min(members - 1, math.ceil(partitions / (math.ceil(partitions / members) + 1)))


def replicas_of(members: int, policy: Policy) -> int:
    return math.ceil(members / policy.consumers_per_replica)


def clamped(replicas: int, *, partitions: int, lagging: int, policy: Policy) -> int:
    """Replicas, never lag, are held to what can be used (KEDA issue 4483), and to the limits."""
    usable = {"partitions": partitions, "laggingPartitions": max(lagging, 1)}.get(policy.limit_to)
    if usable and policy.group_type != "share":
        replicas = min(replicas, replicas_of(usable, policy))
    return max(min(replicas, policy.replicas_max), policy.replicas_min, 1)


def learned(memory: Memory, now: float, measured: float | None, busiest: float) -> Memory:
    """What one member is believed to handle after one more look.

    Under backlog the pace *is* the capacity, so it may also lower what was believed. Without
    backlog it is only a lower bound, and can only raise it.
    """
    known = memory.capacity
    if measured is not None:
        blended = known + BLEND * (measured - known) if known and memory.learned_at is not None else measured
        return replace(memory, capacity=blended, learned_at=now)
    if busiest > (known or 0.0):
        return replace(memory, capacity=busiest)
    return memory


def believed(memory: Memory, now: float, policy: Policy) -> bool:
    """Whether the capacity was measured, and not too long ago: consumers change with each release."""
    return memory.learned_at is not None and 0 <= now - memory.learned_at < policy.relearn
