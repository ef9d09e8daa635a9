"""Topics: create, delete, describe, add partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.outcomes import outcome
from penstock.kafka.routing import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

BROKER_DEFAULT = -1  # as partitions or replication factor


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)  # by partition; then no counts
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partition:
    index: int
    leader: int  # −1: none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    internal: bool
    partitions: tuple[Partition, ...]


async def create(
    client: Client, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout: float = CALL_SECONDS
) -> dict[str, UUID | PenstockError]:
    """Topic id, or why not, by name."""
    body = {
        "Topics": [_new(topic) for topic in topics],
        "TimeoutMs": int(timeout * 1000),
        "ValidateOnly": validate_only,
    }
    answer = await client.call("CreateTopics", body, to=CONTROLLER, timeout=timeout)
    return {
        t["Name"]: outcome(
            "CreateTopics",
            t["ErrorCode"],
            t["ErrorMessage"],
            f"topic {t['Name']!r}",
            t.get("TopicId", UUID(int=0)),
        )
        for t in answer["Topics"]
    }


async def delete(
    client: Client, names: Sequence[str] = (), *, ids: Sequence[UUID] = (), timeout: float = CALL_SECONDS
) -> dict[str | UUID, PenstockError | None]:
    """None, or why not, by what was given. An id deletes that very topic, never its successor."""

    def body(version: int) -> dict[str, Any]:
        if version < 6:
            return {"TopicNames": list(names), "TimeoutMs": int(timeout * 1000)}
        wanted = [{"Name": name} for name in names] + [{"Name": None, "TopicId": i} for i in ids]
        return {"Topics": wanted, "TimeoutMs": int(timeout * 1000)}

    answer = await client.call("DeleteTopics", body, to=CONTROLLER, timeout=timeout)
    results: dict[str | UUID, PenstockError | None] = {}
    for t in answer["Responses"]:
        what = t["TopicId"] if t.get("TopicId") in ids else t["Name"]
        results[what] = outcome("DeleteTopics", t["ErrorCode"], t.get("ErrorMessage"), f"topic {what}", None)
    return results


async def describe(
    client: Client,
    names: Sequence[str] | None = None,
    *,
    ids: Sequence[UUID] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, Topic | PenstockError]:
    """By name (by id, in text, for an id that does not exist); every topic if none is given."""
    wanted = None
    if names is not None or ids:
        wanted = [{"Name": name} for name in names or ()] + [{"Name": None, "TopicId": i} for i in ids]
    body = {"Topics": wanted, "AllowAutoTopicCreation": False}
    answer = await client.call("Metadata", body, timeout=timeout)
    results: dict[str, Topic | PenstockError] = {}
    for t in answer["Topics"]:
        name = t["Name"] if t["Name"] is not None else str(t["TopicId"])
        results[name] = outcome("Metadata", t["ErrorCode"], None, f"topic {name!r}", _topic(t, name))
    return results


async def add_partitions(
    client: Client,
    counts: Mapping[str, int],
    *,
    replicas: Mapping[str, Sequence[Sequence[int]]] | None = None,
    timeout: float = CALL_SECONDS,
) -> dict[str, PenstockError | None]:
    """Raise the number of partitions to `counts`; `replicas` places the new ones."""
    given = replicas or {}
    wanted = [
        {
            "Name": name,
            "Count": count,
            "Assignments": [{"BrokerIds": list(r)} for r in given[name]] if name in given else None,
        }
        for name, count in counts.items()
    ]
    body = {"Topics": wanted, "TimeoutMs": int(timeout * 1000)}
    answer = await client.call("CreatePartitions", body, to=CONTROLLER, timeout=timeout)
    return {
        t["Name"]: outcome(
            "CreatePartitions", t["ErrorCode"], t["ErrorMessage"], f"topic {t['Name']!r}", None
        )
        for t in answer["Results"]
    }


def _new(topic: NewTopic) -> dict[str, Any]:
    placed = [{"PartitionIndex": p, "BrokerIds": list(r)} for p, r in topic.replicas.items()]
    return {
        "Name": topic.name,
        "NumPartitions": BROKER_DEFAULT if placed else topic.partitions,
        "ReplicationFactor": BROKER_DEFAULT if placed else topic.replication_factor,
        "Assignments": placed,
        "Configs": [{"Name": name, "Value": value} for name, value in topic.configs.items()],
    }


def _topic(t: Mapping[str, Any], name: str) -> Topic:
    partitions = tuple(
        Partition(
            index=p["PartitionIndex"],
            leader=p["LeaderId"],
            leader_epoch=p.get("LeaderEpoch", -1),
            replicas=tuple(p["ReplicaNodes"]),
            isr=tuple(p["IsrNodes"]),
            offline=tuple(p.get("OfflineReplicas", ())),
        )
        for p in sorted(t["Partitions"], key=lambda p: p["PartitionIndex"])
    )
    return Topic(name, t.get("TopicId", UUID(int=0)), t["IsInternal"], partitions)
