"""Where other proxies fail: response order, embedded bytes, addresses at the end of a frame, paging."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from penstock.kafka.client import Client
from penstock.kafka.connection import Connection
from penstock.kafka.routing import group_coordinator
from penstock.wire.codec import decode
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from penstock.wire.records import Record, write
from tests.harness.fleet import wait_for
from tests.harness.gateway import raw_login, read_frame, wait_for_topic
from tests.harness.propagation import accepts_requests_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0


def place(access: Access, broker: int = 0) -> tuple[str, int]:
    host, port = access.bootstrap.split(",")[broker].split(":")
    return host, int(port)


async def made(connection: Connection, topic: str, leader: int = 1, partitions: int = 1) -> UUID:
    """A topic of this connection's tenant whose partitions this broker leads."""
    replicas = [leader, *(n for n in (1, 2, 3) if n != leader)]
    assignments = [{"PartitionIndex": n, "BrokerIds": replicas} for n in range(partitions)]
    requested = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    response = await connection.call(
        "CreateTopics", {"Topics": [requested | {"Assignments": assignments}], "TimeoutMs": 10_000}
    )
    assert response["Topics"][0]["ErrorCode"] == Code.NONE, response
    seen: list[int] = []
    while seen != [leader] * partitions:
        result = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
        seen = [p["LeaderId"] for p in result["Topics"][0]["Partitions"]]
    if leader == 1:  # this broker: it knows that it will lead before it does
        while not await accepts_requests_for(connection, topic, [*range(partitions)]):
            await asyncio.sleep(0.02)
    identity: UUID = response["Topics"][0]["TopicId"]
    return identity


def produce(topic: str, acks: int, value: bytes = b"x") -> dict[str, Any]:
    partition = {"Index": 0, "Records": write([Record(0, 0, None, value)])}
    topics = [{"Name": topic, "PartitionData": [partition]}]
    return {"TransactionalId": None, "Acks": acks, "TimeoutMs": 10_000, "TopicData": topics}


async def test_responses_come_in_request_order_from_broker_and_gateway(
    ada: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        await made(connection, topic)
    reader, writer = await raw_login(ada)
    requests = [
        ("Produce", 9, produce(topic, 1)),  # forwarded
        ("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}),  # local
        ("Produce", 9, produce(topic, 0)),  # no response
        ("DescribeQuorum", 2, {}),  # refused by the gateway
        ("Metadata", 12, {"Topics": None}),  # rebuilt
        (
            "DescribeConfigs",
            4,
            {"Resources": [{"ResourceType": 8, "ResourceName": "1"}]},
        ),  # refused for its name
        ("ListGroups", 4, {}),
        ("CreateTopics", 7, {"Topics": [], "TimeoutMs": 1}),  # local, as no topic is left
        ("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["g"]}),
    ]
    frames = [
        encode_request(Request(api, version, number, "t", body))
        for number, (api, version, body) in enumerate(requests, 100)
    ]

    writer.write(b"".join(frames))
    responses = {}
    expected = [n for n in range(100, 100 + len(requests)) if n != 102]
    for number in expected:
        frame = await read_frame(reader)
        api, version, _ = requests[number - 100]
        responses[number] = decode_response(api, version, frame)

    assert [response.correlation_id for response in responses.values()] == expected
    assert responses[103].body["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    assert responses[105].body["Results"][0]["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    writer.close()


async def test_an_unknown_version_of_apiversions_gets_version_0(ada: Access) -> None:
    reader, writer = await asyncio.open_connection(*place(ada))

    writer.write(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    response = decode_response("ApiVersions", 0, await reader.readexactly(size))

    assert response.body["ErrorCode"] == Code.UNSUPPORTED_VERSION
    offered = {api["ApiKey"]: api["MinVersion"] for api in response.body["ApiKeys"]}
    assert offered[0] == 0  # librdkafka takes Produce 0–2 for compression (KAFKA-18659)
    writer.close()


def test_the_coordinator_sees_a_members_topics_with_prefix(
    ada: Access, fleet: Fleet, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    async def create() -> None:
        async with await Connection.open(*place(ada), ada.security()) as connection:
            await made(connection, topic)

    asyncio.run(create())
    asyncio.run(wait_for_topic(ada, topic))
    consumer = Consumer(ada.client_config(group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), what="an assignment")

    async def describe() -> dict[str, Any]:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            name = ada.prefix + group
            response = await client.call("DescribeGroups", {"Groups": [name]}, to=group_coordinator(name))
            result: dict[str, Any] = response["Groups"][0]
            return result

    described = asyncio.run(describe())
    (member,) = described["Members"]
    subscribed = decode("ConsumerProtocolSubscription", 3, member["MemberMetadata"][2:])
    assigned = decode("ConsumerProtocolAssignment", 0, member["MemberAssignment"][2:])
    client = AdminClient(ada.client_config())
    seen = client.describe_consumer_groups([group])[group].result(SECONDS)
    consumer.close()

    assert subscribed["Topics"] == [ada.prefix + topic]
    assert [p["Topic"] for p in assigned["AssignedPartitions"]] == [ada.prefix + topic]
    assert [p.topic for m in seen.members for p in m.assignment.topic_partitions] == [topic]
    assert [m.host for m in seen.members] == ["/gateway"]


async def test_a_leader_endpoint_in_a_response_is_the_gateways_address(
    ada: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        await made(connection, topic, leader=2)

        response = await connection.call("Produce", produce(topic, 1), version=10)
        while not response["NodeEndpoints"]:  # it may not know the new leader yet
            response = await connection.call("Produce", produce(topic, 1), version=10)

    assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == Code.NOT_LEADER_OR_FOLLOWER
    offered = {place(ada, n) for n in range(3)}
    assert {(node["Host"], node["Port"]) for node in response["NodeEndpoints"]} <= offered
    assert [node["NodeId"] for node in response["NodeEndpoints"]] == [2]


async def test_paging_through_partitions_stays_within_the_tenants_topics(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    names = sorted(unique("paged") for _ in range(3))
    async with await Connection.open(*place(bob), bob.security()) as connection:
        for name in names:
            await made(connection, name)
    async with await Connection.open(*place(ada), ada.security()) as connection:
        for name in names:
            await made(connection, name, partitions=2)
        result: list[tuple[str, int]] = []
        cursor: dict[str, Any] | None = {"TopicName": names[0], "PartitionIndex": 0}
        while cursor is not None:
            body = {
                "Topics": [{"Name": name} for name in names],
                "ResponsePartitionLimit": 1,
                "Cursor": cursor,
            }
            response = await connection.call("DescribeTopicPartitions", body, version=0)
            result += [
                (topic["Name"], partition["PartitionIndex"])
                for topic in response["Topics"]
                for partition in topic["Partitions"]
            ]
            cursor = response["NextCursor"]

    assert result == [(name, n) for name in names for n in range(2)]


async def test_a_topic_created_again_has_another_id(ada: Access, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        first = await made(connection, topic)
        await connection.call("DeleteTopics", {"TopicNames": [topic], "TimeoutMs": 10_000}, version=5)
        while True:
            gone = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
            if gone["Topics"][0]["ErrorCode"] == Code.UNKNOWN_TOPIC_OR_PARTITION:
                break
        second = await made(connection, topic)

        by_id = {"Topics": [{"TopicId": one, "Name": None} for one in (first, second)]}
        response = await connection.call("Metadata", by_id, version=12)

    assert first != second
    codes = {entry["TopicId"]: (entry["ErrorCode"], entry["Name"]) for entry in response["Topics"]}
    assert codes == {first: (Code.UNKNOWN_TOPIC_ID, None), second: (Code.NONE, topic)}


async def test_an_invalid_name_gets_kafkas_own_error(ada: Access) -> None:
    async with await Connection.open(*place(ada), ada.security()) as connection:
        name = "x" * 239
        fetched = await connection.call(
            "ListOffsets",
            {
                "ReplicaId": -1,
                "Topics": [{"Name": name, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}],
            },
            version=7,
        )
        setting = {"Name": "leader.replication.throttled.replicas", "ConfigOperation": 0, "Value": "*"}
        resource = {"ResourceType": 2, "ResourceName": "t", "Configs": [setting]}
        altered = await connection.call("IncrementalAlterConfigs", {"Resources": [resource]}, version=1)

    assert fetched["Topics"][0]["Partitions"][0]["ErrorCode"] == Code.INVALID_TOPIC_EXCEPTION
    assert fetched["Topics"][0]["Name"] == name
    assert altered["Responses"][0]["ErrorCode"] == Code.INVALID_CONFIG


def test_compressed_and_large_batches_are_streamed(
    ada: Access, gateway: RunningGateway, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    from confluent_kafka import Producer

    async def create() -> None:
        async with await Connection.open(*place(ada), ada.security()) as connection:
            await made(connection, topic)

    asyncio.run(create())
    values = [bytes([n % 251]) * 200_000 for n in range(40)]
    for codec in ("none", "lz4"):
        producer = Producer(ada.client_config(compression_type=codec, linger_ms=20, batch_size=900_000))
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(SECONDS) == 0
    consumer = Consumer(ada.client_config(group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    read: list[bytes] = []
    while len(read) < 2 * len(values):
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        read.append(message.value() or b"")
    consumer.close()

    assert read == values + values
    assert gateway.do(
        lambda: all(not s.connection.requests.held_bytes for s in gateway.gateway.sessions.values())
    )
