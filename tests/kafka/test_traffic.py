"""Requests and responses of real clients and brokers pass through our codec unchanged."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafka import KafkaConsumer, KafkaProducer
from penstock.fleet.jars import cache_directory, load_jars
from penstock.fleet.java import find_java
from tests.kafka.codec_relay import Relay, relaying

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60


@pytest.fixture
async def relay(fleet: Fleet) -> AsyncIterator[Relay]:
    brokers = [address.rpartition(":") for address in fleet.bootstrap.split(",")]
    async with relaying([(host, int(port)) for host, _, port in brokers]) as one:
        yield one


def unchanged(relay: Relay) -> None:
    assert relay.failures == []
    assert [(kind, api, version) for kind, api, version, _, _ in relay.changed] == []


def librdkafka(config: dict[str, Any], topic: str, group: str) -> list[bytes]:
    producer = Producer({**config, "transactional.id": group, "compression.type": "lz4"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"a", b"k", headers={"h": b"x"})
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 0)], Consumer({**config, "group.id": group}).consumer_group_metadata()
    )
    producer.commit_transaction(SECONDS_MAX)
    read = []
    for protocol in ("classic", "consumer"):
        consumer = Consumer(
            {
                **config,
                "group.id": f"{group}-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        value = message.value()
        assert value is not None
        read.append(value)
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
    return read


async def test_librdkafka(
    fleet: Fleet, relay: Relay, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    config = fleet.client_config(bootstrap_servers=relay.bootstrap)

    read = await asyncio.to_thread(librdkafka, config, await make_topic(), unique("till"))

    assert read == [b"a", b"a"]
    assert relay.apis() >= {
        "ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata", "FindCoordinator", "InitProducerId",
        "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "JoinGroup",
        "SyncGroup", "OffsetFetch", "ListOffsets", "Fetch", "OffsetCommit", "LeaveGroup",
        "ConsumerGroupHeartbeat",
    }  # fmt: skip
    unchanged(relay)


def kafka_python(config: dict[str, Any], topic: str, group: str) -> list[bytes]:
    common = {
        "bootstrap_servers": config["bootstrap.servers"],
        "security_protocol": config["security.protocol"],
        "sasl_mechanism": config["sasl.mechanism"],
        "sasl_plain_username": config["sasl.username"],
        "sasl_plain_password": config["sasl.password"],
    }
    producer = KafkaProducer(**common, compression_type="gzip", enable_idempotence=True)
    producer.send(topic, b"a", b"k", headers=[("h", b"x")]).get(SECONDS_MAX)
    producer.close()
    consumer = KafkaConsumer(topic, **common, group_id=group, auto_offset_reset="earliest")
    value = next(consumer).value
    consumer.commit()
    consumer.close()
    return [value]


async def test_kafka_python(
    fleet: Fleet, relay: Relay, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    config = fleet.client_config(bootstrap_servers=relay.bootstrap)

    read = await asyncio.to_thread(kafka_python, config, await make_topic(), unique("till"))

    assert read == [b"a"]
    assert relay.apis() >= {"Produce", "Fetch", "JoinGroup", "SyncGroup", "OffsetCommit", "LeaveGroup"}
    unchanged(relay)


def java(config: dict[str, Any], topic: str, folder: Path) -> str:
    """Run Kafka's latency tool, which writes and reads in one process; returns its output."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    settings = folder / "client.properties"
    settings.write_text(
        f"security.protocol={config['security.protocol']}\n"
        f"sasl.mechanism={config['sasl.mechanism']}\n"
        f'sasl.jaas.config={login} required username="{config["sasl.username"]}" '
        f'password="{config["sasl.password"]}";\n'
    )
    jars = load_jars(cache_directory())
    command = [
        str(find_java().executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars.classpath,
        "org.apache.kafka.tools.EndToEndLatency", config["bootstrap.servers"], topic, "20", "1", "100",
        str(settings),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_java(fleet: Fleet, relay: Relay, make_topic: MakeTopic, tmp_path: Path) -> None:
    config = fleet.client_config(bootstrap_servers=relay.bootstrap)

    output = await asyncio.to_thread(java, config, await make_topic(), tmp_path)

    assert "latency" in output.lower()
    assert relay.apis() >= {"ApiVersions", "Metadata", "Produce", "ListOffsets", "Fetch"}
    unchanged(relay)
