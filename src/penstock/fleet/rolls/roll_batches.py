"""Which brokers may be down together, and how many. Pure.

A partition keeps accepting writes while its in-sync replicas number at least `min.insync.replicas`. Replicas
that a reassignment removes leave the ISR when it ends, so they do not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PartitionKey = tuple[str, int]  # topic and number
SHARE_OF_ZONE: Final = 10  # one of so many brokers of a zone at a time


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as the controller has it."""

    replicas: tuple[int, ...]
    isr: frozenset[int]
    leader: int | None
    min_isr: int = 1
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas that must be in sync after a restart: those that a reassignment does not change."""
        return tuple(b for b in self.replicas if b not in self.adding and b not in self.removing)

    @property
    def is_at_risk(self) -> bool:
        """Whether any stop of one of its brokers makes it unavailable for writes."""
        factor = len(self.replicas) - len(self.adding)
        return factor <= max(1, self.min_isr)

    def returns_to(self, broker: int) -> bool:
        """Whether this broker, its preferred leader, does not lead and could."""
        preferred = self.replicas[0] if self.replicas else None
        reassigned = bool(self.adding or self.removing)
        return preferred == broker and self.leader != broker and broker in self.isr and not reassigned


def at_risk(
    partitions: Mapping[PartitionKey, Partition], brokers: Iterable[int] | None = None
) -> tuple[PartitionKey, ...]:
    """Partitions that no order of restarts keeps available; of these brokers, or of all."""
    of = None if brokers is None else set(brokers)
    return tuple(
        sorted(
            key
            for key, partition in partitions.items()
            if partition.is_at_risk and (of is None or of & set(partition.replicas))
        )
    )


def harm_of(
    down: frozenset[int], partitions: Mapping[PartitionKey, Partition], ready: frozenset[int]
) -> dict[PartitionKey, str]:
    """What these brokers, if they were down, would take below its minimum of in-sync replicas."""
    harmed = {}
    for key, partition in partitions.items():
        if partition.is_at_risk or not down.intersection(partition.replicas):
            continue
        left = len((partition.isr & ready) - down - partition.removing)
        if left < partition.min_isr:
            harmed[key] = f"would have {left} in-sync replicas, its minimum is {partition.min_isr}"
    return harmed


def safe_batch(
    candidates: Sequence[int],
    limit: int,
    partitions: Mapping[PartitionKey, Partition],
    ready: frozenset[int],
    down: frozenset[int] = frozenset(),
    *,
    safe: Callable[[frozenset[int]], bool] = lambda _: True,
) -> tuple[int, ...]:
    """As many of the candidates, in their order, as may stop together beside those that are down."""
    of_broker: dict[int, dict[PartitionKey, Partition]] = {broker: {} for broker in candidates}
    for key, partition in partitions.items():
        for broker in partition.replicas:
            if broker in of_broker:
                of_broker[broker][key] = partition
    batch: tuple[int, ...] = ()
    for broker in candidates:
        if len(batch) >= limit:
            break
        together = frozenset((*batch, broker))
        if safe(together) and not harm_of(together | down, of_broker[broker], ready):
            batch = (*batch, broker)
    return batch


def zone_cap(
    *,
    zone_size: int,
    brokers: int,
    left: int,
    load: float,
    batch_seconds: float,
    seconds_left: float,
    load_max: float,
) -> int:
    """How many brokers of a zone may be down at once: at least one.

    A tenth of the zone; more if the roll would otherwise take too long; fewer if the remaining brokers could
    not carry the load, which is the sum of the brokers' loads.
    """
    cap = max(1, zone_size // SHARE_OF_ZONE)
    if seconds_left > 0 and math.isfinite(seconds_left) and batch_seconds > 0:
        cap = max(cap, math.ceil(left * batch_seconds / seconds_left))
    carried = brokers - math.ceil(load / load_max) if load_max > 0 else brokers
    return max(1, min(cap, zone_size, carried))
