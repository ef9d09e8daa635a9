"""Moving replicas, and electing leaders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.partitions import TopicPartition, by_topic
from penstock.kafka.refusals import check
from penstock.kafka.routing import CONTROLLER
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError


@dataclass(frozen=True, slots=True)
class Reassignment:
    """One under way: the replicas now, and which of them come and go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Election(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


async def alter(
    client: Client,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, PenstockError | None]:
    """Begin moving each partition to these replicas; None cancels what is under way."""
    topics = []
    for name, indexes in by_topic(wanted).items():
        partitions = []
        for index in indexes:
            replicas = wanted[TopicPartition(name, index)]
            partitions.append(
                {"PartitionIndex": index, "Replicas": None if replicas is None else list(replicas)}
            )
        topics.append({"Name": name, "Partitions": partitions})
    body: dict[str, Any] = {"Topics": topics, "TimeoutMs": int(timeout * 1000)}
    if not allow_replication_factor_change:
        body["AllowReplicationFactorChange"] = False
    api = "AlterPartitionReassignments"
    answer = await client.call(api, body, to=CONTROLLER, timeout=timeout)
    check(api, answer["ErrorCode"], answer["ErrorMessage"])
    results: dict[TopicPartition, PenstockError | None] = {}
    for t in answer["Responses"]:
        for p in t["Partitions"]:
            key = TopicPartition(t["Name"], p["PartitionIndex"])
            results[key] = outcome(api, p["ErrorCode"], p["ErrorMessage"], f"partition {key}", None)
    return results


async def under_way(
    client: Client, partitions: Collection[TopicPartition] | None = None, *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, Reassignment]:
    """Reassignments that have begun and not ended; of all partitions if none is given."""
    topics = None
    if partitions is not None:
        topics = [{"Name": name, "PartitionIndexes": ps} for name, ps in by_topic(partitions).items()]
    api = "ListPartitionReassignments"
    body = {"Topics": topics, "TimeoutMs": int(timeout * 1000)}
    answer = await client.call(api, body, to=CONTROLLER, timeout=timeout)
    check(api, answer["ErrorCode"], answer["ErrorMessage"])
    return {
        TopicPartition(t["Name"], p["PartitionIndex"]): Reassignment(
            tuple(p["Replicas"]), tuple(p["AddingReplicas"]), tuple(p["RemovingReplicas"])
        )
        for t in answer["Topics"]
        for p in t["Partitions"]
    }


async def elect(
    client: Client,
    partitions: Collection[TopicPartition] | None,
    *,
    election: Election = Election.PREFERRED,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, bool | PenstockError]:
    """True if a leader was elected, False if it led already; of every partition if None is given."""
    topics = None
    if partitions is not None:
        topics = [{"Topic": name, "Partitions": ps} for name, ps in by_topic(partitions).items()]
    body = {"ElectionType": election, "TopicPartitions": topics, "TimeoutMs": int(timeout * 1000)}
    answer = await client.call("ElectLeaders", body, to=CONTROLLER, timeout=timeout)
    check("ElectLeaders", answer["ErrorCode"])
    results: dict[TopicPartition, bool | PenstockError] = {}
    for t in answer["ReplicaElectionResults"]:
        for p in t["PartitionResult"]:
            key = TopicPartition(t["Topic"], p["PartitionId"])
            if p["ErrorCode"] == Code.ELECTION_NOT_NEEDED:
                results[key] = False
            else:
                said = (p["ErrorCode"], p["ErrorMessage"])
                results[key] = outcome("ElectLeaders", *said, f"partition {key}", True)
    return results
