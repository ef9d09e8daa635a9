"""A partition as a log: what is committed counts, what is aborted does not, and an id has one holder."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import offsets
from penstock.kafka.log import Appender, Row, bounds, ensure_topic, read
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.topics import NewTopic
from penstock.model.errors.wire import KafkaRefused, PlaceLost, ProducerFenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


async def values(client: Client, partition: TopicPartition, count: int) -> list[bytes | None]:
    """All that counts, once so many do: a transaction's marker is written after its end was promised."""
    position, found = 0, []
    while True:
        chunk = await read(client, partition, position, wait_ms=100)
        found += [record.value for record in chunk.records]
        if len(found) >= count and chunk.caught_up and chunk.position == position:
            return found
        position = chunk.position


async def test_rows_of_a_transaction_are_read_back_in_order(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    appender = Appender(client, unique("writer"))
    await appender.begin()

    for batch in ((b"a", b"b"), (b"c",), (b"d",)):
        last = await appender.commit([Row(partition, b"k", value) for value in batch])

    assert await values(client, partition, 4) == [b"a", b"b", b"c", b"d"]
    assert last == {partition: 5}  # two markers lie between
    assert await bounds(client, partition) == (0, 7)


async def test_whoever_begins_last_is_the_only_one_that_can_commit(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("writer")
    old, new = Appender(client, name), Appender(client, name)
    await old.begin()
    await old.commit([Row(partition, b"k", b"old")])
    await new.begin()

    with pytest.raises(ProducerFenced):
        await old.commit([Row(partition, b"k", b"too late")])
    await new.commit([Row(partition, b"k", b"new")])

    assert await values(client, partition, 2) == [b"old", b"new"]


async def test_what_a_predecessor_left_open_is_aborted_and_not_read(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("writer")
    old, new = Appender(client, name), Appender(client, name)
    await old.begin()
    await old._add([partition])
    await old._produce(partition, [Row(partition, b"k", b"never committed")])

    await new.begin()
    await new.commit([Row(partition, b"k", b"new")])

    assert await values(client, partition, 1) == [b"new"]


async def test_several_partitions_change_together(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    one, two = TopicPartition(await make_topic(), 0), TopicPartition(await make_topic(), 0)
    appender = Appender(client, unique("writer"))
    await appender.begin()

    await appender.commit([Row(one, b"k", b"1"), Row(two, b"k", b"2")])

    assert (await values(client, one, 1), await values(client, two, 1)) == ([b"1"], [b"2"])


async def test_more_than_a_batch_holds_is_still_one_transaction(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    appender = Appender(client, unique("writer"))
    await appender.begin()
    rows = [Row(partition, str(n).encode(), os.urandom(200_000)) for n in range(12)]

    last = await appender.commit(rows)

    assert last == {partition: 11}
    assert await values(client, partition, len(rows)) == [row.value for row in rows]


async def test_a_place_that_is_gone_is_an_error_and_not_a_gap(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    appender = Appender(client, unique("writer"))
    await appender.begin()
    await appender.commit([Row(partition, b"k", b"a"), Row(partition, b"k", b"b")])
    await offsets.delete_before(client, {partition: 2})

    with pytest.raises(PlaceLost):
        await read(client, partition, 0)


async def test_a_topic_is_made_once_and_a_wrong_one_is_refused(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("made")

    await asyncio.gather(*(ensure_topic(client, NewTopic(name, 1)) for _ in range(3)))

    assert await bounds(client, TopicPartition(name, 0)) == (0, 0)
    with pytest.raises(KafkaRefused):
        await ensure_topic(client, NewTopic("not/a/name", 1))
