"""A gateway that takes over knows no topic ids yet, and clients must not get stuck on that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from penstock.kafka.admin import configs
from penstock.kafka.admin.configs import Resource, ResourceKind
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.routing import group_coordinator
from penstock.wire.error_codes import Code
from tests.gateway.test_attacks import one_record, open_as, produce_body
from tests.harness.gateway import new_access, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 60.0


async def written(access: Access, topic: str) -> UUID:
    """The id of a new topic with one record, led by the first broker."""
    requested = {
        "Name": topic,
        "NumPartitions": -1,
        "ReplicationFactor": -1,
        "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1, 2, 3]}],
        "Configs": [],
    }
    async with await open_as(access) as connection:
        made = await connection.call("CreateTopics", {"Topics": [requested], "TimeoutMs": 10_000})
        await wait_for_topic(access, topic)
        code = -1
        while code:  # a newly elected leader may refuse
            response = await connection.call(
                "Produce", produce_body({"Name": topic}, one_record()), version=9
            )
            code = response["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
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


async def test_a_fetch_session_with_an_unknown_id_is_opened_again(
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
            # As Java's consumers do: partitions of the session are not named again.
            named = topics if epoch == 0 else []
            response = await connection.call("Fetch", fetch(session, epoch, named), version=16)
            session = response["SessionId"]
            epoch = epoch + 1 if session else 0
            records = next(
                (p["Records"] for t in response["Responses"] for p in t["Partitions"] if p["Records"]), None
            )

    assert b"secret" in bytes(records)


async def test_a_share_session_with_an_unknown_id_gets_its_records(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    access = new_access()
    topic, group = unique("orders"), unique("readers")
    first = make_gateway(access).accesses[0]
    topic_id = await written(first, topic)
    async with Client(first.bootstrap, first.security()) as client:
        resource = Resource(ResourceKind.GROUP, group)
        results_or_raise(
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
            # A broker that has not received the setting yet lets the group start at the end.
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
            response = await connection.call("ShareFetch", body, version=1)
            assert response["ErrorCode"] == Code.NONE, response
            epoch += 1
            parts = [p for t in response["Responses"] for p in t["Partitions"]]
            codes += [p["ErrorCode"] for p in parts]
            records = next((p["Records"] for p in parts if p["Records"]), None)

    assert b"secret" in bytes(records)
    assert Code.UNKNOWN_TOPIC_ID not in codes


async def joined(access: Access, group: str, member: str, topic: str) -> None:
    """A member of the share group with an assignment."""
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
            response = await client.call("ShareGroupHeartbeat", body, to=group_coordinator(group))
            assert response["ErrorCode"] == Code.NONE, response
            epoch = response["MemberEpoch"]
            assigned = (response["Assignment"] or {}).get("TopicPartitions") or assigned
            await asyncio.sleep(0.05)
