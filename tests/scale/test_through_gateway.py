"""The sampler as a tenant: through the gateway it reads only the tenant's groups, under their own names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.scale.decision.values import GroupState, Log
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.source import GroupSnapshot, Position
from tests.harness.fleet import wait_for
from tests.harness.gateway import Access, RunningGateway, new_access, start_gateway, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

TOPIC, GROUP = "orders", "billing"


@pytest.fixture(scope="module")
def gateway(fleet: Fleet) -> Iterator[RunningGateway]:
    running = start_gateway(fleet, [new_access(), new_access()])
    yield running
    running.stop()


async def with_topic(access: Access, records: int) -> Client:
    client = Client(access.bootstrap, access.security())
    results_or_raise(await topics.create(client, [topics.NewTopic(TOPIC, 1, 1)]))
    await wait_for_topic(access, TOPIC)
    producer = Producer(access.client_config())
    for number in range(records):
        producer.produce(TOPIC, str(number))
    assert producer.flush(30) == 0
    return client


async def test_two_tenants_with_the_same_group_name_see_their_own_lag(gateway: RunningGateway) -> None:
    ada, bob = gateway.accesses
    async with await with_topic(ada, 10) as ada_client, await with_topic(bob, 3) as bob_client:
        consumer = Consumer(
            ada.client_config(group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False)
        )
        try:
            consumer.subscribe([TOPIC])
            wait_for(lambda: consumer.poll(0.1) and len(consumer.assignment()) == 1, what="an assignment")
            consumer.commit(offsets=[ConfluentPartition(TOPIC, 0, 7)], asynchronous=False)

            snapshot = (await KafkaLagSource(ada_client).groups([GROUP], share=False))[GROUP]
            log = (await KafkaLagSource(ada_client).logs([TOPIC]))[TOPIC]
            while bob_groups := await KafkaLagSource(bob_client).groups([GROUP], share=False):
                assert not isinstance(bob_groups[GROUP], GroupSnapshot)
                await asyncio.sleep(0.1)  # there is no coordinator yet
            bob_log = (await KafkaLagSource(bob_client).logs([TOPIC]))[TOPIC]
        finally:
            consumer.close()

    assert isinstance(snapshot, GroupSnapshot)
    assert (snapshot.state, snapshot.members) == (GroupState.STABLE, 1)
    assert snapshot.positions == {TOPIC: {0: Position(7)}}
    assert snapshot.owners == {TOPIC: {0: 0}}
    assert isinstance(log, Log)
    assert list(log.end) == [10]
    assert bob_groups == {}
    assert isinstance(bob_log, Log)
    assert list(bob_log.end) == [3]
    assert log.topic_id != bob_log.topic_id
