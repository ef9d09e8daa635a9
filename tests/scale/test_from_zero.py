"""Scaling from zero on real Kafka when the group has no committed offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from confluent_kafka import Consumer, Producer

from penstock.kafka.admin import group_offsets, groups, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.scale.decision.values import GroupState
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.samples_topic import InMemoryJournal
from tests.harness.propagation import wait_for_topics
from tests.scale.fakes import FAST, reference, served, stub_for, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

INTERVAL = 0.5


def consume_all(config: dict[str, object], topic: str, count: int) -> None:
    """One replica that starts, reads what waits, commits and is stopped."""
    consumer = Consumer(config)
    consumer.subscribe([topic])
    read = 0
    while read < count:
        read += len(consumer.consume(num_messages=count, timeout=0.2))
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("named", [True, False], ids=["topic named", "any topic"])
async def test_after_the_offsets_expired_waiting_records_activate_the_workload_until_they_are_read(
    fleet: Fleet, unique: Callable[[str], str], named: bool
) -> None:
    topic, group = unique("orders"), unique("billing")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, 1, 1)]))
        await wait_for_topics(fleet, topic)
        results_or_raise(
            await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        )
        about = reference(group=group, topic=topic if named else "", minReplicas="0", **FAST)
        sources = {"default": KafkaLagSource(client)}
        async with (
            served(sources, InMemoryJournal(), {"default": INTERVAL}, listen="127.0.0.1:0") as up,
            grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
        ):
            stub = stub_for(channel)
            await stub.GetMetricSpec(about)
            (watch,) = up.verdicts.watches

            def active() -> bool | None:
                return watch.verdict.active if watch.verdict is not None else None

            await until(lambda: active() is False, "an idle workload")
            results_or_raise(await groups.delete(client, [group]))  # as when its offsets expire
            producer = Producer(fleet.client_config())
            for _ in range(20):
                producer.produce(topic, b"x")
            assert producer.flush(30) == 0

            await until(lambda: active() and watch.window.state is GroupState.DEAD, "an active workload")
            config = fleet.client_config(group_id=group, auto_offset_reset="earliest")
            await asyncio.to_thread(consume_all, config, topic, 20)
            await until(lambda: active() is False, "an idle workload again")

            assert watch.verdict is not None
            assert (watch.verdict.lag, watch.verdict.replicas) == (0, 1)
