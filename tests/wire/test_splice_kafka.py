"""Splicing between real clients and real brokers: both accept the rewritten frames."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka import KafkaConsumer, KafkaProducer
from penstock.kafka.connection import Connection
from penstock.wire.records import Record, batches, records, write
from penstock.wire.splice import Limits
from tests.harness.fleet import wait_for
from tests.harness.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka
# Characters of names whose length has one varint byte without the prefix, and one or two with it.
LONG = {"short": 0, "just one byte": 90, "two bytes": 180}


@pytest.fixture(params=[0, 32 * 1024], ids=["everything streamed", "as in service"])
def relay(fleet: Fleet, request: pytest.FixtureRequest, unique: Callable[[str], str]) -> Iterator[Relay]:
    prefix = f"lkc-{unique('')[1:7]}_"
    brokers = {}
    for node in fleet.brokers:
        host, _, port = addresses(fleet)[node.spec.id].rpartition(":")
        brokers[node.spec.id] = (host, int(port))
    with Relay(brokers, prefix.encode(), Limits(whole_bytes_max=request.param)) as relay:
        yield relay
    assert relay.failures == []


def addresses(fleet: Fleet) -> dict[int, str]:
    metadata = AdminClient(fleet.client_config()).list_topics(timeout=30)
    return {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}


def created(fleet: Fleet, name: str, partitions: int = 2, through: Relay | None = None) -> None:
    """Create a topic by a client of the relay, or of the brokers, and wait until every broker knows it."""
    address = {} if through is None else {"bootstrap_servers": through.bootstrap}
    admin = AdminClient(fleet.client_config(**address))
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(timeout=30)
    fleet.wait_for_leaders(name if through is None else through.prefix.decode() + name, partitions)


def test_a_tenant_produces_and_consumes_in_a_group_and_sees_only_its_topics(
    fleet: Fleet, relay: Relay, unique: Callable[[str], str]
) -> None:
    topic, foreign = unique("orders"), unique("foreign")
    created(fleet, foreign)
    through = fleet.client_config(bootstrap_servers=relay.bootstrap)
    created(fleet, topic, through=relay)
    producer = Producer({**through, "linger.ms": 5})
    values = [bytes((i % 256,)) * size for i, size in enumerate([1, 100, 20_000, 40_000, 200_000] * 20)]
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(60) == 0

    got = consumed(through, topic, unique("group"), len(values))

    assert sorted(got) == sorted(values)
    assert set(AdminClient(through).list_topics(timeout=30).topics) == {topic}
    assert relay.prefix.decode() + topic in AdminClient(fleet.client_config()).list_topics(timeout=30).topics


def test_kafka_python_produces_and_consumes_in_a_group(
    fleet: Fleet, relay: Relay, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    through = fleet.client_config(bootstrap_servers=relay.bootstrap)
    created(fleet, topic, through=relay)
    config = {
        "bootstrap_servers": relay.bootstrap,
        "security_protocol": through["security.protocol"],
        "sasl_mechanism": through["sasl.mechanism"],
        "sasl_plain_username": through["sasl.username"],
        "sasl_plain_password": through["sasl.password"],
    }
    values = [bytes((i % 256,)) * size for i, size in enumerate([1, 100, 20_000, 200_000] * 10)]
    producer = KafkaProducer(**config)
    sent = [producer.send(topic, value) for value in values]
    for future in sent:
        future.get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(topic, group_id=unique("group"), auto_offset_reset="earliest", **config)
    got: list[bytes] = []

    def enough() -> bool:
        for messages in consumer.poll(timeout_ms=500).values():
            got.extend(message.value for message in messages)
        return len(got) >= len(values)

    wait_for(enough, what="all records")
    consumer.close()
    assert sorted(got) == sorted(values)


def consumed(config: dict[str, Any], topic: str, group: str, count: int) -> list[bytes]:
    consumer = Consumer({**config, "group.id": group, "auto.offset.reset": "earliest"})
    got: list[bytes] = []
    try:
        consumer.subscribe([topic])

        def enough() -> bool:
            for message in consumer.consume(100, timeout=0.5):
                assert message.error() is None
                got.append(message.value() or b"")
            return len(got) >= count

        wait_for(enough, what=f"{count} records of {topic}")
    finally:
        consumer.close()
    return got


@pytest.mark.parametrize("relay", [0], indirect=True, ids=["everything streamed"])
@pytest.mark.parametrize("length", LONG.values(), ids=LONG)
async def test_brokers_accept_padded_lengths_in_every_version(
    fleet: Fleet, relay: Relay, unique: Callable[[str], str], length: int
) -> None:
    topic = unique("t").ljust(length, "x")
    await asyncio.to_thread(created, fleet, topic, 1, relay)
    physical = relay.prefix.decode() + topic
    description = AdminClient(fleet.client_config()).list_topics(timeout=30).topics[physical]
    leader = description.partitions[0].leader
    payload = bytes(40_000)
    async with await Connection.open("127.0.0.1", relay.ports[leader], fleet.security()) as connection:
        for version in range(3, 13):
            batch = write([Record(0, 0, None, payload)])
            partition = {"Index": 0, "Records": batch}
            body = {
                "Acks": -1,
                "TimeoutMs": 9000,
                "TopicData": [{"Name": topic, "PartitionData": [partition]}],
            }

            response = await connection.call("Produce", body, version=version)

            (topic_response,) = response["Responses"]
            assert topic_response["Name"] == topic
            assert topic_response["PartitionResponses"][0]["ErrorCode"] == 0
            assert topic_response["PartitionResponses"][0]["BaseOffset"] == version - 3
        for version in range(4, 13):
            assert await fetched(connection, version, topic) == [payload] * 10


async def fetched(connection: Connection, version: int, topic: str) -> list[bytes | None]:
    partition = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    body: dict[str, Any] = {"MaxWaitMs": 500, "MinBytes": 1, "MaxBytes": 1 << 20}
    body["Topics"] = [{"Topic": topic, "Partitions": [partition]}]
    response = await connection.call("Fetch", body, version=version)
    (topic_response,) = response["Responses"]
    assert topic_response["Topic"] == topic
    return [
        row.value for batch in batches(topic_response["Partitions"][0]["Records"]) for row in records(batch)
    ]
