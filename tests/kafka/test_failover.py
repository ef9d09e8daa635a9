"""When a broker dies, calls find the new leader and the new coordinator."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import group_offsets, groups, offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.offsets import OffsetSpec
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.wire.records import Record, write
from tests.kafka.append_batch import append_batch
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


@pytest.fixture
def pair(make_fleet: Callable[..., Fleet]) -> Fleet:
    """Two brokers, one of which the test kills."""
    return make_fleet(brokers=2, controllers=1, zones=["a", "b"], config=SOON)


async def test_calls_succeed_after_the_death_of_the_broker_they_used(pair: Fleet) -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with Client(pair.bootstrap, pair.security()) as client:
        new = topics.NewTopic("orders", replicas={0: [1, 2], 1: [2, 1]})
        results_or_raise(await topics.create(client, [new]))
        for partition in (first, second):
            await append_batch(client, "orders", partition.partition, write([Record(0, 1, None, b"a")]))
        results_or_raise(
            await group_offsets.commit(
                client, "payments", {first: CommittedOffset(1), second: CommittedOffset(1)}
            )
        )
        listed = await groups.list_all(client)
        doomed = listed["payments"].coordinator

        async def copied() -> bool:
            topic = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
            return all(len(partition.isr) == 2 for partition in topic.partitions)

        await eventually(copied)
        await asyncio.to_thread(pair.kill, f"b{doomed}")

        latest = results_or_raise(
            await offsets.list_offsets(
                client, {first: OffsetSpec.LATEST, second: OffsetSpec.LATEST}, timeout=60
            )
        )
        committed = await group_offsets.committed(client, "payments", timeout=60)
        cluster = await client.cluster(refresh=True)

    assert {offset.offset for offset in latest.values()} == {1}
    assert {commit.offset for commit in committed.values()} == {1}
    assert list(cluster.nodes) == [3 - doomed]
