"""Where other proxies slip: order of answers, bytes inside bytes, addresses at a frame's end, paging."""

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
from penstock.wire.codes import Code
from penstock.wire.frames import Request, decode_response, encode_request
from penstock.wire.records import Record, write
from tests.ground.fleet import wait_for
from tests.ground.gateway import known_everywhere, raw_login, read_frame
from tests.ground.topics import leads

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.ground.fleet import Fleet
    from tests.ground.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0


def place(access: Access, broker: int = 0) -> tuple[str, int]:
    host, port = access.bootstrap.split(",")[broker].split(":")
    return host, int(port)


async def made(connection: Connection, topic: str, leader: int = 1, partitions: int = 1) -> UUID:
    """A topic of this connection's tenant whose partitions this broker leads."""
    replicas = [leader, *(n for n in (1, 2, 3) if n != leader)]
    assignments = [{"PartitionIndex": n, "BrokerIds": replicas} for n in range(partitions)]
    asked = {"Name": topic, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []}
    answer = await connection.call(
        "CreateTopics", {"Topics": [asked | {"Assignments": assignments}], "TimeoutMs": 10_000}
    )
    assert answer["Topics"][0]["ErrorCode"] == Code.NONE, answer
    seen: list[int] = []
    while seen != [leader] * partitions:
        found = await connection.call("Metadata", {"Topics": [{"Name": topic}]}, version=9)
        seen = [p["LeaderId"] for p in found["Topics"][0]["Partitions"]]
    if leader == 1:  # the broker at hand: it knows that it is to lead before it does
        while not await leads(connection, topic, [*range(partitions)]):
            await asyncio.sleep(0.02)
    identity: UUID = answer["Topics"][0]["TopicId"]
    return identity


def produce(topic: str, acks: int, value: bytes = b"x") -> dict[str, Any]:
    partition = {"Index": 0, "Records": write([Record(0, 0, None, value)])}
    topics = [{"Name": topic, "PartitionData": [partition]}]
    return {"TransactionalId": None, "Acks": acks, "TimeoutMs": 10_000, "TopicData": topics}


async def test_answers_come_in_the_order_of_requests_whoever_gives_them(
    ada: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        await made(connection, topic)
    reader, writer = await raw_login(ada)
    requests = [
        ("Produce", 9, produce(topic, 1)),  # forwarded
        ("ApiVersions", 3, {"ClientSoftwareName": "x", "ClientSoftwareVersion": "1"}),  # answered here
        ("Produce", 9, produce(topic, 0)),  # never answered
        ("DescribeQuorum", 2, {}),  # refused here
        ("Metadata", 12, {"Topics": None}),  # built anew
        (
            "DescribeConfigs",
            4,
            {"Resources": [{"ResourceType": 8, "ResourceName": "1"}]},
        ),  # refused by what it names
        ("ListGroups", 4, {}),
        ("CreateTopics", 7, {"Topics": [], "TimeoutMs": 1}),  # answered here, nothing being left to ask
        ("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["g"]}),
    ]
    frames = [
        encode_request(Request(api, version, number, "t", body))
        for number, (api, version, body) in enumerate(requests, 100)
    ]

    writer.write(b"".join(frames))
    answers = {}
    expected = [n for n in range(100, 100 + len(requests)) if n != 102]
    for number in expected:
        frame = await read_frame(reader)
        api, version, _ = requests[number - 100]
        answers[number] = decode_response(api, version, frame)

    assert [answer.correlation_id for answer in answers.values()] == expected
    assert answers[103].body["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    assert answers[105].body["Results"][0]["ErrorCode"] == Code.CLUSTER_AUTHORIZATION_FAILED
    writer.close()


async def test_an_unknown_version_of_apiversions_gets_the_oldest_answer(ada: Access) -> None:
    reader, writer = await asyncio.open_connection(*place(ada))

    writer.write(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = decode_response("ApiVersions", 0, await reader.readexactly(size))

    assert answer.body["ErrorCode"] == Code.UNSUPPORTED_VERSION
    offered = {api["ApiKey"]: api["MinVersion"] for api in answer.body["ApiKeys"]}
    assert offered[0] == 0  # librdkafka takes Produce 0–2 for compression (KAFKA-18659)
    writer.close()


def test_the_coordinator_knows_a_members_topics_by_their_own_names(
    ada: Access, fleet: Fleet, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    async def create() -> None:
        async with await Connection.open(*place(ada), ada.security()) as connection:
            await made(connection, topic)

    asyncio.run(create())
    asyncio.run(known_everywhere(ada, topic))
    consumer = Consumer(ada.client_config(group_id=group, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), what="an assignment")

    async def describe() -> dict[str, Any]:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            name = ada.prefix + group
            answer = await client.call("DescribeGroups", {"Groups": [name]}, to=group_coordinator(name))
            found: dict[str, Any] = answer["Groups"][0]
            return found

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


async def test_a_leader_volunteered_at_a_frames_end_is_the_gateways_address(
    ada: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with await Connection.open(*place(ada), ada.security()) as connection:
        await made(connection, topic, leader=2)

        answer = await connection.call("Produce", produce(topic, 1), version=10)
        while not answer["NodeEndpoints"]:  # it may not know the new leader yet
            answer = await connection.call("Produce", produce(topic, 1), version=10)

    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == Code.NOT_LEADER_OR_FOLLOWER
    offered = {place(ada, n) for n in range(3)}
    assert {(node["Host"], node["Port"]) for node in answer["NodeEndpoints"]} <= offered
    assert [node["NodeId"] for node in answer["NodeEndpoints"]] == [2]


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
        found: list[tuple[str, int]] = []
        cursor: dict[str, Any] | None = {"TopicName": names[0], "PartitionIndex": 0}
        while cursor is not None:
            body = {
                "Topics": [{"Name": name} for name in names],
                "ResponsePartitionLimit": 1,
                "Cursor": cursor,
            }
            answer = await connection.call("DescribeTopicPartitions", body, version=0)
            found += [
                (topic["Name"], partition["PartitionIndex"])
                for topic in answer["Topics"]
                for partition in topic["Partitions"]
            ]
            cursor = answer["NextCursor"]

    assert found == [(name, n) for name in names for n in range(2)]


async def test_a_topic_made_again_has_another_id_and_the_old_one_is_gone(
    ada: Access, unique: Callable[[str], str]
) -> None:
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
        answer = await connection.call("Metadata", by_id, version=12)

    assert first != second
    codes = {entry["TopicId"]: (entry["ErrorCode"], entry["Name"]) for entry in answer["Topics"]}
    assert codes == {first: (Code.UNKNOWN_TOPIC_ID, None), second: (Code.NONE, topic)}


async def test_a_name_that_cannot_be_is_told_so_in_kafkas_own_words(ada: Access) -> None:
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


def test_compressed_and_large_batches_pass_in_streams(
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
        read.append(message.value())
    consumer.close()

    assert read == values + values
    assert gateway.do(lambda: all(not s.requests.held_bytes for s in gateway.gateway.sessions.values()))
