"""Record batches against a real broker: it reads ours, and we read those of others."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.routing import LeaderOf
from penstock.wire.compression import Compression
from penstock.wire.records import Batch, ControlType, Record, batches, control, records, write
from tests.kafka.append_batch import append_batch
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka

NAMES = {c: c.name.lower() if c else "uncompressed" for c in Compression}


async def fetched(client: Client, topic: str) -> list[Batch]:
    topic_id = results_or_raise(await topics.describe(client, [topic]))[topic].id
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    body: dict[str, Any] = {
        "MaxWaitMs": 500,
        "MinBytes": 1,
        "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
    }
    response = await client.call("Fetch", body, to=LeaderOf(topic, 0))
    result = response["Responses"][0]["Partitions"][0]
    assert result["ErrorCode"] == 0, result
    return list(batches(result["Records"]))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Compression.NONE, Compression.GZIP),
        (Compression.GZIP, Compression.SNAPPY),
        (Compression.SNAPPY, Compression.LZ4),
        (Compression.LZ4, Compression.ZSTD),
        (Compression.ZSTD, Compression.SNAPPY),
    ],
)
async def test_the_broker_reads_and_recompresses_our_batches(
    client: Client, make_topic: MakeTopic, ours: Compression, theirs: Compression
) -> None:
    topic = await make_topic(configs={"compression.type": theirs.name.lower()})
    now = int(time.time() * 1000)
    rows = [Record(i, now + i, b"k%d" % i, b"penstock" * 5000, (("h", b"x"), ("n", None))) for i in range(5)]

    await append_batch(client, topic, 0, write(rows, compression=ours))
    (batch,) = await fetched(client, topic)

    assert batch.compression is theirs
    assert records(batch) == rows


async def test_batches_of_librdkafka_are_read(fleet: Fleet, client: Client, make_topic: MakeTopic) -> None:
    topic = await make_topic()

    def produce() -> None:
        for compression in Compression:
            name = NAMES[compression] if compression else "none"
            producer = Producer(fleet.client_config(compression_type=name))
            producer.produce(topic, b"penstock" * 1000, name.encode())
            assert producer.flush(60) == 0

    await asyncio.to_thread(produce)
    read = await fetched(client, topic)

    assert [batch.compression for batch in read] == list(Compression)
    assert [row.value for batch in read for row in records(batch)] == [b"penstock" * 1000] * len(Compression)


async def test_transaction_markers_are_read(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic = await make_topic()

    def produce() -> None:
        producer = Producer(fleet.client_config(transactional_id=unique("till")))
        producer.init_transactions(60)
        for ending in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce(topic, b"a")
            producer.flush(60)
            ending(60)

    await asyncio.to_thread(produce)

    async def marked() -> list[Batch] | None:  # markers are written after EndTxn is acknowledged
        batches = await fetched(client, topic)
        return batches if len(batches) == 4 else None

    marked_batches = await eventually(marked)

    assert [(b.is_transactional, b.is_control) for b in marked_batches] == [(True, False), (True, True)] * 2
    markers = [control(row) for batch in marked_batches if batch.is_control for row in records(batch)]
    assert [kind for kind, _ in filter(None, markers)] == [ControlType.COMMIT, ControlType.ABORT]
    assert len({batch.producer.id for batch in marked_batches}) == 1
