"""Where the partitions of a new topic go: on the tenant's brokers, replicas in distinct zones.

`Placement` is the interface that the balancer will implement; `spread` is the plain one. Both only
choose among the brokers they are given; `fits` checks what anybody, a client too, has chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.model.ids import BrokerId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.model.ids import LogicalClusterId, Zone

    Placement = Callable[["Ask"], "list[list[BrokerId]] | None"]

PARTITIONS_MAX: Final = 10_000  # of one request for one topic


class Broker(Protocol):
    """All that placing asks of a broker: which it is, and where it stands."""

    @property
    def id(self) -> BrokerId: ...

    @property
    def zone(self) -> Zone: ...


B = TypeVar("B", bound=Broker)


@dataclass(frozen=True, slots=True)
class Ask:
    """Partitions to be placed, numbered from `first`."""

    tenant: LogicalClusterId
    topic: str
    first: int
    count: int
    replicas: int
    brokers: tuple[Broker, ...]


def spread(ask: Ask) -> list[list[BrokerId]] | None:
    """Round the brokers, a zone at a time, each topic beginning elsewhere; None if it cannot be done.

    Replicas are in distinct zones as far as there are zones, and on distinct brokers always.
    """
    ring = interleaved(ask.brokers)
    if not 0 < ask.replicas <= len(ring):
        return None
    zones = len({broker.zone for broker in ring})
    start = sum(ask.topic.encode()) % len(ring)
    placed = []
    for partition in range(ask.first, ask.first + ask.count):
        order = _from(ring, start + partition)
        chosen: list[Broker] = []
        for broker in order:
            distinct = len(chosen) >= zones or all(broker.zone != each.zone for each in chosen)
            if distinct and len(chosen) < ask.replicas:
                chosen.append(broker)
        # More replicas than the order had zones for, where zones are of unequal size.
        chosen += [broker for broker in order if broker not in chosen][: ask.replicas - len(chosen)]
        placed.append([broker.id for broker in chosen])
    return placed


def _from(ring: Sequence[B], turn: int) -> list[B]:
    """The ring as one partition goes through it: leaders in turn, and followers from a place that
    shifts with every round, so that a dead broker's leaderships go to many others, not to one."""
    others = len(ring) - 1
    leader, followers = turn % len(ring), [ring[(turn + 1 + step) % len(ring)] for step in range(others)]
    shift = turn // len(ring) % others if others else 0
    return [ring[leader], *followers[shift:], *followers[:shift]]


def interleaved(brokers: Sequence[B]) -> list[B]:
    """Brokers in an order in which neighbours are in different zones, as far as that is possible."""
    zones: dict[str, list[B]] = {}
    for broker in sorted(brokers, key=lambda b: b.id):
        zones.setdefault(broker.zone, []).append(broker)
    rows = zip_longest(*(zones[zone] for zone in sorted(zones)))
    return [broker for row in rows for broker in row if broker is not None]


def fits(assignment: Sequence[Sequence[int]], brokers: Sequence[Broker]) -> bool:
    """Does it stay on these brokers, with no replica twice on one and zones as distinct as can be?"""
    zone_of = {broker.id: broker.zone for broker in brokers}
    count = len(set(zone_of.values()))
    for replicas in assignment:
        if not replicas or len(set(replicas)) != len(replicas):
            return False
        if not all(BrokerId(replica) in zone_of for replica in replicas):
            return False
        zones = {zone_of[BrokerId(replica)] for replica in replicas}
        if len(zones) < min(count, len(replicas)):
            return False
    return True
