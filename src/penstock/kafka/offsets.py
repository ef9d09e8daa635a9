"""Offsets of partitions: where logs begin and end, what lies at a time, cutting the head off."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.partitions import Said, TopicPartition, ask_leaders, by_topic
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.kafka.client import Client


class At(IntEnum):
    """Special places, as Kafka numbers them; any other int is a time in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


DELETE_TO_HIGH_WATERMARK: Final = -1
NOT_A_REPLICA: Final = -1


@dataclass(frozen=True, slots=True)
class Offset:
    offset: int  # −1: there is none (no such time; nothing tiered)
    timestamp_ms: int  # −1: not told
    leader_epoch: int


async def find(
    client: Client,
    places: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, Offset | PenstockError]:
    """The offset of each place (`At`, or a time), as the partition's leader knows it."""

    def body(partitions: list[TopicPartition]) -> dict[str, Any]:
        topics = [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": i, "Timestamp": places[TopicPartition(name, i)]} for i in indexes
                ],
            }
            for name, indexes in by_topic(partitions).items()
        ]
        return {
            "ReplicaId": NOT_A_REPLICA,
            "IsolationLevel": isolation,
            "Topics": topics,
            "TimeoutMs": int(timeout * 1000),
        }

    answers = await ask_leaders(client, "ListOffsets", list(places), body, _said, timeout=timeout)
    return {
        partition: answer
        if isinstance(answer, PenstockError)
        else Offset(answer["Offset"], answer["Timestamp"], answer.get("LeaderEpoch", -1))
        for partition, answer in answers.items()
    }


async def delete_before(
    client: Client, offsets: Mapping[TopicPartition, int], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, int | PenstockError]:
    """Delete records before these offsets; the new start of each log."""

    def body(partitions: list[TopicPartition]) -> dict[str, Any]:
        topics = [
            {
                "Name": name,
                "Partitions": [
                    {"PartitionIndex": i, "Offset": offsets[TopicPartition(name, i)]} for i in indexes
                ],
            }
            for name, indexes in by_topic(partitions).items()
        ]
        return {"Topics": topics, "TimeoutMs": int(timeout * 1000)}

    answers = await ask_leaders(client, "DeleteRecords", list(offsets), body, _said, timeout=timeout)
    return {
        partition: answer if isinstance(answer, PenstockError) else answer["LowWatermark"]
        for partition, answer in answers.items()
    }


def _said(answer: Mapping[str, Any]) -> Iterator[Said]:
    for t in answer["Topics"]:
        for p in t["Partitions"]:
            yield Said(TopicPartition(t["Name"], p["PartitionIndex"]), p["ErrorCode"], None, p)
