"""Topics that tier within seconds, what they contain, and where their segments are."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.fleet import Fleet

# Brokers of a test look for work every second instead of every 30 seconds or 5 minutes.
FAST: Final = {
    "remote.log.manager.task.interval.ms": 500,
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 500,
    "log.segment.delete.delay.ms": 500,
}
# Kafka's smallest segments; the newest megabyte stays on the brokers' disks.
TIERED: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1048576",
}
RECORD_BYTES: Final = 10_000

Content = list[tuple[int, int]]  # offset and CRC of each record


def create_tiered(fleet: Fleet, topic: str, *, partitions: int = 1, **config: str) -> None:
    settings = TIERED | {key.replace("_", "."): value for key, value in config.items()}
    admin = AdminClient(fleet.client_config())
    new = NewTopic(topic, partitions, min(3, len(fleet.brokers)), config=settings)
    admin.create_topics([new])[topic].result(60)
    fleet.wait_for_leaders(topic, partitions)


def produce(fleet: Fleet, topic: str, count: int, *, transactional: bool = False, first: int = 0) -> None:
    """Records whose content depends on their number; transactions alternate between commit and abort."""
    extra: dict[str, Any] = {"transactional.id": topic} if transactional else {"enable.idempotence": True}
    producer = Producer(fleet.client_config() | extra | {"batch.size": 100_000, "linger.ms": 5})
    errors: list[KafkaError] = []
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    for number in range(first, first + count):
        value = number.to_bytes(8, "big") * (RECORD_BYTES // 8)
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error) if error else None)
        producer.poll(0)
        if transactional and number % 50 == 49:
            assert producer.flush(60) == 0  # what an abort finds unsent does not reach the log
            if number % 100 == 99:
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)
            producer.begin_transaction()
    if transactional:
        producer.commit_transaction(60)
    assert producer.flush(120) == 0
    assert not errors


def read_librdkafka(
    fleet: Fleet, topic: str, *, isolation: str = "read_uncommitted", start: int = 0
) -> Content:
    """Everything from an offset to the end, of partition 0."""
    consumer = Consumer(
        fleet.client_config()
        | {"group.id": "unused", "isolation.level": isolation, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        content: Content = []
        while True:
            message = consumer.poll(60)
            assert message is not None, f"no record for 60 s after {len(content)}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return content
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            content.append((offset, zlib.crc32(value)))
    finally:
        consumer.close()


def read_kafka_python(fleet: Fleet, topic: str, *, isolation: str = "read_uncommitted") -> Content:
    config = fleet.client_config()
    consumer = KafkaConsumer(
        bootstrap_servers=fleet.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=config["sasl.mechanism"],
        sasl_plain_username=config["sasl.username"],
        sasl_plain_password=config["sasl.password"],
        isolation_level=isolation,
        enable_auto_commit=False,
    )
    place = KafkaPythonPartition(topic, 0)
    try:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        consumer.seek(place, 0)
        content: Content = []
        while consumer.position(place) < end:
            for record in consumer.poll(timeout_ms=1000).get(place, []):
                content.append((record.offset, zlib.crc32(record.value)))
        return content
    finally:
        consumer.close()


def segments(directory: Path) -> list[dict[str, Any]]:
    """The manifests in a file store, by base offset."""
    manifests = [json.loads(path.read_bytes()) for path in directory.rglob("*.json")]
    return sorted(manifests, key=lambda manifest: (manifest["topic"], manifest["base_offset"]))


def local_segments(fleet: Fleet, topic: str, *, node: str = "b1") -> int:
    """The base offset of the oldest segment on a broker's disk."""
    directory = fleet.node(node).layout.data / f"{topic}-0"
    return min(int(path.stem) for path in directory.glob("*.log"))


def wait_tiered(fleet: Fleet, topic: str, offset: int, *, node: str = "b1") -> None:
    """Wait until a broker's disk starts at or after an offset: all before it is in the store only."""
    wait_for(
        lambda: local_segments(fleet, topic, node=node) >= offset,
        what=f"{topic} to leave the disk up to {offset}",
    )
