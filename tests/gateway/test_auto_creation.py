"""Topics that clients use without creating them, with three clients on a real fleet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from kafka import KafkaConsumer, KafkaProducer
from penstock.gateway.config import TenantLimits
from penstock.kafka.admin import topics
from penstock.kafka.client import Client
from penstock.model.errors import PenstockError
from penstock.wire.error_codes import Code
from tests.gateway.test_attacks import open_as
from tests.gateway.test_java import MODULE
from tests.gateway.test_kafka_python import login
from tests.gateway.test_platform_requests import topics_seen, until
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


@pytest.fixture
def access(make_gateway: Callable[..., RunningGateway]) -> Access:
    return make_gateway(new_access(auto_create_topics=True)).accesses[0]


def sizes(fleet: Fleet, access: Access) -> dict[str, tuple[int, int]]:
    """Partitions and replicas of the tenant's topics."""

    async def described() -> dict[str, tuple[int, int]]:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            every = await topics.describe(client)
        return {
            name.removeprefix(access.prefix): (len(one.partitions), len(one.partitions[0].replicas))
            for name, one in every.items()
            if name.startswith(access.prefix) and not isinstance(one, PenstockError)
        }

    return asyncio.run(described())


def test_librdkafka_produces_to_a_topic_that_did_not_exist(
    fleet: Fleet, access: Access, unique: Callable[[str], str]
) -> None:
    topic, errors = unique("orders"), list[object]()
    producer = Producer(access.client_config(linger_ms=0))

    for number in range(10):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: errors.append(error))

    assert producer.flush(SECONDS) == 0
    assert errors == [None] * 10
    assert sizes(fleet, access) == {topic: (1, 3)}


def test_kafka_python_produces_and_consumes_a_topic_that_did_not_exist(
    access: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    producer = KafkaProducer(**login(access))

    sent = producer.send(topic, b"one").get(SECONDS)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **login(access))

    assert sent.topic == topic
    assert next(consumer).value == b"one"
    consumer.close()


def test_java_produces_to_a_topic_that_did_not_exist(
    java: Callable[..., str], fleet: Fleet, access: Access, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} required username="{access.key}" password="{access.secret}";\n'
    )
    load = ("--num-records", "10", "--record-size", "10", "--throughput", "-1")

    printed = java(
        PERFORMANCE, "--topic", topic, "--bootstrap-server", access.bootstrap, *load,
        "--command-config", str(properties),
    )  # fmt: skip

    assert "10 records sent" in printed
    assert sizes(fleet, access) == {topic: (1, 3)}


async def requested(access: Access, topic: str) -> int:
    """The error of a topic in Metadata that may create it."""
    async with await open_as(access) as connection:
        body = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": True}
        response = await connection.call("Metadata", body, version=9)
    code: int = response["Topics"][0]["ErrorCode"]
    return code


async def test_many_requests_at_once_create_a_topic_once(
    access: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")

    codes = await asyncio.gather(*(requested(access, topic) for _ in range(20)))

    assert set(codes) <= {Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE}
    await until(lambda: topics_seen(access), {topic})
    await until(lambda: requested(access, topic), Code.NONE)


async def test_topics_are_created_within_the_number_of_partitions_only(
    make_gateway: Callable[..., RunningGateway], unique: Callable[[str], str]
) -> None:
    limits = TenantLimits(partitions_max=2)
    (access,) = make_gateway(new_access(auto_create_topics=True, limits=limits)).accesses
    names = [unique("orders") for _ in range(2)]
    for name in names:
        await until(lambda name=name: requested(access, name), Code.NONE)  # type: ignore[misc]  # mypy infers no default

    codes = [await requested(access, unique("orders")) for _ in range(5)]

    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 5
    assert await topics_seen(access) == set(names)


async def test_a_tenant_without_the_setting_gets_no_topic(ada: Access, unique: Callable[[str], str]) -> None:
    topic = unique("orders")

    codes = [await requested(ada, topic) for _ in range(3)]

    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert topic not in await topics_seen(ada)
