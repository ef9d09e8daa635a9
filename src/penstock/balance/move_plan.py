"""Plans a tenant's move to another cell: which partition goes where, and the next step.

A partition's target depends only on its topic, its number and the target's brokers, and the
remaining work is read from the cluster. So a move keeps no state: any process can resume it by
observing the cluster. Topics created during the move are already in place, because the tenant's cell
changes before its data moves and the same function places new topics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.balance.replica_placement import PlacementRequest, fits, spread
from penstock.model.errors.balance import MoveImpossible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.balance.cells import Broker
    from penstock.model.ids import BrokerId, LogicalClusterId

TopicPartition = tuple[str, int]  # topic and number; compatible with the one of `penstock.kafka`

BATCH_PARTITIONS_MAX: Final = 50  # reassigned at once; metadata changes are load, too
BATCH_BROKER_BYTES_MAX: Final = 4 << 30  # that one broker receives or sends in one batch


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as the cluster has it."""

    partition: TopicPartition
    replicas: tuple[BrokerId, ...]
    leader: BrokerId | None
    size_bytes: int = 0
    reassigning: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """The reassignment of one partition."""

    partition: TopicPartition
    source: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    size_bytes: int

    @property
    def adding(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.target if broker not in self.source)


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Start these reassignments."""

    batch: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """All replicas are in place; these partitions are not led by their preferred leader yet."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    pass


Step = StartBatch | ElectLeaders | Wait | Done


@dataclass(frozen=True, slots=True)
class Bounds:
    partitions_max: int = BATCH_PARTITIONS_MAX
    broker_bytes_max: int = BATCH_BROKER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Target:
    """Which tenant moves, and to which brokers."""

    tenant: LogicalClusterId
    brokers: tuple[Broker, ...]
    bounds: Bounds = field(default_factory=Bounds)


def transfers(partitions: Sequence[PartitionState], target: Target) -> tuple[Transfer, ...]:
    """The reassignments still to make, by partition name.

    A partition already in the target cell, with its replicas in distinct zones, stays as it is.
    """
    return tuple(
        Transfer(each.partition, each.replicas, target_replicas(each, target), each.size_bytes)
        for each in sorted(partitions, key=lambda one: one.partition)
        if not fits([each.replicas], target.brokers)
    )


def target_replicas(state: PartitionState, target: Target) -> tuple[BrokerId, ...]:
    topic, number = state.partition
    count = len(state.replicas)
    placed = spread(PlacementRequest(target.tenant, topic, number, 1, count, target.brokers))
    if placed is None:
        raise MoveImpossible(
            partition=partition_name(state.partition), replicas=count, brokers=len(target.brokers)
        )
    return tuple(placed[0])


def next_batch(remaining: Sequence[Transfer], bounds: Bounds) -> tuple[Transfer, ...]:
    """As many transfers as the bounds allow. One that exceeds them by itself makes its own batch."""
    broker_bytes: Counter[BrokerId] = Counter()
    batch: list[Transfer] = []
    for each in remaining:
        if len(batch) == bounds.partitions_max:
            break
        involved = {*each.source[:1], *each.adding}  # the leader sends, new replicas receive
        if batch and any(broker_bytes[b] + each.size_bytes > bounds.broker_bytes_max for b in involved):
            continue
        for broker in involved:
            broker_bytes[broker] += each.size_bytes
        batch.append(each)
    return tuple(batch)


def next_step(partitions: Sequence[PartitionState], target: Target, alive: Collection[BrokerId]) -> Step:
    """What to do now, given the cluster as it is."""
    reassigning = [each.partition for each in partitions if each.reassigning]
    if reassigning:
        first = partition_name(reassigning[0])
        return Wait(f"{len(reassigning)} partitions are being copied, {first} among them")
    if remaining := transfers(partitions, target):
        dead = [broker.id for broker in target.brokers if broker.id not in alive]
        if dead:
            return Wait(f"broker {dead[0]} of the target cell is down")
        return StartBatch(next_batch(remaining, target.bounds))
    misled = tuple(each.partition for each in partitions if each.leader != each.replicas[0])
    if misled:
        return ElectLeaders(misled)
    return Done()


def straddles(state: PartitionState, target: Target) -> bool:
    """Whether some replicas are in the target cell and some are not.

    A reassignment that has just ended also looks like this to a broker that lags behind the controller.
    """
    inside = {broker.id for broker in target.brokers} & set(state.replicas)
    return bool(inside) and len(inside) < len(state.replicas)


def partition_name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is. Bytes are those of one replica; records written meanwhile do not count."""

    partitions: int
    partitions_done: int
    bytes: int
    bytes_done: int

    @property
    def ratio(self) -> float:
        """By bytes if there are any, else by partitions."""
        done, total = (self.bytes_done, self.bytes) if self.bytes else (self.partitions_done, self.partitions)
        return done / total if total else 1.0


def progress(
    partitions: Sequence[PartitionState], target: Target, copied: Mapping[TopicPartition, int] | None = None
) -> Progress:
    """`copied`: bytes that the slowest new replica has, for partitions being reassigned."""
    copied = copied or {}
    done = [each for each in partitions if not each.reassigning and fits([each.replicas], target.brokers)]
    moving = [each for each in partitions if each.reassigning]
    return Progress(
        partitions=len(partitions),
        partitions_done=len(done),
        bytes=sum(each.size_bytes for each in partitions),
        bytes_done=sum(each.size_bytes for each in done)
        + sum(min(each.size_bytes, copied.get(each.partition, 0)) for each in moving),
    )
