"""Groups of every kind on a real cluster, their commits and their lag."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from penstock.kafka.admin import group_offsets, groups, share_groups
from penstock.kafka.admin.group_offsets import CommittedOffset, Lag
from penstock.kafka.admin.groups import Group, GroupType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.routing import group_coordinator
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def consuming(fleet: Fleet, group: str, topic: str, **more: Any) -> AsyncIterator[Consumer]:
    """A librdkafka consumer that polls until the block ends."""
    config = fleet.client_config(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer = Consumer({**config, **more})
    consumer.subscribe([topic])
    ended = asyncio.Event()

    async def poll() -> None:
        while not ended.is_set():
            await asyncio.to_thread(consumer.poll, 0.1)

    task = asyncio.create_task(poll())
    try:
        yield consumer
    finally:
        ended.set()
        await task
        await asyncio.to_thread(consumer.close)


async def stable(client: Client, group: str, type_: GroupType) -> Group:
    async def settled() -> Group | None:
        described = (await groups.describe(client, [group], type_=type_))[group]
        if not isinstance(described, Group) or described.state != "Stable":
            return None
        return described if all(m.assignment or m.tasks for m in described.members) else None

    return await eventually(settled)


@pytest.mark.parametrize(
    ("protocol", "type_"), [("classic", GroupType.CLASSIC), ("consumer", GroupType.CONSUMER)]
)
async def test_an_active_consumer_group_is_listed_and_described(
    fleet: Fleet,
    client: Client,
    make_topic: MakeTopic,
    unique: Callable[[str], str],
    protocol: str,
    type_: GroupType,
) -> None:
    topic, group = await make_topic(partitions=2), unique("payments")

    async with consuming(fleet, group, topic, **{"group.protocol": protocol, "client.id": "till"}):
        described = await stable(client, group, type_)
        guessed = results_or_raise(await groups.describe(client, [group]))[group]
        listed = (await groups.list_all(client))[group]
        only = await groups.list_all(client, types=[type_], states=["Stable"])

    (member,) = described.members
    assert (described.id, described.type, guessed.type) == (group, type_, type_)
    assert (member.client_id, member.host) == ("till", "127.0.0.1")
    assert member.assignment == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert (listed.type, listed.protocol_type, listed.state) == (type_, "consumer", "Stable")
    assert group in only


async def test_share_and_streams_groups_are_listed_and_described(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, share, streams = await make_topic(), unique("share"), unique("streams")

    await heartbeats_of_a_share_member(client, share, topic)
    await heartbeats_of_a_streams_member(client, streams, topic)

    listed = await groups.list_all(client, types=[GroupType.SHARE, GroupType.STREAMS])
    described = results_or_raise(await groups.describe(client, [share, streams]))
    assert (listed[share].type, listed[streams].type) == (GroupType.SHARE, GroupType.STREAMS)
    assert (described[share].type, described[streams].type) == (GroupType.SHARE, GroupType.STREAMS)
    assert described[share].members[0].assignment == {TopicPartition(topic, 0)}
    assert dict(described[streams].members[0].tasks)["active"] == (("0", 0),)


async def heartbeats_of_a_share_member(client: Client, group: str, topic: str) -> None:
    member, epoch = str(uuid4()), 0

    async def assigned() -> bool:
        nonlocal epoch
        body = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "SubscribedTopicNames": [topic]}
        response = await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
        assert response["ErrorCode"] == 0, response
        epoch = response["MemberEpoch"]
        return bool(response["Assignment"] and response["Assignment"]["TopicPartitions"])

    await eventually(assigned)


async def heartbeats_of_a_streams_member(client: Client, group: str, topic: str) -> None:
    epoch = 0
    body: dict[str, Any] = {
        "GroupId": group,
        "MemberId": str(uuid4()),
        "RebalanceTimeoutMs": 60_000,
        "Topology": {"Epoch": 0, "Subtopologies": [{"SubtopologyId": "0", "SourceTopics": [topic]}]},
        "ActiveTasks": [],
        "StandbyTasks": [],
        "WarmupTasks": [],
        "ProcessId": "till",
    }

    async def assigned() -> bool:
        nonlocal epoch
        response = await client.call(
            "StreamsGroupHeartbeat", {**body, "MemberEpoch": epoch}, to=group_coordinator(group)
        )
        assert response["ErrorCode"] == 0, response
        epoch = response["MemberEpoch"]
        tasks = response["ActiveTasks"]
        if epoch > 0:
            for key in ("RebalanceTimeoutMs", "Topology", "ProcessId"):
                body.pop(key, None)
            body.update(
                RebalanceTimeoutMs=-1, ActiveTasks=None, StandbyTasks=None, WarmupTasks=None, ProcessId=None
            )
        return bool(tasks)

    await eventually(assigned)


async def test_commits_are_set_and_read_and_give_the_lag(
    client: Client, make_topic: MakeTopic, produce: Produce, unique: Callable[[str], str]
) -> None:
    topic, group = await make_topic(partitions=2), unique("payments")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await produce(topic, b"a", b"b", b"c", partition=0)
    await produce(topic, b"d", partition=1)

    results_or_raise(await group_offsets.commit(client, group, {first: CommittedOffset(1, 0, "half way")}))

    assert await group_offsets.committed(client, group) == {first: CommittedOffset(1, 0, "half way")}
    assert await group_offsets.committed(client, group, [second]) == {}
    assert await group_offsets.lag(client, group) == {first: Lag(1, 3, 0)}
    everywhere = results_or_raise(await group_offsets.lag(client, group, [first, second]))
    assert [lag.records for lag in everywhere.values()] == [2, 1]


async def test_an_empty_group_is_deleted_and_a_missing_one_named(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, group, missing = TopicPartition(await make_topic(), 0), unique("payments"), unique("payments")
    results_or_raise(await group_offsets.commit(client, group, {partition: CommittedOffset(0)}))

    deleted = await groups.delete(client, [group, missing])

    assert deleted[group] is None
    assert isinstance(deleted[missing], KafkaMissing)
    described = await groups.describe(client, [group])
    assert isinstance(described[group], KafkaMissing)


async def test_offsets_of_an_active_group_cannot_be_set(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, group = await make_topic(), unique("payments")

    async with consuming(fleet, group, topic):
        await stable(client, group, GroupType.CLASSIC)
        outcome = await group_offsets.commit(client, group, {TopicPartition(topic, 0): CommittedOffset(0)})
        deleted = await groups.delete(client, [group])

    assert [type(o) for o in (*outcome.values(), *deleted.values())] == [KafkaRefused, KafkaRefused]


async def test_the_start_offset_of_a_share_group_is_set_and_read(
    client: Client, make_topic: MakeTopic, produce: Produce, unique: Callable[[str], str]
) -> None:
    topic, group = await make_topic(), unique("share")
    partition = TopicPartition(topic, 0)
    await produce(topic, b"a", b"b", b"c")
    member = str(uuid4())
    body = {"GroupId": group, "MemberId": member, "MemberEpoch": 0, "SubscribedTopicNames": [topic]}
    await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
    leave = {"GroupId": group, "MemberId": member, "MemberEpoch": -1}
    await client.call("ShareGroupHeartbeat", leave, to=group_coordinator(group))

    altered = await share_groups.alter(client, group, {partition: 1})
    described = results_or_raise(await share_groups.describe(client, group, [partition]))[partition]

    assert altered == {partition: None}
    assert described.start == 1
