"""A gateway that takes over from another knows none of its topics' ids: nobody may get stuck on that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from penstock.kafka import configs
from penstock.kafka.client import Client
from penstock.kafka.configs import Resource, ResourceKind
from penstock.kafka.outcomes import all_done
from penstock.kafka.routing import group_coordinator
from penstock.wire.codes import Code
from tests.gateway.test_attacks import one_record, open_as, produce_body
from tests.ground.gateway import known_everywhere, new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 60.0


async def written(access: Access, topic: str) -> UUID:
    """The id of a new topic with one record, led by the first broker."""
    asked = {
        "Name": topic,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}],
        "Configs": [],
    }
    async with await open_as(access) as connection:
        made = await connection.call("CreateTopics", {"Topics": [asked], "TimeoutMs": 10_000})
        await known_everywhere(access, topic)
        code = -1
        while code:  # a leader that has just become one may say no
            answer = await connection.call("Produce", produce_body({"Name": topic}, one_record()), version=9)
            code = answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    topic_id: UUID = made["Topics"][0]["TopicId"]
    return topic_id


def fetch(session: int, epoch: int, topics: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "MaxWaitMs": 100,
        "MinBytes": 1,
        "MaxBytes": 1 << 20,
        "SessionId": session,
        "SessionEpoch": epoch,
        "Topics": topics,
    }


async def test_a_fetch_session_that_began_with_an_id_yet_unknown_is_begun_again(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    access = new_access()
    topic_id = await written(make_gateway(access).accesses[0], unique("orders"))
    successor = make_gateway(access).accesses[0]
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    topics = [{"TopicId": topic_id, "Partitions": [partition]}]
    session, epoch, records = 0, 0, None

    async with asyncio.timeout(SECONDS), await open_as(successor) as connection:
        while not records:
            # As Java's consumers do: what is in the session is not named again.
            named = topics if epoch == 0 else []
            answer = await connection.call("Fetch", fetch(session, epoch, named), version=16)
            session = answer["SessionId"]
            epoch = epoch + 1 if session else 0
            records = next(
                (p["Records"] for t in answer["Responses"] for p in t["Partitions"] if p["Records"]), None
            )

    assert b"secret" in bytes(records)


async def test_a_share_session_that_begins_with_an_id_yet_unknown_gets_its_records(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    access = new_access()
    topic, group = unique("orders"), unique("readers")
    first = make_gateway(access).accesses[0]
    topic_id = await written(first, topic)
    async with Client(first.bootstrap, first.security()) as client:
        resource = Resource(ResourceKind.GROUP, group)
        all_done(
            await configs.alter(client, {resource: configs.changes({"share.auto.offset.reset": "earliest"})})
        )
    member = str(uuid4())
    successor = make_gateway(access).accesses[0]
    topics = [{"TopicId": topic_id, "Partitions": [{"PartitionIndex": 0, "AcknowledgementBatches": []}]}]

    async with (
        asyncio.timeout(SECONDS),
        await open_as(first) as writer,
        await open_as(successor) as connection,
    ):
        await joined(first, group, member, topic)
        codes, records, epoch = [], None, 0
        while not records:
            # A broker that has not heard of the setting yet lets the group begin at the end.
            await writer.call("Produce", produce_body({"Name": topic}, one_record()), version=9)
            body = {
                "GroupId": group,
                "MemberId": member,
                "ShareSessionEpoch": epoch,
                "MaxWaitMs": 200,
                "MinBytes": 1,
                "MaxBytes": 1 << 20,
                "MaxRecords": 10,
                "BatchSize": 10,
                "Topics": topics if epoch == 0 else [],
                "ForgottenTopicsData": [],
            }
            answer = await connection.call("ShareFetch", body, version=1)
            assert answer["ErrorCode"] == Code.NONE, answer
            epoch += 1
            parts = [p for t in answer["Responses"] for p in t["Partitions"]]
            codes += [p["ErrorCode"] for p in parts]
            records = next((p["Records"] for p in parts if p["Records"]), None)

    assert b"secret" in bytes(records)
    assert Code.UNKNOWN_TOPIC_ID not in codes


async def joined(access: Access, group: str, member: str, topic: str) -> None:
    """A member of the share group that has been assigned something."""
    async with Client(access.bootstrap, access.security()) as client:
        epoch, assigned = 0, None
        while not assigned:
            body = {
                "GroupId": group,
                "MemberId": member,
                "MemberEpoch": epoch,
                "RackId": None,
                "SubscribedTopicNames": [topic],
            }
            answer = await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
            assert answer["ErrorCode"] == Code.NONE, answer
            epoch = answer["MemberEpoch"]
            assigned = (answer["Assignment"] or {}).get("TopicPartitions") or assigned
            await asyncio.sleep(0.05)
