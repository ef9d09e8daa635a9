"""Replica assignments for new partitions: on the tenant's brokers, with replicas in distinct zones.

`spread` chooses an assignment, as a `Placement`; `fits` checks any assignment, also one that a client
has chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.model.ids import BrokerId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.model.ids import LogicalClusterId, Zone

    Placement = Callable[["PlacementRequest"], "list[list[BrokerId]] | None"]

REPLICAS_DEFAULT: Final = 3  # of a partition, if the client does not choose
PARTITIONS_MAX: Final = 10_000  # in one request; Kafka's controller creates no more at once


class Broker(Protocol):
    """What placement needs to know of a broker."""

    @property
    def id(self) -> BrokerId: ...

    @property
    def zone(self) -> Zone: ...


B = TypeVar("B", bound=Broker)


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Partitions to place, numbered from `first`."""

    tenant: LogicalClusterId
    topic: str
    first: int
    count: int
    replicas: int
    brokers: tuple[Broker, ...]
    cordoned: frozenset[BrokerId] = frozenset()  # take no new replica
    demoted: frozenset[BrokerId] = frozenset()  # lead nothing

    @property
    def open(self) -> tuple[Broker, ...]:
        """The brokers that take replicas. Without demoted ones where the others suffice."""
        able = tuple(broker for broker in self.brokers if broker.id not in self.cordoned)
        leading = tuple(broker for broker in able if broker.id not in self.demoted)
        zones = min(self.replicas, len({broker.zone for broker in able}))
        enough = len(leading) >= self.replicas and len({broker.zone for broker in leading}) >= zones
        return leading if enough else able


def spread(request: PlacementRequest) -> list[list[BrokerId]] | None:
    """Round-robin over the brokers, alternating zones, from a start that depends on the topic.

    Replicas are always on distinct brokers, and in distinct zones as far as there are zones. A demoted
    broker is never first. None if fewer brokers than replicas take replicas, or if none of them may lead.
    """
    ring = interleaved(request.open)
    leading = [broker for broker in ring if broker.id not in request.demoted]
    if not 0 < request.replicas <= len(ring) or not leading:
        return None
    zones = len({broker.zone for broker in ring})
    start = sum(request.topic.encode()) % len(ring)
    placed = []
    period = len(ring) * max(len(ring) - 1, 1)  # of `_replica_order`
    if len(leading) < len(ring):
        period *= len(leading)
    for partition in range(request.first, request.first + min(request.count, period)):
        order = _replica_order(ring, start + partition)
        if order[0].id in request.demoted:
            leader = leading[(start + partition) // len(ring) % len(leading)]
            order = [leader, *(broker for broker in order if broker is not leader)]
        chosen: list[Broker] = []
        for broker in order:
            distinct = len(chosen) >= zones or all(broker.zone != each.zone for each in chosen)
            if distinct and len(chosen) < request.replicas:
                chosen.append(broker)
        # With zones of unequal size, distinct zones may not yield enough replicas.
        chosen += [broker for broker in order if broker not in chosen][: request.replicas - len(chosen)]
        placed.append([broker.id for broker in chosen])
    return [placed[number % period] for number in range(request.count)]


def _replica_order(ring: Sequence[B], position: int) -> list[B]:
    """The brokers in the order in which one partition takes them.

    Leaders rotate. Followers start at a place that shifts with every round, so that a dead broker's
    leaderships move to many brokers and not to one.
    """
    others = len(ring) - 1
    leader = position % len(ring)
    followers = [ring[(position + 1 + step) % len(ring)] for step in range(others)]
    shift = position // len(ring) % others if others else 0
    return [ring[leader], *followers[shift:], *followers[:shift]]


def interleaved(brokers: Sequence[B]) -> list[B]:
    """The brokers ordered so that neighbours are in different zones, as far as possible."""
    zones: dict[str, list[B]] = {}
    for broker in sorted(brokers, key=lambda b: b.id):
        zones.setdefault(broker.zone, []).append(broker)
    rows = zip_longest(*(zones[zone] for zone in sorted(zones)))
    return [broker for row in rows for broker in row if broker is not None]


def fits(
    assignment: Sequence[Sequence[int]], brokers: Sequence[Broker], demoted: Collection[int] = ()
) -> bool:
    """Whether it uses only these brokers, each at most once per partition, in as many zones as possible.

    The first replica of a partition is its preferred leader, so it may not be on a demoted broker.
    """
    zone_of = {broker.id: broker.zone for broker in brokers}
    count = len(set(zone_of.values()))
    for replicas in set(map(tuple, assignment)):  # many partitions repeat a few lists
        if not replicas or len(set(replicas)) != len(replicas) or replicas[0] in demoted:
            return False
        if not all(BrokerId(replica) in zone_of for replica in replicas):
            return False
        zones = {zone_of[BrokerId(replica)] for replica in replicas}
        if len(zones) < min(count, len(replicas)):
            return False
    return True
