"""Move replicas between brokers, and elect leaders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.admin.partitions import (
    TopicPartition,
    listed,
    partition_errors,
    partition_responses,
    with_fields,
)
from penstock.kafka.broker_errors import check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import CONTROLLER
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An ongoing reassignment: the current replicas, and those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Election(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


async def alter(
    client: Client,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, PenstockError | None]:
    """Start moving each partition to these replicas; None cancels an ongoing reassignment."""
    topics = with_fields(
        {partition: {"Replicas": None if r is None else list(r)} for partition, r in targets.items()}
    )
    body: dict[str, Any] = {"Topics": topics, "TimeoutMs": int(timeout * 1000)}
    if not allow_replication_factor_change:
        body["AllowReplicationFactorChange"] = False
    api = "AlterPartitionReassignments"
    response = await client.call(api, body, to=CONTROLLER, timeout=timeout)
    check(api, response["ErrorCode"], response["ErrorMessage"])
    return partition_errors(api, partition_responses(response, "Responses"))


async def under_way(
    client: Client, partitions: Collection[TopicPartition] | None = None, *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, Reassignment]:
    """Ongoing reassignments, of these partitions or of all."""
    api = "ListPartitionReassignments"
    body = {"Topics": listed(partitions), "TimeoutMs": int(timeout * 1000)}
    response = await client.call(api, body, to=CONTROLLER, timeout=timeout)
    check(api, response["ErrorCode"], response["ErrorMessage"])
    return {
        key: Reassignment(tuple(p["Replicas"]), tuple(p["AddingReplicas"]), tuple(p["RemovingReplicas"]))
        for key, _, _, p in partition_responses(response)
    }


async def elect(
    client: Client,
    partitions: Collection[TopicPartition] | None,
    *,
    election: Election = Election.PREFERRED,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, bool | PenstockError]:
    """Elect leaders, for all partitions if None is given; False where the right replica led already."""
    topics = listed(partitions, "Topic", "Partitions")
    body = {"ElectionType": election, "TopicPartitions": topics, "TimeoutMs": int(timeout * 1000)}
    response = await client.call("ElectLeaders", body, to=CONTROLLER, timeout=timeout)
    check("ElectLeaders", response["ErrorCode"])
    results: dict[TopicPartition, bool | PenstockError] = {}
    for t in response["ReplicaElectionResults"]:
        for p in t["PartitionResult"]:
            key = TopicPartition(t["Topic"], p["PartitionId"])
            if p["ErrorCode"] == Code.ELECTION_NOT_NEEDED:
                results[key] = False
            else:
                code, message = p["ErrorCode"], p["ErrorMessage"]
                results[key] = outcome("ElectLeaders", code, message, f"partition {key}", True)
    return results
