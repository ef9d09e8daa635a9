"""Create, delete and describe topics, and add partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.errors import PenstockError

V = TypeVar("V")

BROKER_DEFAULT = -1  # for the number of partitions or the replication factor


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    # By partition, instead of the two counts.
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)
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
    """Create topics; returns the topic id or the error by name."""
    body = {
        "Topics": [_new(topic) for topic in topics],
        "TimeoutMs": int(timeout * 1000),
        "ValidateOnly": validate_only,
    }
    response = await client.call("CreateTopics", body, to=CONTROLLER, timeout=timeout)
    return {t["Name"]: _outcome("CreateTopics", t, t.get("TopicId", UUID(int=0))) for t in response["Topics"]}


async def delete(
    client: Client, names: Sequence[str] = (), *, ids: Sequence[UUID] = (), timeout: float = CALL_SECONDS
) -> dict[str | UUID, PenstockError | None]:
    """Delete topics by name or id; returns the error, if any, by name or id.

    An id deletes exactly that topic, never a later one with the same name."""

    def body(version: int) -> dict[str, Any]:
        if version < 6:
            return {"TopicNames": list(names), "TimeoutMs": int(timeout * 1000)}
        topics = [{"Name": name} for name in names] + [{"Name": None, "TopicId": i} for i in ids]
        return {"Topics": topics, "TimeoutMs": int(timeout * 1000)}

    response = await client.call("DeleteTopics", body, to=CONTROLLER, timeout=timeout)
    results: dict[str | UUID, PenstockError | None] = {}
    for t in response["Responses"]:
        key = t["TopicId"] if t.get("TopicId") in ids else t["Name"]
        results[key] = outcome("DeleteTopics", t["ErrorCode"], t.get("ErrorMessage"), f"topic {key}", None)
    return results


async def describe(
    client: Client,
    names: Sequence[str] | None = None,
    *,
    ids: Sequence[UUID] = (),
    timeout: float = CALL_SECONDS,
) -> dict[str, Topic | PenstockError]:
    """Topics by name (an unknown id by its text form); every topic if none is given."""
    topics = None
    if names is not None or ids:
        topics = [{"Name": name} for name in names or ()] + [{"Name": None, "TopicId": i} for i in ids]
    body = {"Topics": topics, "AllowAutoTopicCreation": False}
    response = await client.call("Metadata", body, timeout=timeout)
    results: dict[str, Topic | PenstockError] = {}
    for t in response["Topics"]:
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
    """Raise the number of partitions to `counts`; `replicas` places the new ones, if given."""
    placements = replicas or {}
    topics = [
        {
            "Name": name,
            "Count": count,
            "Assignments": [{"BrokerIds": list(r)} for r in placements[name]] if name in placements else None,
        }
        for name, count in counts.items()
    ]
    body = {"Topics": topics, "TimeoutMs": int(timeout * 1000)}
    response = await client.call("CreatePartitions", body, to=CONTROLLER, timeout=timeout)
    return {t["Name"]: _outcome("CreatePartitions", t, None) for t in response["Results"]}


def _outcome(api: str, t: Mapping[str, Any], result: V) -> V | PenstockError:
    return outcome(api, t["ErrorCode"], t["ErrorMessage"], f"topic {t['Name']!r}", result)


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
