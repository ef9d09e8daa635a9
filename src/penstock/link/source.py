"""Raw batches from the source, up to its high watermark.

A source that knows topic ids is asked by id: a topic that was deleted and created again under the same name
is another one, and its records never follow those of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.broker_errors import check
from penstock.kafka.routing import LeaderOf, NodeWithId
from penstock.shadow.epoch_history import EpochStart
from penstock.wire.error_codes import STALE_METADATA, Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client

FETCH_BY_NAME_LAST: Final = 12
FETCH_BY_ID_LAST: Final = 17
NO_ID: Final = UUID(int=0)
GONE: Final = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.INCONSISTENT_TOPIC_ID)
DEBUG_REPLICA: Final = -2  # ListOffsets of this replica id gives the end of the log, not the high watermark
FETCH_BYTES_MAX: Final = 8 << 20
PARTITION_BYTES_MAX: Final = 2 << 20
FETCH_WAIT_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Fetched:
    data: bytes | memoryview
    high_watermark: int
    start: int
    out_of_range: bool = False


async def fetch(
    client: Client,
    node: int,
    positions: Mapping[TopicPartition, int],
    *,
    ids: Mapping[str, UUID] | None = None,
    wait_ms: int = FETCH_WAIT_MS,
    lane: str = "mirror",
) -> dict[TopicPartition, Fetched]:
    """One fetch from one broker; partitions that it does not lead any more are left out.

    With `ids` of all topics they are fetched by id, which the caller has from this source."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in positions:
        by_topic.setdefault(partition.topic, []).append(partition)
    by_id = ids is not None and all(ids.get(topic, NO_ID) != NO_ID for topic in by_topic)
    names = {ids[topic]: topic for topic in by_topic} if ids is not None and by_id else {}
    topics = [
        {
            "Topic": topic,
            "TopicId": ids[topic] if ids is not None and by_id else NO_ID,
            "Partitions": [
                {
                    "Partition": p.partition,
                    "FetchOffset": positions[p],
                    "PartitionMaxBytes": PARTITION_BYTES_MAX,
                }
                for p in partitions
            ],
        }
        for topic, partitions in by_topic.items()
    ]
    body: dict[str, Any] = {
        "ReplicaId": -1, "MaxWaitMs": wait_ms, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX,
        "IsolationLevel": 0, "SessionEpoch": -1, "Topics": topics,
    }  # fmt: skip
    last = FETCH_BY_ID_LAST if by_id else FETCH_BY_NAME_LAST
    response = await client.call("Fetch", body, to=NodeWithId(node), version_max=last, lane=lane, retry=False)
    check("Fetch", response.get("ErrorCode", 0), None, f"broker {node}")
    results: dict[TopicPartition, Fetched] = {}
    for topic in response["Responses"]:
        for row in topic["Partitions"]:
            partition = TopicPartition(
                names[topic["TopicId"]] if by_id else topic["Topic"], row["PartitionIndex"]
            )
            code = row["ErrorCode"]
            if code == Code.OFFSET_OUT_OF_RANGE:
                results[partition] = Fetched(b"", -1, -1, out_of_range=True)
            elif code in STALE_METADATA or code in GONE:
                continue
            else:
                check("Fetch", code, None, f"partition {partition}")
                results[partition] = Fetched(
                    row["Records"] or b"", row["HighWatermark"], row["LogStartOffset"]
                )
    return results


async def log_ends(client: Client, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
    """The end of each leader's log, above its high watermark too; None while a transaction is open."""
    latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
    ends = results_or_raise(await list_offsets(client, latest, replica=DEBUG_REPLICA))
    stable = results_or_raise(await list_offsets(client, latest, isolation=IsolationLevel.READ_COMMITTED))
    return {p: ends[p].offset if stable[p].offset >= ends[p].offset else None for p in partitions}


async def log_range(client: Client, partition: TopicPartition) -> tuple[int, int]:
    """Log start and high watermark."""
    offsets = []
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        results = results_or_raise(await list_offsets(client, {partition: spec}))
        offsets.append(results[partition].offset)
    return offsets[0], offsets[1]


async def epoch_end(client: Client, partition: TopicPartition, epoch: int) -> EpochStart:
    """Where the source's log of this leader epoch ends."""
    requested = {"Partition": partition.partition, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}
    body = {"ReplicaId": -1, "Topics": [{"Topic": partition.topic, "Partitions": [requested]}]}
    response = await client.call("OffsetForLeaderEpoch", body, to=LeaderOf(*partition))
    row = response["Topics"][0]["Partitions"][0]
    check("OffsetForLeaderEpoch", row["ErrorCode"], None, f"partition {partition}")
    return EpochStart(row["LeaderEpoch"], row["EndOffset"])
