"""Append records to a partition without a transaction, where duplicates are harmless."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.broker_errors import check
from penstock.kafka.routing import LeaderOf
from penstock.wire.compression import Compression
from penstock.wire.error_codes import MISSING, STALE_METADATA
from penstock.wire.records import Header, Record, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client

PRODUCE_BY_NAME_LAST: Final = 12
ATTEMPTS_MAX: Final = 50  # while the metadata of a new topic spreads
PAUSE_SECONDS: Final = 0.1
Row = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, tuple[Header, ...]]
ALL_IN_SYNC: Final = -1  # values of `acks`
LEADER: Final = 1


async def append(
    client: Client,
    partition: TopicPartition,
    rows: Sequence[Row],
    *,
    acks: int = ALL_IN_SYNC,
    attempts_max: int = ATTEMPTS_MAX,
) -> None:
    """Append; the records are acknowledged when this returns, as `acks` demands."""
    now = int(time.time() * 1000)
    records = [Record(number, now, *row) for number, row in enumerate(rows)]
    data = write(records, compression=Compression.LZ4)
    body = produce_body(partition, data, acks=acks)
    to = LeaderOf(*partition)
    for attempt in itertools.count(1):
        response = await client.call("Produce", body, to=to, version_max=PRODUCE_BY_NAME_LAST)
        result = response["Responses"][0]["PartitionResponses"][0]
        if result["ErrorCode"] not in STALE_METADATA | MISSING or attempt >= attempts_max:
            check("Produce", result["ErrorCode"], result.get("ErrorMessage"), f"partition {partition}")
            return
        await asyncio.sleep(PAUSE_SECONDS)
        await client.leaders([partition.topic], strict=False)


def produce_body(
    partition: TopicPartition, data: bytes, *, transactional_id: str | None = None, acks: int = ALL_IN_SYNC
) -> dict[str, Any]:
    """The body of a Produce request that names its topic."""
    written = [{"Index": partition.partition, "Records": data}]
    topics = [{"Name": partition.topic, "PartitionData": written}]
    return {"TransactionalId": transactional_id, "Acks": acks, "TimeoutMs": 10_000, "TopicData": topics}
