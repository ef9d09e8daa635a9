"""Raw batches of partitions by topic id, from any of their replicas.

A topic id makes it certain that a topic which was deleted and created again is not taken for the old one.
From version 11 on, followers respond to consumers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.kafka.broker_errors import check
from penstock.kafka.routing import NodeWithId
from penstock.wire.error_codes import STALE_METADATA, Code

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from penstock.kafka.client import Client

FETCH_BYTES_MAX: Final = 16 << 20
PARTITION_BYTES_MAX: Final = 4 << 20
WAIT_MS: Final = 0
_GONE: Final = frozenset((Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INCONSISTENT_TOPIC_ID))
_LATER: Final = STALE_METADATA | {Code.OFFSET_NOT_AVAILABLE, Code.REPLICA_NOT_AVAILABLE}


class LogId(NamedTuple):
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class RawLog:
    data: bytes | memoryview
    high_watermark: int
    start: int
    out_of_range: bool = False


async def fetch(
    client: Client, broker: int, positions: Mapping[LogId, int], *, lane: str = "archive"
) -> dict[LogId, RawLog]:
    """One fetch from one broker. Partitions that it does not have are left out."""
    by_topic: dict[UUID, list[dict[str, Any]]] = {}
    for log, position in positions.items():
        row = {"Partition": log.partition, "FetchOffset": position, "PartitionMaxBytes": PARTITION_BYTES_MAX}
        by_topic.setdefault(log.topic_id, []).append(row)
    body: dict[str, Any] = {
        "MaxWaitMs": WAIT_MS, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX, "IsolationLevel": 0,
        "SessionEpoch": -1,
        "Topics": [{"TopicId": topic, "Partitions": rows} for topic, rows in by_topic.items()],
    }  # fmt: skip
    response = await client.call("Fetch", body, to=NodeWithId(broker), lane=lane, retry=False)
    check("Fetch", response["ErrorCode"], None, f"broker {broker}")
    results: dict[LogId, RawLog] = {}
    for topic in response["Responses"]:
        for row in topic["Partitions"]:
            log = LogId(topic["TopicId"], row["PartitionIndex"])
            code = row["ErrorCode"]
            if code == Code.OFFSET_OUT_OF_RANGE:
                results[log] = RawLog(b"", -1, -1, out_of_range=True)
            elif code in _GONE or code in _LATER:
                continue
            else:
                check("Fetch", code, None, f"partition {log.topic_id}-{log.partition}")
                results[log] = RawLog(row["Records"] or b"", row["HighWatermark"], row["LogStartOffset"])
    return results
