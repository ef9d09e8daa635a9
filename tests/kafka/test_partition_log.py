"""Only committed records are read, and only the latest producer of a transactional id can commit."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import offsets
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, bounds, ensure_topic, read
from penstock.model.errors.wire import KafkaRefused, OffsetOutOfRange, ProducerFenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


async def values(client: Client, partition: TopicPartition, count: int) -> list[bytes | None]:
    """The committed values, once there are `count`: markers are written after EndTxn is acknowledged."""
    position, values_read = 0, []
    while True:
        fetched = await read(client, partition, position, wait_ms=100)
        values_read += [record.value for record in fetched.records]
        if len(values_read) >= count and fetched.caught_up and fetched.position == position:
            return values_read
        position = fetched.position


async def test_records_of_transactions_are_read_back_in_order(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    producer = TransactionalProducer(client, unique("writer"))
    await producer.init()

    for batch in ((b"a", b"b"), (b"c",), (b"d",)):
        last = await producer.commit([ProducerRecord(partition, b"k", value) for value in batch])

    assert await values(client, partition, 4) == [b"a", b"b", b"c", b"d"]
    assert last == {partition: 5}  # with two markers in between
    assert await bounds(client, partition) == (0, 7)


async def test_only_the_latest_producer_can_commit(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("writer")
    old, new = TransactionalProducer(client, name), TransactionalProducer(client, name)
    await old.init()
    await old.commit([ProducerRecord(partition, b"k", b"old")])
    await new.init()

    with pytest.raises(ProducerFenced):
        await old.commit([ProducerRecord(partition, b"k", b"too late")])
    await new.commit([ProducerRecord(partition, b"k", b"new")])

    assert await values(client, partition, 2) == [b"old", b"new"]


async def test_an_open_transaction_of_the_predecessor_is_aborted_and_not_read(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("writer")
    old, new = TransactionalProducer(client, name), TransactionalProducer(client, name)
    await old.init()
    await old._add([partition])
    await old._produce(partition, [ProducerRecord(partition, b"k", b"never committed")])

    await new.init()
    await new.commit([ProducerRecord(partition, b"k", b"new")])

    assert await values(client, partition, 1) == [b"new"]


async def test_a_transaction_spans_several_partitions(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    one, two = TopicPartition(await make_topic(), 0), TopicPartition(await make_topic(), 0)
    producer = TransactionalProducer(client, unique("writer"))
    await producer.init()

    await producer.commit([ProducerRecord(one, b"k", b"1"), ProducerRecord(two, b"k", b"2")])

    assert (await values(client, one, 1), await values(client, two, 1)) == ([b"1"], [b"2"])


async def test_a_transaction_may_need_several_batches(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    producer = TransactionalProducer(client, unique("writer"))
    await producer.init()
    records = [ProducerRecord(partition, str(n).encode(), os.urandom(200_000)) for n in range(12)]

    last = await producer.commit(records)

    assert last == {partition: 11}
    assert await values(client, partition, len(records)) == [record.value for record in records]


async def test_a_deleted_offset_is_an_error_and_not_a_gap(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    producer = TransactionalProducer(client, unique("writer"))
    await producer.init()
    await producer.commit([ProducerRecord(partition, b"k", b"a"), ProducerRecord(partition, b"k", b"b")])
    await offsets.delete_before(client, {partition: 2})

    with pytest.raises(OffsetOutOfRange):
        await read(client, partition, 0)


async def test_a_topic_is_created_once_and_an_invalid_name_is_rejected(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("created")

    await asyncio.gather(*(ensure_topic(client, NewTopic(name, 1)) for _ in range(3)))

    assert await bounds(client, TopicPartition(name, 0)) == (0, 0)
    with pytest.raises(KafkaRefused):
        await ensure_topic(client, NewTopic("not/a/name", 1))
