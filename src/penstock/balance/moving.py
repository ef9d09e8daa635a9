"""A tenant's move to another cell: which partition goes where, and what to do next.

Where a partition goes depends on nothing but its topic, its number and the target's brokers, and
what is left to do is read off the cluster. So a move has no state of its own: whoever takes it over
looks, and goes on. Topics made meanwhile are placed by the same function (the tenant's cell is
changed before its data moves) and are in place already.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.gateway.placement import Ask, fits, spread
from penstock.model.errors.balance import MoveImpossible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.balance.cells import Broker
    from penstock.model.ids import BrokerId, LogicalClusterId

TopicPartition = tuple[str, int]  # the name and the number; that of `penstock.kafka` is one

BATCH_PARTITIONS_MAX: Final = 50  # of one tenant at once; metadata churn is load, too
BATCH_BROKER_BYTES_MAX: Final = 4 << 30  # that one broker is to receive or send in one batch


@dataclass(frozen=True, slots=True)
class Held:
    """One partition as the cluster has it."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    leader: BrokerId | None
    size_bytes: int = 0
    under_way: bool = False  # a reassignment of it has begun and not ended


@dataclass(frozen=True, slots=True)
class Transfer:
    """One partition's way."""

    partition: TopicPartition
    source: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    size_bytes: int

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.target if broker not in self.source)


@dataclass(frozen=True, slots=True)
class Begin:
    """Start these."""

    batch: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Elect:
    """Everything is in place; these are not led by their first replica yet."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    pass


Step = Begin | Elect | Wait | Done


@dataclass(frozen=True, slots=True)
class Bounds:
    partitions_max: int = BATCH_PARTITIONS_MAX
    broker_bytes_max: int = BATCH_BROKER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Target:
    """Whose move, and to which brokers."""

    tenant: LogicalClusterId
    brokers: tuple[Broker, ...]
    bounds: Bounds = field(default_factory=Bounds)


def transfers(held: Sequence[Held], target: Target) -> tuple[Transfer, ...]:
    """What is not where it belongs, in order of names. What lies in the target cell already, with
    its replicas in distinct zones, is left alone."""
    found = []
    for each in sorted(held, key=lambda one: one.partition):
        if fits([each.replicas], target.brokers):
            continue
        found.append(
            Transfer(each.partition, each.replicas, goal_of(each.partition, each, target), each.size_bytes)
        )
    return tuple(found)


def goal_of(partition: TopicPartition, held: Held, target: Target) -> tuple[BrokerId, ...]:
    ask = Ask(
        tenant=target.tenant,
        topic=partition[0],
        first=partition[1],
        count=1,
        replicas=len(held.replicas),
        brokers=target.brokers,
    )
    placed = spread(ask)
    if placed is None:
        raise MoveImpossible(
            partition=named(partition), replicas=len(held.replicas), brokers=len(target.brokers)
        )
    return tuple(placed[0])


def batches(wanted: Sequence[Transfer], bounds: Bounds) -> list[tuple[Transfer, ...]]:
    """The whole way in batches, none of which asks too much of one broker."""
    left = list(wanted)
    found = []
    while left:
        batch = first_batch(left, bounds)
        taken = {each.partition for each in batch}
        left = [each for each in left if each.partition not in taken]
        found.append(batch)
    return found


def first_batch(wanted: Sequence[Transfer], bounds: Bounds) -> tuple[Transfer, ...]:
    """As many as fit. One that is too large for any batch makes a batch of its own."""
    burden: Counter[BrokerId] = Counter()
    batch: list[Transfer] = []
    for each in wanted:
        if len(batch) == bounds.partitions_max:
            break
        touched = {*each.source[:1], *each.adding}  # the leader sends, the new ones receive
        if batch and any(burden[b] + each.size_bytes > bounds.broker_bytes_max for b in touched):
            continue
        for broker in touched:
            burden[broker] += each.size_bytes
        batch.append(each)
    return tuple(batch)


def next_step(held: Sequence[Held], target: Target, alive: Collection[BrokerId]) -> Step:
    """What to do now, from what the cluster looks like now."""
    under_way = [each.partition for each in held if each.under_way]
    if under_way:
        return Wait(f"{len(under_way)} partitions are being copied, {named(under_way[0])} among them")
    if wanted := transfers(held, target):
        dead = [broker.id for broker in target.brokers if broker.id not in alive]
        if dead:
            return Wait(f"broker {dead[0]} of the target cell is down")
        return Begin(first_batch(wanted, target.bounds))
    misled = tuple(each.partition for each in held if each.leader != each.replicas[0])
    if misled:
        return Elect(misled)
    return Done()


def straddles(held: Held, target: Target) -> bool:
    """Some replicas in the target cell, some not. So looks a move that has just ended, too, to a
    broker that has not heard of its end."""
    inside = {broker.id for broker in target.brokers} & set(held.replicas)
    return bool(inside) and len(inside) < len(held.replicas)


def named(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is. Bytes are of one replica each; what comes in meanwhile is not counted."""

    partitions: int
    partitions_done: int
    bytes: int
    bytes_done: int

    @property
    def ratio(self) -> float:
        """Of the bytes if there are any, else of the partitions."""
        done, all_of_it = (
            (self.bytes_done, self.bytes) if self.bytes else (self.partitions_done, self.partitions)
        )
        return done / all_of_it if all_of_it else 1.0


def progress(
    held: Sequence[Held], target: Target, copied: Mapping[TopicPartition, int] | None = None
) -> Progress:
    """`copied`: bytes that the slowest new replica has, of partitions under way."""
    copied = copied or {}
    done = [each for each in held if not each.under_way and fits([each.replicas], target.brokers)]
    moving = [each for each in held if each.under_way]
    return Progress(
        partitions=len(held),
        partitions_done=len(done),
        bytes=sum(each.size_bytes for each in held),
        bytes_done=sum(each.size_bytes for each in done)
        + sum(min(each.size_bytes, copied.get(each.partition, 0)) for each in moving),
    )
