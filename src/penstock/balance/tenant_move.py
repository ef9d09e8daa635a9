"""A tenant's move to another cell, as moves of its partitions.

A partition's target depends only on its topic, its number and the target's brokers, and the remaining work
is read from the cluster. So a move keeps no state: any process can resume it by observing the cluster.
Topics created during the move are already in place, because the tenant's cell changes before its data moves
and the same function places new topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.balance.executing import Work
from penstock.balance.plan_document import PlannedMove
from penstock.balance.replica_placement import PlacementRequest, fits, spread
from penstock.model.errors.balance import MoveImpossible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.balance.cells import Broker
    from penstock.balance.executing import PartitionState, TopicPartition
    from penstock.model.ids import BrokerId, LogicalClusterId


@dataclass(frozen=True, slots=True)
class Target:
    """Which tenant moves, and to which brokers."""

    tenant: LogicalClusterId
    brokers: tuple[Broker, ...]  # that take new replicas
    demoted: frozenset[BrokerId] = frozenset()  # of those, the ones that lead nothing


def tenant_work(partitions: Mapping[TopicPartition, PartitionState], target: Target) -> Work:
    """The moves of all partitions of the tenant, by name; the ones that are in place stay as they are.

    Raises if a partition has more replicas than the target has brokers.
    """
    moves = [_move(key, state, target) for key, state in sorted(partitions.items())]
    needs = tuple(int(broker.id) for broker in target.brokers)
    return Work(moves, persistent=True, needs=needs, demoted=frozenset(map(int, target.demoted)))


def _move(key: TopicPartition, state: PartitionState, target: Target) -> PlannedMove:
    before = state.target
    inside = tuple(broker for broker in state.target if any(broker == b.id for b in target.brokers))
    if fits([state.target], target.brokers):
        after = state.target
    elif not state.reassigning and inside and len(state.target) > len(target.brokers):
        # A broker that lags behind the controller still lists old and new replicas of a reassignment.
        before, after = (), inside
    else:
        after = target_replicas(key, len(state.target), target)
        if not state.reassigning and inside:
            before = ()
    return PlannedMove(key[0], state.topic_id, key[1], before, after, bytes=state.size_bytes)


def target_replicas(key: TopicPartition, count: int, target: Target) -> tuple[int, ...]:
    topic, number = key
    request = PlacementRequest(target.tenant, topic, number, 1, count, target.brokers, demoted=target.demoted)
    placed = spread(request)
    if placed is None:
        raise MoveImpossible(partition=f"{topic}-{number}", replicas=count, brokers=len(target.brokers))
    return tuple(int(broker) for broker in placed[0])


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


def tenant_progress(partitions: Mapping[TopicPartition, PartitionState], target: Target) -> Progress:
    states = partitions.values()
    done = [each for each in states if not each.reassigning and fits([each.replicas], target.brokers)]
    moving = [each for each in states if each.reassigning]
    return Progress(
        partitions=len(partitions),
        partitions_done=len(done),
        bytes=sum(each.size_bytes for each in states),
        bytes_done=sum(each.size_bytes for each in done)
        + sum(min(each.size_bytes, each.copied_bytes) for each in moving),
    )
