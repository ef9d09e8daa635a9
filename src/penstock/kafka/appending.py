"""Appending records to a partition without a transaction: for what may be there twice."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.refusals import check
from penstock.kafka.routing import LeaderOf
from penstock.wire.codes import MISSING, STALE_METADATA
from penstock.wire.compression import Compression
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.partitions import TopicPartition

PRODUCE_BY_NAME_LAST: Final = 12
TRIES_MAX: Final = 50  # while a new topic becomes known
TRY_SECONDS: Final = 0.1
ALL_IN_SYNC: Final = -1
LEADER: Final = 1


async def append(
    client: Client,
    partition: TopicPartition,
    rows: Sequence[tuple[bytes | None, bytes]],
    *,
    acks: int = ALL_IN_SYNC,
    tries: int = TRIES_MAX,
) -> None:
    """Acknowledged when this returns: by all replicas in sync, or by the leader alone."""
    now = int(time.time() * 1000)
    records = [Record(number, now, key, value) for number, (key, value) in enumerate(rows)]
    data = write(records, compression=Compression.LZ4)
    body: dict[str, Any] = {
        "TransactionalId": None, "Acks": acks, "TimeoutMs": 10_000,
        "TopicData": [
            {"Name": partition.topic, "PartitionData": [{"Index": partition.partition, "Records": data}]}
        ],
    }  # fmt: skip
    to = LeaderOf(*partition)
    for attempt in itertools.count(1):
        answer = await client.call("Produce", body, to=to, newest=PRODUCE_BY_NAME_LAST)
        said = answer["Responses"][0]["PartitionResponses"][0]
        if said["ErrorCode"] not in STALE_METADATA | MISSING or attempt >= tries:
            check("Produce", said["ErrorCode"], said.get("ErrorMessage"), f"partition {partition}")
            return
        await asyncio.sleep(TRY_SECONDS)
        await client.leaders([partition.topic], strict=False)
