"""Which probe of which broker is due when, and on which partitions. Pure.

Each broker gets 100 produce probes a minute (Kora §4.4.2), evenly spaced, and brokers are staggered. A
probe is due at a fixed time: its latency counts from then, so that a checker that falls behind does not
hide it.

Every broker has one partition number, the same in three topics. The number is that of its partition of the
topic `alone`, whose only replica it has. Demotion changes the order of replicas and never such a topic, so
the number stays. A number whose broker has left is given to the next new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.model.events import ProbeRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROBES_PER_MINUTE: Final = 100  # of each broker
INTERVAL_SECONDS: Final = 60.0 / PROBES_PER_MINUTE
ORDER: Final = (ProbeRole.PATH, ProbeRole.ALONE, ProbeRole.PATH, ProbeRole.PAIR)
PINNED: Final = (ProbeRole.ALONE, ProbeRole.PAIR, ProbeRole.PATH)
TOPICS: Final = {role: f"probe-{role}" for role in PINNED}  # as the checker's tenant names them
FACTOR_MAX: Final = 3  # replicas of `path`, as of tenants' topics

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Due:
    broker: int
    role: ProbeRole
    number: int  # of the broker's probe, from 0
    at: float  # seconds since the start


def due_between(brokers: Sequence[int], since: float, until: float) -> Iterator[Due]:
    """Probes due from `since` to before `until`, in order of time; both in seconds since the start."""
    per_minute = PROBES_PER_MINUTE * len(brokers)
    slot = max(0, int(since * per_minute / 60) - 1)
    while brokers and (at := slot * 60 / per_minute) < until:
        if at >= since:
            number, index = divmod(slot, len(brokers))
            yield Due(brokers[index], ORDER[number % len(ORDER)], number, at)
        slot += 1


@dataclass(frozen=True, slots=True)
class TopicRepair:
    """What a probe topic lacks: partitions to add, in order, and replicas to move."""

    add: tuple[Replicas, ...] = ()
    reassign: Mapping[int, Replicas] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pinning:
    numbers: Mapping[int, int]  # broker → its partition number
    repairs: Mapping[ProbeRole, TopicRepair]  # only of topics that need any


def replicas_of(broker: int, zones: Mapping[int, str], role: ProbeRole) -> Replicas:
    """The broker first, then others: in a ring, in other zones as far as there are any."""
    if role is ProbeRole.ALONE:
        return (broker,)
    ids = sorted(zones)
    start = ids.index(broker)
    ring = ids[start + 1 :] + ids[:start]
    count = 2 if role is ProbeRole.PAIR else min(FACTOR_MAX, len(ids))
    chosen = [broker]
    for distinct in (True, False):
        for other in ring:
            used = {zones[one] for one in chosen}
            if len(chosen) < count and other not in chosen and not (distinct and zones[other] in used):
                chosen.append(other)
    return tuple(chosen)


def pin(zones: Mapping[int, str], existing: Mapping[ProbeRole, Mapping[int, Replicas]]) -> Pinning:
    """`zones` by broker, also of those that are down; `existing` are the partitions by topic."""
    alone = existing.get(ProbeRole.ALONE, {})
    numbers: dict[int, int] = {}
    for number, replicas in sorted(alone.items()):
        if len(replicas) == 1 and replicas[0] in zones:
            numbers.setdefault(replicas[0], number)
    taken = set(numbers.values())
    free = (number for number in range(len(alone) + len(zones)) if number not in taken)
    numbers |= dict(zip(sorted(set(zones) - set(numbers)), free, strict=False))
    repairs = {}
    for role in PINNED:
        repair = _repair(role, zones, numbers, existing.get(role, {}))
        if repair.add or repair.reassign:
            repairs[role] = repair
    return Pinning(numbers, repairs)


def _repair(
    role: ProbeRole, zones: Mapping[int, str], numbers: Mapping[int, int], existing: Mapping[int, Replicas]
) -> TopicRepair:
    """Compares sets of replicas: their order is that of the preferred leaders, which demotion changes."""
    desired = {number: replicas_of(broker, zones, role) for broker, number in numbers.items()}
    filler = next(iter(sorted(desired.items())), (0, ()))[1]
    last = max([*desired, *existing], default=-1)
    add = tuple(desired.get(number, filler) for number in range(len(existing), last + 1))
    wrong = {
        number: replicas
        for number, replicas in desired.items()
        if number in existing and set(existing[number]) != set(replicas)
    }
    return TopicRepair(add, wrong)
