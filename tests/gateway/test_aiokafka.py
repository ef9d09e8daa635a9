"""aiokafka as two tenants with the same names: older protocol versions, encoded by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.harness.gateway import wait_for_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka
SECONDS = 60.0


def login(access: Access) -> dict[str, Any]:
    return {
        "bootstrap_servers": access.bootstrap.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": access.key,
        "sasl_plain_password": access.secret,
    }


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """A producer or consumer that is stopped in the end, even after a failed start."""
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def admin(access: Access) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(**login(access))
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def create(access: Access, *topics: str, partitions: int = 2) -> None:
    async with admin(access) as client:
        await client.create_topics([NewTopic(topic, partitions, 3) for topic in topics])
    for topic in topics:
        await wait_for_topic(access, topic, partitions)


async def produce(access: Access, topic: str, values: list[bytes], **config: Any) -> None:
    async with started(AIOKafkaProducer(**login(access), **config)) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in values])


async def consume(access: Access, topic: str, group: str, count: int, **config: Any) -> list[bytes]:
    settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    async with started(AIOKafkaConsumer(topic, **login(access), **settings)) as consumer:
        values = [(await consumer.getone()).value for _ in range(count)]
        await consumer.commit()
        return sorted(values)


async def test_two_tenants_produce_and_consume_under_the_same_names(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    await asyncio.gather(create(ada, topic), create(bob, topic))

    async with asyncio.timeout(SECONDS):
        for access, name in ((ada, b"ada"), (bob, b"bob")):
            await produce(access, topic, [name + b"-%d" % n for n in range(10)], enable_idempotence=True)
        read = {access.key: await consume(access, topic, group, 10) for access in (ada, bob)}

    assert read[ada.key] == sorted(b"ada-%d" % n for n in range(10))
    assert read[bob.key] == sorted(b"bob-%d" % n for n in range(10))


async def test_a_second_member_takes_over_half_of_its_tenants_group(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    await asyncio.gather(create(ada, topic), create(bob, topic))

    async with asyncio.timeout(SECONDS):
        members = [AIOKafkaConsumer(topic, group_id=group, **login(a)) for a in (ada, ada, bob)]
        async with started(members[0]), started(members[1]), started(members[2]):
            while [len(member.assignment()) for member in members] != [1, 1, 2]:
                await asyncio.sleep(0.02)
            partitions = [{p.partition for p in member.assignment()} for member in members]

    assert partitions[0] | partitions[1] == {0, 1}
    assert partitions[2] == {0, 1}
    assert {p.topic for member in members for p in member.assignment()} <= {topic}


async def test_a_transaction_commits_records_and_offsets_or_neither(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group, writer = unique("orders"), unique("readers"), unique("writer")
    await asyncio.gather(create(ada, topic, partitions=1), create(bob, topic, partitions=1))
    place = TopicPartition(topic, 0)

    async with asyncio.timeout(SECONDS):
        for access in (ada, bob):
            name = access.key.encode()
            async with started(AIOKafkaProducer(**login(access), transactional_id=writer)) as producer:
                async with producer.transaction():
                    await producer.send_and_wait(topic, name + b" stays")
                    await producer.send_offsets_to_transaction({place: 7}, group)
                await producer.begin_transaction()
                await producer.send_and_wait(topic, name + b" goes")
                await producer.abort_transaction()
                async with producer.transaction():
                    await producer.send_and_wait(topic, name + b" stays, too")
        values = {}
        for access in (ada, bob):
            reader = AIOKafkaConsumer(
                **login(access), group_id=group, isolation_level="read_committed", enable_auto_commit=False
            )
            async with started(reader):
                reader.assign([place])
                committed = await reader.committed(place)
                await reader.seek_to_beginning(place)
                values[access.key] = (committed, [(await reader.getone()).value for _ in range(2)])

    for access in (ada, bob):
        name = access.key.encode()
        assert values[access.key] == (7, [name + b" stays", name + b" stays, too"])


async def test_the_admin_client_sees_one_tenants_cluster(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    mine, theirs, group = unique("mine"), unique("theirs"), unique("readers")
    await asyncio.gather(create(ada, mine), create(bob, theirs))

    async with asyncio.timeout(SECONDS):
        for access, topic in ((ada, mine), (bob, theirs)):
            await produce(access, topic, [b"one"])
            await consume(access, topic, group + topic, 1)
        async with admin(ada) as client:
            topics = await client.list_topics()
            described = await client.describe_topics([mine, theirs])
            groups = {name for name, *_ in await client.list_consumer_groups()}
            offsets = await client.list_consumer_group_offsets(group + theirs)
            cluster = await client.describe_cluster()
            configs = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, mine)])
            await client.delete_topics([mine])
            while mine in await client.list_topics():
                await asyncio.sleep(0.02)
        async with admin(bob) as client:
            left = await client.list_topics()

    assert mine in topics
    assert theirs not in topics
    assert [(topic["error_code"], len(topic["partitions"])) for topic in described] == [(0, 2), (3, 0)]
    assert group + mine in groups
    assert group + theirs not in groups
    assert offsets == {}
    assert cluster["cluster_id"] == ada.tenant.id
    offered = {f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]}
    assert offered == set(ada.bootstrap.split(","))
    assert "lkc-" not in str((topics, described, groups, configs))
    assert theirs in left
