"""Groups, logs and transaction markers from real brokers."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from penstock.kafka.admin import acls, group_offsets, offsets, share_groups, topics, users
from penstock.kafka.admin.acls import Acl, Operation, ResourceType
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.routing import group_coordinator
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model import offset_map
from penstock.model.errors.wire import KafkaDenied
from penstock.scale.decision.values import GroupState, Log
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.source import GroupSnapshot, Position
from tests.harness.fleet import wait_for
from tests.harness.propagation import wait_for_topics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.model.errors import PenstockError
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as connected:
        yield connected


@pytest.fixture
def source(client: Client) -> KafkaLagSource:
    return KafkaLagSource(client)


async def topic_of(fleet: Fleet, client: Client, name: str, partitions: int = 2) -> str:
    results_or_raise(await topics.create(client, [topics.NewTopic(name, partitions, 1)]))
    await wait_for_topics(fleet, name)
    return name


def produce_records(fleet: Fleet, topic: str, *counts: int) -> None:
    producer = Producer(fleet.client_config())
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


async def group_in(
    source: KafkaLagSource, group: str, *, share: bool = False
) -> GroupSnapshot | PenstockError | None:
    return (await source.groups([group], share=share)).get(group)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_members_of_either_protocol(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str], protocol: str
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders")), unique("billing")
    produce_records(fleet, topic, 10, 5)
    config = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = Consumer(fleet.client_config(**config, enable_auto_commit=False))
    try:
        consumer.subscribe([topic])
        wait_for(lambda: consumer.poll(0.1) and len(consumer.assignment()) == 2, what="an assignment")
        consumer.commit(offsets=[ConfluentPartition(topic, 0, 7)], asynchronous=False)

        snapshot = (await source.groups([group], share=False))[group]
    finally:
        consumer.close()

    assert isinstance(snapshot, GroupSnapshot)
    assert (snapshot.state, snapshot.members) == (GroupState.STABLE, 1)
    assert snapshot.positions == {topic: {0: Position(7)}}
    assert snapshot.owners == {topic: {0: 0, 1: 0}}
    async with asyncio.timeout(60):  # the coordinator may process the leave later
        while not isinstance(empty := await group_in(source, group), GroupSnapshot) or empty.members:
            await asyncio.sleep(0.05)
    assert empty.state is GroupState.EMPTY
    assert empty.generation != snapshot.generation


async def test_missing_groups_and_topics_are_left_out(
    source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    group = unique("nobody")
    while await group_in(source, group) is not None:
        await asyncio.sleep(0.1)  # a new cluster has no coordinators yet
    assert await source.groups([group], share=False) == {}
    assert await source.groups([group], share=True) == {}
    assert await source.logs([unique("nothing")]) == {}


async def test_a_group_or_topic_that_may_not_be_described_is_denied_and_the_others_are_read(
    fleet: Fleet, client: Client, unique: Callable[[str], str]
) -> None:
    open_topic, secret_topic = [await topic_of(fleet, client, unique("orders"), 1) for _ in range(2)]
    open_group, secret_group, user = unique("open"), unique("secret"), unique("scaler")
    for group in (open_group, secret_group):
        at = {TopicPartition(topic, 0): CommittedOffset(0) for topic in (open_topic, secret_topic)}
        results_or_raise(await group_offsets.commit(client, group, at))
    results_or_raise(await users.alter(client, upsert=[users.Credential(user, "password")]))
    allowed = [(ResourceType.GROUP, open_group), (ResourceType.TOPIC, open_topic)]
    await acls.create(client, [Acl(f"User:{user}", Operation.DESCRIBE, kind, name) for kind, name in allowed])

    login = Login(user, "password", Mechanism.SCRAM_SHA_512)
    async with Client(fleet.bootstrap, Security(login, fleet.security().tls)) as limited:
        limited_source = KafkaLagSource(limited)
        async with asyncio.timeout(60):  # credentials and ACLs reach the brokers one after another
            while True:
                groups = await limited_source.groups([open_group, secret_group], share=False)
                logs = await limited_source.logs([open_topic, secret_topic])
                if isinstance(groups[open_group], GroupSnapshot) and isinstance(logs[open_topic], Log):
                    break
                await asyncio.sleep(0.1)

    assert isinstance(groups[secret_group], KafkaDenied)
    assert isinstance(logs[secret_topic], KafkaDenied)


async def test_many_groups_are_read_in_batches(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic = await topic_of(fleet, client, unique("orders"), 1)
    groups = [unique("g") for _ in range(30)]
    for number, group in enumerate(groups):
        results_or_raise(
            await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(number)})
        )

    snapshots = await source.groups([*groups, unique("nobody")], share=False)

    committed = [
        snapshot.positions[topic][0].offset
        for group in groups
        if isinstance(snapshot := snapshots[group], GroupSnapshot)
    ]
    assert committed == list(range(30))


async def test_the_parallel_consumers_offset_map_is_read(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("billing")
    text = offset_map.encode(10, 60, [10, 30])  # two of fifty are unfinished
    results_or_raise(
        await group_offsets.commit(
            client, group, {TopicPartition(topic, 0): CommittedOffset(10, metadata=text)}
        )
    )

    snapshot = (await source.groups([group], share=False))[group]

    assert isinstance(snapshot, GroupSnapshot)
    assert snapshot.positions == {topic: {0: Position(10, completed_beyond=48)}}


async def test_logs_follow_retention_growth_and_re_creation(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic = await topic_of(fleet, client, unique("orders"))
    produce_records(fleet, topic, 10, 5)
    results_or_raise(await offsets.delete_before(client, {TopicPartition(topic, 0): 4}))
    first = await _ends(source, topic, [10, 5])
    results_or_raise(await topics.add_partitions(client, {topic: 3}))
    await _ends(source, topic, [10, 5, 0])
    results_or_raise(await topics.delete(client, [topic]))
    results_or_raise(await topics.create(client, [topics.NewTopic(topic, 2, 1)]))

    again = await _ends(source, topic, [0, 0])

    assert first.start.tolist() == [4, 0]
    assert again.topic_id != first.topic_id


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
    assert await source.markers(topic, 0, 3, 4) == 1  # a group that committed 3 has no lag
    assert await source.markers(topic, 0, 2, 3) == 0


async def _ends(source: KafkaLagSource, topic: str, expected: list[int]) -> Log:
    """Waits until the brokers report these end offsets; a marker counts once it is replicated."""
    log: Log | PenstockError | None = None
    try:
        async with asyncio.timeout(60):
            while True:
                log = (await source.logs([topic])).get(topic)
                if isinstance(log, Log) and log.end.tolist() == expected:
                    return log
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{topic} is {log}, not at {expected}") from None


async def test_the_lag_of_a_share_group_is_kafkas(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("sharers")
    produce_records(fleet, topic, 10)
    results_or_raise(await share_groups.alter(client, group, {TopicPartition(topic, 0): 4}))

    snapshot = (await source.groups([group], share=True))[group]

    assert isinstance(snapshot, GroupSnapshot)
    assert snapshot.state is GroupState.EMPTY
    assert snapshot.positions[topic][0].offset == 4
    assert snapshot.positions[topic][0].lag in (6, None)  # known once a leader has loaded the share state


async def test_a_share_group_with_members_has_owners(
    fleet: Fleet, client: Client, source: KafkaLagSource, unique: Callable[[str], str]
) -> None:
    topic, group = await topic_of(fleet, client, unique("orders"), 1), unique("pool")
    produce_records(fleet, topic, 10)
    results_or_raise(await share_groups.alter(client, group, {TopicPartition(topic, 0): 4}))
    members = [str(uuid.uuid4()) for _ in range(2)]

    async def heartbeat(member: str, epoch: int) -> int:
        body = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "SubscribedTopicNames": [topic]}
        response = await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
        assert response["ErrorCode"] == 0, response
        return int(response["MemberEpoch"])

    epochs = {member: await heartbeat(member, 0) for member in members}
    async with asyncio.timeout(60):
        while not isinstance(snapshot := await group_in(source, group, share=True), GroupSnapshot) or not (
            snapshot.owners
        ):
            epochs = {member: await heartbeat(member, epoch) for member, epoch in epochs.items()}
            await asyncio.sleep(0.1)
    for member in members:
        await heartbeat(member, -1)

    assert (snapshot.state, snapshot.members) == (GroupState.STABLE, 2)
    assert snapshot.positions[topic][0].offset == 4
