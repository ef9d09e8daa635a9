"""Offsets of real partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import offsets
from penstock.kafka.offsets import At, Offset
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors.wire import KafkaMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka

TIME = int(time.time() * 1000) - 60_000  # within what brokers retain


async def test_every_place_of_a_log_is_found(client: Client, make_topic: MakeTopic, produce: Produce) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await produce(partition.topic, b"a", b"b", b"c", time_ms=TIME)
    places = [
        At.EARLIEST,
        At.LATEST,
        At.MAX_TIMESTAMP,
        At.EARLIEST_LOCAL,
        At.LATEST_TIERED,
        TIME + 1,
        TIME + 99,
    ]

    found = [all_done(await offsets.find(client, {partition: place}))[partition] for place in places]

    assert found == [
        Offset(0, -1, 0),
        Offset(3, -1, 0),
        Offset(2, TIME + 2, 0),
        Offset(0, -1, 0),
        Offset(-1, -1, -1),  # nothing is tiered
        Offset(1, TIME + 1, 0),
        Offset(-1, -1, -1),  # nothing so late
    ]


async def test_partitions_of_many_leaders_are_asked_at_once(
    client: Client, make_topic: MakeTopic, produce: Produce
) -> None:
    topic = await make_topic(replicas={0: [1], 1: [2], 2: [3]})
    await produce(topic, b"a", b"b", partition=1)

    found = await offsets.find(client, {TopicPartition(topic, i): At.LATEST for i in range(3)})

    assert [offset.offset for offset in all_done(found).values()] == [0, 2, 0]


async def test_the_head_of_a_log_is_cut_off(client: Client, make_topic: MakeTopic, produce: Produce) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await produce(partition.topic, b"a", b"b", b"c")

    cut = await offsets.delete_before(client, {partition: 2})
    rest = await offsets.delete_before(client, {partition: offsets.DELETE_TO_HIGH_WATERMARK})

    assert (cut, rest) == ({partition: 2}, {partition: 3})
    assert all_done(await offsets.find(client, {partition: At.EARLIEST}))[partition].offset == 3


async def test_a_missing_partition_has_its_own_error(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    there, missing = TopicPartition(await make_topic(), 0), TopicPartition(unique("orders"), 0)

    found = await offsets.find(client, {there: At.LATEST, missing: At.LATEST})

    assert found[there] == Offset(0, -1, 0)
    assert isinstance(found[missing], KafkaMissing)
