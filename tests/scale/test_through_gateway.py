"""The collector as a tenant: what it sees through the gateway is the tenant's own, under its own names."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done
from penstock.scale.kafka_source import KafkaLagSource
from penstock.scale.source import Position
from penstock.scale.values import GroupState
from tests.ground.fleet import wait_for
from tests.ground.gateway import Access, RunningGateway, known_everywhere, new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka

TOPIC, GROUP = "orders", "billing"


@pytest.fixture(scope="module")
def gateway(fleet: Fleet) -> Iterator[RunningGateway]:
    running = start_gateway(fleet, [new_access(), new_access()])
    yield running
    running.stop()


async def with_topic(access: Access, records: int) -> Client:
    client = Client(access.bootstrap, access.security())
    all_done(await topics.create(client, [topics.NewTopic(TOPIC, 1, 1)]))
    await known_everywhere(access, TOPIC)
    producer = Producer(access.client_config())
    for number in range(records):
        producer.produce(TOPIC, str(number))
    assert producer.flush(30) == 0
    return client


async def test_two_tenants_with_one_group_name_each_see_their_own_lag(gateway: RunningGateway) -> None:
    ada, bob = gateway.accesses
    async with await with_topic(ada, 10) as hers, await with_topic(bob, 3) as his:
        consumer = Consumer(
            ada.client_config(group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False)
        )
        try:
            consumer.subscribe([TOPIC])
            wait_for(lambda: consumer.poll(0.1) and len(consumer.assignment()) == 1, what="an assignment")
            consumer.commit(offsets=[Place(TOPIC, 0, 7)], asynchronous=False)

            look = (await KafkaLagSource(hers).groups([GROUP], share=False))[GROUP]
            log = (await KafkaLagSource(hers).logs([TOPIC]))[TOPIC]
            while (his_groups := await KafkaLagSource(his).groups([GROUP], share=False)) == {GROUP: None}:
                await asyncio.sleep(0.1)  # its coordinator is not there yet
            his_log = (await KafkaLagSource(his).logs([TOPIC]))[TOPIC]
        finally:
            consumer.close()

    assert look is not None
    assert (look.state, look.members) == (GroupState.STABLE, 1)
    assert look.positions == {TOPIC: {0: Position(7)}}
    assert look.owners == {TOPIC: {0: 0}}
    assert log is not None
    assert list(log.end) == [10]
    assert his_groups == {}
    assert his_log is not None
    assert list(his_log.end) == [3]
    assert log.incarnation != his_log.incarnation
