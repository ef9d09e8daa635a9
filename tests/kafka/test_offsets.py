"""Offsets of real partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import offsets
from penstock.kafka.admin.offsets import Offset, OffsetSpec
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors.wire import KafkaMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka

TIME = int(time.time() * 1000) - 60_000  # recent enough not to be deleted by retention


async def test_every_offset_spec_is_listed(client: Client, make_topic: MakeTopic, produce: Produce) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await produce(partition.topic, b"a", b"b", b"c", time_ms=TIME)
    specs = [
        OffsetSpec.EARLIEST,
        OffsetSpec.LATEST,
        OffsetSpec.MAX_TIMESTAMP,
        OffsetSpec.EARLIEST_LOCAL,
        OffsetSpec.LATEST_TIERED,
        TIME + 1,
        TIME + 99,
    ]

    listed = [
        results_or_raise(await offsets.list_offsets(client, {partition: spec}))[partition] for spec in specs
    ]

    assert listed == [
        Offset(0, -1, 0),
        Offset(3, -1, 0),
        Offset(2, TIME + 2, 0),
        Offset(0, -1, 0),
        Offset(-1, -1, -1),  # nothing is tiered
        Offset(1, TIME + 1, 0),
        Offset(-1, -1, -1),  # no record that late
    ]


async def test_partitions_with_different_leaders_are_listed_in_one_call(
    client: Client, make_topic: MakeTopic, produce: Produce
) -> None:
    topic = await make_topic(replicas={0: [1], 1: [2], 2: [3]})
    await produce(topic, b"a", b"b", partition=1)

    listed = await offsets.list_offsets(
        client, {TopicPartition(topic, i): OffsetSpec.LATEST for i in range(3)}
    )

    assert [offset.offset for offset in results_or_raise(listed).values()] == [0, 2, 0]


async def test_records_before_an_offset_are_deleted(
    client: Client, make_topic: MakeTopic, produce: Produce
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await produce(partition.topic, b"a", b"b", b"c")

    cut = await offsets.delete_before(client, {partition: 2})
    rest = await offsets.delete_before(client, {partition: offsets.DELETE_TO_HIGH_WATERMARK})

    assert (cut, rest) == ({partition: 2}, {partition: 3})
    listed = results_or_raise(await offsets.list_offsets(client, {partition: OffsetSpec.EARLIEST}))
    assert listed[partition].offset == 3


async def test_a_missing_partition_has_its_own_error(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    existing, missing = TopicPartition(await make_topic(), 0), TopicPartition(unique("orders"), 0)

    listed = await offsets.list_offsets(client, {existing: OffsetSpec.LATEST, missing: OffsetSpec.LATEST})

    assert listed[existing] == Offset(0, -1, 0)
    assert isinstance(listed[missing], KafkaMissing)
