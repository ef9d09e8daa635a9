"""Groups of every kind on a real cluster, their commits and their lag."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from penstock.kafka import commits, groups, shares
from penstock.kafka.commits import Committed, Lag
from penstock.kafka.groups import Group, GroupType
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.routing import group_coordinator
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.kafka.client import Client
    from tests.ground.fleet import Fleet
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
        found = (await groups.describe(client, [group], type_=type_))[group]
        ready = isinstance(found, Group) and found.state == "Stable"
        return found if ready and all(m.assignment or m.tasks for m in found.members) else None

    return await eventually(settled)


@pytest.mark.parametrize(
    ("protocol", "type_"), [("classic", GroupType.CLASSIC), ("consumer", GroupType.CONSUMER)]
)
async def test_a_living_consumer_group_is_listed_and_described(
    fleet: Fleet,
    client: Client,
    make_topic: MakeTopic,
    unique: Callable[[str], str],
    protocol: str,
    type_: GroupType,
) -> None:
    topic, group = await make_topic(partitions=2), unique("payments")

    async with consuming(fleet, group, topic, **{"group.protocol": protocol, "client.id": "till"}):
        found = await stable(client, group, type_)
        guessed = all_done(await groups.describe(client, [group]))[group]
        listed = (await groups.list_all(client))[group]
        only = await groups.list_all(client, types=[type_], states=["Stable"])

    (member,) = found.members
    assert (found.id, found.type, guessed.type) == (group, type_, type_)
    assert (member.client_id, member.host) == ("till", "127.0.0.1")
    assert member.assignment == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert (listed.type, listed.protocol_type, listed.state) == (type_, "consumer", "Stable")
    assert group in only


async def test_share_and_streams_groups_are_described_by_their_own_calls(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, share, streams = await make_topic(), unique("share"), unique("streams")

    await heartbeats_of_a_share_member(client, share, topic)
    await heartbeats_of_a_streams_member(client, streams, topic)

    listed = await groups.list_all(client, types=[GroupType.SHARE, GroupType.STREAMS])
    found = all_done(await groups.describe(client, [share, streams]))
    assert (listed[share].type, listed[streams].type) == (GroupType.SHARE, GroupType.STREAMS)
    assert (found[share].type, found[streams].type) == (GroupType.SHARE, GroupType.STREAMS)
    assert found[share].members[0].assignment == {TopicPartition(topic, 0)}
    assert dict(found[streams].members[0].tasks)["active"] == (("0", 0),)


async def heartbeats_of_a_share_member(client: Client, group: str, topic: str) -> None:
    member, epoch = str(uuid4()), 0

    async def assigned() -> bool:
        nonlocal epoch
        body = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "SubscribedTopicNames": [topic]}
        answer = await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
        assert answer["ErrorCode"] == 0, answer
        epoch = answer["MemberEpoch"]
        return bool(answer["Assignment"] and answer["Assignment"]["TopicPartitions"])

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
        answer = await client.call(
            "StreamsGroupHeartbeat", {**body, "MemberEpoch": epoch}, to=group_coordinator(group)
        )
        assert answer["ErrorCode"] == 0, answer
        epoch = answer["MemberEpoch"]
        tasks = answer["ActiveTasks"]
        if epoch > 0:
            for key in ("RebalanceTimeoutMs", "Topology", "ProcessId"):
                body.pop(key, None)
            body.update(
                RebalanceTimeoutMs=-1, ActiveTasks=None, StandbyTasks=None, WarmupTasks=None, ProcessId=None
            )
        return bool(tasks)

    await eventually(assigned)


async def test_commits_are_set_read_and_deleted_and_give_the_lag(
    client: Client, make_topic: MakeTopic, produce: Produce, unique: Callable[[str], str]
) -> None:
    topic, group = await make_topic(partitions=2), unique("payments")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await produce(topic, b"a", b"b", b"c", partition=0)
    await produce(topic, b"d", partition=1)

    all_done(await commits.commit(client, group, {first: Committed(1, 0, "half way")}))

    assert await commits.committed(client, group) == {first: Committed(1, 0, "half way")}
    assert await commits.committed(client, group, [second]) == {}
    assert await commits.lag(client, group) == {first: Lag(1, 3, 0)}
    everywhere = all_done(await commits.lag(client, group, [first, second]))
    assert [lag.records for lag in everywhere.values()] == [2, 1]
    assert await commits.forget(client, group, [first]) == {first: None}
    assert await commits.committed(client, group) == {}


async def test_an_empty_group_is_deleted_and_a_missing_one_named(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, group, missing = TopicPartition(await make_topic(), 0), unique("payments"), unique("payments")
    all_done(await commits.commit(client, group, {partition: Committed(0)}))

    deleted = await groups.delete(client, [group, missing])

    assert deleted[group] is None
    assert isinstance(deleted[missing], KafkaMissing)
    described = await groups.describe(client, [group])
    assert isinstance(described[group], KafkaMissing)


async def test_a_living_groups_commits_cannot_be_set_from_outside(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, group = await make_topic(), unique("payments")

    async with consuming(fleet, group, topic):
        await stable(client, group, GroupType.CLASSIC)
        outcome = await commits.commit(client, group, {TopicPartition(topic, 0): Committed(0)})
        deleted = await groups.delete(client, [group])

    assert [type(o) for o in (*outcome.values(), *deleted.values())] == [KafkaRefused, KafkaRefused]


async def test_a_share_groups_start_is_set_read_and_forgotten(
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

    altered = await shares.alter(client, group, {partition: 1})
    told = all_done(await shares.describe(client, group, [partition]))[partition]
    forgotten = await shares.forget(client, group, [topic])

    assert altered == {partition: None}
    assert told.start == 1
    assert forgotten == {topic: None}
    after = all_done(await shares.describe(client, group, [partition]))[partition]
    assert after.start == -1
