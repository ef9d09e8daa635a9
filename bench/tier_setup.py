"""Brokers for `tier`: one with our plugin, one with Kafka's own test store; and topics that tier at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.fleets import start_fleet
from bench.measure import processor_seconds
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.jars import KAFKA_VERSION, cache_directory
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.partitions import TopicPartition as Place
from penstock.kafka.client import Client
from penstock.tier.status import broker_counters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.fleet.local_fleet import LocalFleet

PEER = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
PEER_ARTIFACT = f"org.apache.kafka:kafka-storage:{KAFKA_VERSION}:jar:test"
RESOLVE_SECONDS = 300.0
RECORD_BYTES = 10_000
SEGMENT_BYTES = 32 << 20
TIERED_SECONDS_MAX = 300.0
READ_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
# Brokers look for work often, so that neither contender waits for a timer.
CONFIG = {
    "remote.log.manager.task.interval.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
    "log.segment.delete.delay.ms": 200,
}


class Missing(Exception):
    """It cannot run here; the message gives the reason."""


def peer_jar() -> Path:
    """Kafka's own test store, from the jar of its tests."""
    folder = cache_directory() / f"kafka-storage-test-{KAFKA_VERSION}"
    if not folder.is_dir():
        if shutil.which("mvn") is None:
            raise Missing("LocalTieredStorage needs Maven, which is not installed")
        partial = folder.with_suffix(".part")
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={PEER_ARTIFACT}"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={partial}"],
                capture_output=True,
                timeout=RESOLVE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise Missing(f"Maven did not resolve {PEER_ARTIFACT} in {RESOLVE_SECONDS:.0f} s") from late
        if done.returncode:
            raise Missing(f"Maven cannot resolve {PEER_ARTIFACT}")
        partial.rename(folder)
    return next(folder.glob("*.jar"))


def start_ours(home: Path) -> Broker:
    return Broker(asyncio.run(start_fleet(home, _shape(CONFIG))))


def start_peer(home: Path) -> Broker:
    store = {
        "remote.log.storage.manager.class.name": PEER,
        "remote.log.storage.manager.class.path": str(peer_jar()),
        "rsm.config.dir": str(home / "peer-store"),
    }
    return Broker(asyncio.run(start_fleet(home, _shape(CONFIG | store))))


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"combined": True, "brokers": 1, "zones": ["a"], "port": 0, "jit": "full", "config": config}


@dataclass
class Broker:
    fleet: LocalFleet

    @property
    def processor(self) -> float:
        """Seconds that its process has used."""
        identity = self.fleet.nodes[0].running()
        assert identity is not None
        return processor_seconds(identity.pid)

    def client_config(self, **more: Any) -> dict[str, Any]:
        spec = self.fleet.clusters[0].cluster.spec
        return {
            "bootstrap.servers": spec.bootstrap(),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.username": PLATFORM_USER,
            "sasl.password": self.fleet.access.credentials.platform,
            **more,
        }

    def create(self, topic: str, *, tiered: bool) -> None:
        config = {"segment.bytes": str(SEGMENT_BYTES)}
        if tiered:
            config |= {"remote.storage.enable": "true", "local.retention.bytes": "1"}
        admin = AdminClient(self.client_config())
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)

    def produce(self, topic: str, records: int) -> None:
        """Records that no codec could shrink, so that bytes are bytes everywhere."""
        producer = Producer(self.client_config(**{"linger.ms": 5, "batch.size": 500_000}))
        values = [os.urandom(RECORD_BYTES) for _ in range(100)]
        failed: list[object] = []
        for number in range(records):
            producer.produce(
                topic,
                values[number % 100],
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        if producer.flush(120) or failed:
            raise RuntimeError(f"records were not written: {failed[:3]}")

    def wait_tiered(self, topic: str, records: int) -> None:
        """Until the disk has less than two segments of these records."""
        asyncio.run(self._wait_tiered(topic, records - 2 * SEGMENT_BYTES // RECORD_BYTES))

    async def _wait_tiered(self, topic: str, offset: int) -> None:
        spec = self.fleet.clusters[0].cluster.spec
        place, deadline = Place(topic, 0), time.monotonic() + TIERED_SECONDS_MAX
        async with Client(spec.bootstrap(), security_of(self.fleet.nodes[0])) as client:
            while True:
                local = (await list_offsets(client, {place: OffsetSpec.EARLIEST_LOCAL}))[place]
                if not isinstance(local, Exception) and local.offset >= offset:
                    return
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{topic} was not tiered in {TIERED_SECONDS_MAX:.0f} s: {local}")
                await asyncio.sleep(POLL_SECONDS)

    def read(self, topic: str, records: int) -> float:
        """Bytes a second, from the first record to the one of this number."""
        config = {"group.id": "bench", "enable.auto.commit": False, "fetch.message.max.bytes": 8 << 20}
        config |= {"queued.max.messages.kbytes": 64 << 10, "check.crcs": False}
        consumer = Consumer(self.client_config(**config))
        consumer.assign([TopicPartition(topic, 0, 0)])
        count, size, start = 0, 0, time.perf_counter()
        try:
            while count < records:
                messages = consumer.consume(min(500, records - count), READ_SECONDS_MAX)
                if not messages:
                    raise RuntimeError(f"{topic}: no record after {count}")
                for message in messages:
                    if message.error() is not None:
                        raise RuntimeError(str(message.error()))
                    size += len(message.value() or b"")
                count += len(messages)
        finally:
            consumer.close()
        return size / (time.perf_counter() - start)

    def gets(self) -> int:
        """Requests of our plugin to its store since the start."""
        port = self.fleet.nodes[0].spec.ports[Listener.METRICS]
        (row,) = asyncio.run(broker_counters([("b1", "127.0.0.1", port)]))
        return int(row["gets"])
