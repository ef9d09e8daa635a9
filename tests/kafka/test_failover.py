"""A broker dies: calls find the new leader and the new coordinator by themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import commits, groups, offsets, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.offsets import At, Offset
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.wire.records import Record, write
from tests.kafka.appending import append
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka

SOON = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


@pytest.fixture
def pair(make_fleet: Callable[..., Fleet]) -> Fleet:
    """Two brokers, of which one may die."""
    return make_fleet(brokers=2, controllers=1, zones=["a", "b"], config=SOON)


async def test_calls_outlive_the_broker_they_were_talking_to(pair: Fleet) -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with Client(pair.bootstrap, pair.security()) as client:
        new = topics.NewTopic("orders", replicas={0: [1, 2], 1: [2, 1]})
        all_done(await topics.create(client, [new]))
        for partition in (first, second):
            await append(client, "orders", partition.partition, write([Record(0, 1, None, b"a")]))
        all_done(await commits.commit(client, "payments", {first: Committed(1), second: Committed(1)}))
        listed = await groups.list_all(client)
        doomed = listed["payments"].coordinator

        async def copied() -> bool:
            topic = all_done(await topics.describe(client, ["orders"]))["orders"]
            return all(len(partition.isr) == 2 for partition in topic.partitions)

        await eventually(copied)
        await asyncio.to_thread(pair.kill, f"b{doomed}")

        found = all_done(await offsets.find(client, {first: At.LATEST, second: At.LATEST}, timeout=60))
        committed = await commits.committed(client, "payments", timeout=60)
        cluster = await client.cluster(renew=True)

    assert {offset.offset for offset in found.values() if isinstance(offset, Offset)} == {1}
    assert {commit.offset for commit in committed.values()} == {1}
    assert list(cluster.nodes) == [3 - doomed]
