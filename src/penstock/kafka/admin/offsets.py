"""List the offsets of partitions (start, end, by timestamp), and delete records before an offset."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin.partitions import TopicPartition, call_leaders, with_fields
from penstock.kafka.connection import CALL_SECONDS
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.client import Client


class OffsetSpec(IntEnum):
    """Kafka's special timestamps of ListOffsets; any other int is a time in milliseconds."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


DELETE_TO_HIGH_WATERMARK: Final = -1
NOT_A_REPLICA: Final = -1


@dataclass(frozen=True, slots=True)
class Offset:
    offset: int  # −1: none (no record at or after that time; nothing tiered)
    timestamp_ms: int  # −1: not reported
    leader_epoch: int


async def list_offsets(
    client: Client,
    specs: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    replica: int = NOT_A_REPLICA,
    timeout: float = CALL_SECONDS,
) -> dict[TopicPartition, Offset | PenstockError]:
    """The offset for each spec (an `OffsetSpec` or a time in milliseconds), from the partition's leader.

    For a `replica` other than a client, LATEST is the end of the log and not the high watermark."""

    def body(partitions: list[TopicPartition]) -> dict[str, Any]:
        topics = with_fields({p: {"Timestamp": specs[p]} for p in partitions})
        limit = {"IsolationLevel": isolation, "TimeoutMs": int(timeout * 1000)}
        return {"ReplicaId": replica, "Topics": topics, **limit}

    responses = await call_leaders(client, "ListOffsets", list(specs), body, timeout=timeout)
    return {
        partition: response
        if isinstance(response, PenstockError)
        else Offset(response["Offset"], response["Timestamp"], response.get("LeaderEpoch", -1))
        for partition, response in responses.items()
    }


async def delete_before(
    client: Client, offsets: Mapping[TopicPartition, int], *, timeout: float = CALL_SECONDS
) -> dict[TopicPartition, int | PenstockError]:
    """Delete the records before these offsets; returns the new start of each log."""

    def body(partitions: list[TopicPartition]) -> dict[str, Any]:
        topics = with_fields({p: {"Offset": offsets[p]} for p in partitions})
        return {"Topics": topics, "TimeoutMs": int(timeout * 1000)}

    responses = await call_leaders(client, "DeleteRecords", list(offsets), body, timeout=timeout)
    return {
        partition: response if isinstance(response, PenstockError) else response["LowWatermark"]
        for partition, response in responses.items()
    }
