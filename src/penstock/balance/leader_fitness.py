"""Compares the logs of replicas before one of them is elected.

Kafka elects any replica that is in sync, and in sync means the same end. A replica whose first segments are
gone, such as after a restart with a damaged disk, is in sync, too. Once it leads, its followers raise their
log starts to its own and delete the records (Kora §4.6.3, table 1, line 1). So nothing elects a replica whose
log starts later or has a later epoch than the leader's. Retention may cause a later start for a while, until
the leader checks it, too; then leadership returns a little later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penstock.audit.sweep import ANY_REPLICA, list_own_offsets
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.balance.executing import Observation
    from penstock.kafka.client import Client

    Key = tuple[str, int]


class ReplicaLog(NamedTuple):
    """Where one replica's log starts, and the leader epoch of its end."""

    start: int
    epoch: int


def unfit(
    seen: Observation, keys: Collection[Key], logs: Mapping[tuple[Key, int], ReplicaLog]
) -> dict[Key, str]:
    """Why partitions must not be led by their preferred leaders now; `logs` by partition and broker."""
    reasons = {}
    for key in keys:
        state = seen.partitions[key]
        if state.leader is None:
            continue  # without a leader there is nothing to compare with
        preferred = state.replicas[0]
        candidate, leader = logs.get((key, preferred)), logs.get((key, state.leader))
        name = f"{key[0]}-{key[1]}"
        if candidate is None or leader is None:
            silent = preferred if candidate is None else state.leader
            reasons[key] = f"{name}: broker {silent} does not report where its log starts"
        elif candidate.start > leader.start:
            reasons[key] = (
                f"{name}: the log of broker {preferred} lacks offsets {leader.start} to "
                f"{candidate.start - 1}, which the leader, broker {state.leader}, has"
            )
        elif candidate.epoch > leader.epoch:
            reasons[key] = (
                f"{name}: the log of broker {preferred} has epoch {candidate.epoch}, "
                f"the leader, broker {state.leader}, has {leader.epoch}"
            )
    return reasons


async def unfit_leaders(client: Client, seen: Observation, keys: Collection[Key]) -> dict[Key, str]:
    """`unfit` of these partitions as they are now. A broker that does not respond elects nothing."""
    brokers: dict[int, list[Key]] = {}
    for key in keys:
        state = seen.partitions[key]
        for broker in {state.replicas[0], state.leader} - {None}:
            assert broker is not None
            brokers.setdefault(broker, []).append(key)
    results = await asyncio.gather(*(_logs(client, broker, some) for broker, some in brokers.items()))
    logs = {(key, broker): log for broker, each in zip(brokers, results) for key, log in each.items()}
    return unfit(seen, keys, logs)


async def _logs(client: Client, broker: int, keys: Collection[Key]) -> dict[Key, ReplicaLog]:
    partitions = [TopicPartition(*key) for key in keys]
    try:
        # The start before the end: of two positions that may only rise, the lower one first.
        starts = await _own(client, broker, partitions, OffsetSpec.EARLIEST)
        ends = await _own(client, broker, partitions, OffsetSpec.LATEST)
    except PenstockError:
        return {}
    return {
        (each.topic, each.partition): ReplicaLog(starts[each][0], ends[each][1])
        for each in partitions
        if each in starts and each in ends
    }


async def _own(
    client: Client, broker: int, partitions: Collection[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, tuple[int, int]]:
    uncommitted = IsolationLevel.READ_UNCOMMITTED
    return await list_own_offsets(
        client, broker, partitions, spec, replica=ANY_REPLICA, isolation=uncommitted
    )
