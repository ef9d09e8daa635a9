"""Groups, logs and markers as real brokers tell them."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from penstock.kafka import commits, offsets, shares, topics
from penstock.kafka.client import Client
from penstock.kafka.commits import Committed
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.routing import group_coordinator
from penstock.model import offsetmap
from penstock.scale.kafka_source import KafkaLagSource
from penstock.scale.source import Position
from penstock.scale.values import GroupState, Log
from tests.ground.fleet import wait_for
from tests.ground.heard import topics_heard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as one:
        yield one


@pytest.fixture
def source(client: Client) -> KafkaLagSource:
    return KafkaLagSource(client)


async def topic_of(fleet: Fleet, client: Client, name: str, partitions: int = 2) -> str:
    all_done(await topics.create(client, [topics.NewTopic(name, partitions, 1)]))
    await topics_heard(fleet, name)
    return name


def filled(fleet: Fleet, topic: str, *counts: int) -> None:
    producer = Producer(fleet.client_config())
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_living_group_of_either_protocol(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str], protocol: str
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders")), unique("billing")
    filled(fleet, topic, 10, 5)
    wishes = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = Consumer(fleet.client_config(**wishes, enable_auto_commit=False))
    try:
        consumer.subscribe([topic])
        wait_for(lambda: consumer.poll(0.1) and len(consumer.assignment()) == 2, what="an assignment")
        consumer.commit(offsets=[Place(topic, 0, 7)], asynchronous=False)

        look = (await source.groups([group], share=False))[group]
    finally:
        consumer.close()

    assert look is not None
    assert (look.state, look.members) == (GroupState.STABLE, 1)
    assert look.positions == {topic: {0: Position(7)}}
    assert look.owners == {topic: {0: 0, 1: 0}}
    async with asyncio.timeout(60):  # the coordinator hears of the leaving when it does
        while (empty := (await source.groups([group], share=False))[group]) is None or empty.members:
            await asyncio.sleep(0.05)
    assert empty.state is GroupState.EMPTY
    assert empty.generation != look.generation


async def test_what_does_not_exist_is_left_out(source: KafkaLagSource, unique: Callable[[str], str]) -> None:
    group = unique("nobody")
    while await source.groups([group], share=False) == {group: None}:
        await asyncio.sleep(0.1)  # a fresh cluster has no coordinators yet, so nobody can tell
    assert await source.groups([group], share=False) == {}
    assert await source.groups([group], share=True) == {}
    assert await source.logs([unique("nothing")]) == {}


async def test_many_groups_are_asked_for_together(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic = await topic_of(fleet, client, unique("orders"), 1)
    groups = [unique("g") for _ in range(30)]
    for number, group in enumerate(groups):
        all_done(await commits.commit(client, group, {TopicPartition(topic, 0): Committed(number)}))

    looks = await source.groups([*groups, unique("nobody")], share=False)

    found = [look.positions[topic][0].offset for group in groups if (look := looks[group]) is not None]
    assert found == list(range(30))


async def test_the_parallel_consumers_offset_map_is_read(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("billing")
    text = offsetmap.encode(10, 60, [10, 30])  # two of fifty are unfinished
    all_done(await commits.commit(client, group, {TopicPartition(topic, 0): Committed(10, metadata=text)}))

    look = (await source.groups([group], share=False))[group]

    assert look is not None
    assert look.positions == {topic: {0: Position(10, beyond=48)}}


async def test_logs_follow_retention_growth_and_re_creation(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic = await topic_of(fleet, client, unique("orders"))
    filled(fleet, topic, 10, 5)
    all_done(await offsets.delete_before(client, {TopicPartition(topic, 0): 4}))
    first = await _ends(source, topic, [10, 5])
    all_done(await topics.add_partitions(client, {topic: 3}))
    await _ends(source, topic, [10, 5, 0])
    all_done(await topics.delete(client, [topic]))
    all_done(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))

    again = await _ends(source, topic, [0, 0])

    assert first.start.tolist() == [4, 0]
    assert again.incarnation != first.incarnation


async def test_transaction_markers_are_counted_and_nothing_else(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic = await topic_of(fleet, client, unique("orders"), 1)
    producer = Producer(fleet.client_config(transactional_id=unique("txn")))
    producer.init_transactions(30)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.commit_transaction(30)

    await _ends(source, topic, [4])  # record, marker, record, marker
    assert await source.markers(topic, 0, 0, 4) == 2
    assert await source.markers(topic, 0, 3, 4) == 1  # a group that committed 3 owes nothing
    assert await source.markers(topic, 0, 2, 3) == 0


async def _ends(source: KafkaLagSource, topic: str, wanted: list[int]) -> Log:
    """The log, once the brokers have the news; a marker counts once it is replicated."""
    log: Log | None = None
    try:
        async with asyncio.timeout(60):
            while True:
                log = (await source.logs([topic])).get(topic)
                if log is not None and log.end.tolist() == wanted:
                    return log
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{topic} ends at {log and log.end}, not at {wanted}") from None


async def test_a_share_groups_own_lag(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("sharers")
    filled(fleet, topic, 10)
    all_done(await shares.alter(client, group, {TopicPartition(topic, 0): 4}))

    look = (await source.groups([group], share=True))[group]

    assert look is not None
    assert look.state is GroupState.EMPTY
    assert look.positions[topic][0].offset == 4
    assert look.positions[topic][0].lag in (6, None)  # told once a leader knows the share state


async def test_a_share_group_with_members_tells_who_is_there(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("pool")
    filled(fleet, topic, 10)
    all_done(await shares.alter(client, group, {TopicPartition(topic, 0): 4}))
    members = [str(uuid.uuid4()) for _ in range(2)]

    async def beat(member: str, epoch: int) -> int:
        wish = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "SubscribedTopicNames": [topic]}
        answer = await client.call("ShareGroupHeartbeat", wish, to=group_coordinator(group))
        assert answer["ErrorCode"] == 0, answer
        return int(answer["MemberEpoch"])

    epochs = {member: await beat(member, 0) for member in members}
    async with asyncio.timeout(60):
        while (look := (await source.groups([group], share=True))[group]) is None or not look.owners:
            epochs = {member: await beat(member, epoch) for member, epoch in epochs.items()}
            await asyncio.sleep(0.1)
    for member in members:
        await beat(member, -1)

    assert (look.state, look.members) == (GroupState.STABLE, 2)
    assert look.positions[topic][0].offset == 4
