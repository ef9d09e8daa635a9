"""Record batches that a real broker judged: it opens ours, and we open its own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.kafka import topics
from penstock.kafka.outcomes import all_done
from penstock.kafka.routing import LeaderOf
from penstock.wire.compression import Compression
from penstock.wire.records import Batch, ControlType, Record, batches, control, records, write
from tests.kafka.appending import append
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.ground.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka

NAMES = {c: c.name.lower() if c else "uncompressed" for c in Compression}


async def fetched(client: Client, topic: str) -> list[Batch]:
    topic_id = all_done(await topics.describe(client, [topic]))[topic].id
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    body: dict[str, Any] = {
        "MaxWaitMs": 500,
        "MinBytes": 1,
        "Topics": [{"TopicId": topic_id, "Partitions": [partition]}],
    }
    answer = await client.call("Fetch", body, to=LeaderOf(topic, 0))
    result = answer["Responses"][0]["Partitions"][0]
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
async def test_the_broker_opens_ours_and_packs_them_anew(
    client: Client, make_topic: MakeTopic, ours: Compression, theirs: Compression
) -> None:
    topic = await make_topic(configs={"compression.type": theirs.name.lower()})
    now = int(time.time() * 1000)
    rows = [Record(i, now + i, b"k%d" % i, b"penstock" * 5000, (("h", b"x"), ("n", None))) for i in range(5)]

    await append(client, topic, 0, write(rows, compression=ours))
    (batch,) = await fetched(client, topic)

    assert batch.compression is theirs
    assert records(batch) == rows


async def test_what_librdkafka_packs_is_opened(fleet: Fleet, client: Client, make_topic: MakeTopic) -> None:
    topic = await make_topic()

    def produce() -> None:
        for compression in Compression:
            name = NAMES[compression] if compression else "none"
            producer = Producer(fleet.client_config(compression_type=name))
            producer.produce(topic, b"penstock" * 1000, name.encode())
            assert producer.flush(60) == 0

    await asyncio.to_thread(produce)
    found = await fetched(client, topic)

    assert [batch.compression for batch in found] == list(Compression)
    assert [row.value for batch in found for row in records(batch)] == [b"penstock" * 1000] * len(Compression)


async def test_transactions_leave_their_markers(
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

    async def marked() -> list[Batch] | None:  # markers are written after the end was promised
        batches = await fetched(client, topic)
        return batches if len(batches) == 4 else None

    found = await eventually(marked)

    assert [(b.is_transactional, b.is_control) for b in found] == [(True, False), (True, True)] * 2
    told = [control(row) for batch in found if batch.is_control for row in records(batch)]
    assert [kind for kind, _ in filter(None, told)] == [ControlType.COMMIT, ControlType.ABORT]
    assert len({batch.producer.id for batch in found}) == 1
