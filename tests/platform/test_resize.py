"""Brokers are added to a fleet that runs, and taken away again, while tenants read and write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from penstock.fleet.readiness import security_of
from penstock.kafka.admin import brokers, configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.platform.companions import service_records
from penstock.process_identity import read_alive
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.process_identity import Identity

THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)
WITH_PLATFORM = {"PENSTOCK_FLEET_ONLY": "no"}

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]


@dataclass
class Load:
    """A transactional producer and a consumer group of a tenant, until `stop`."""

    config: dict[str, Any]
    topic: str
    sent: list[str] = field(default_factory=list)
    read: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _written: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._threads = [
            threading.Thread(target=self._run, args=(job,)) for job in (self._write, self._consume)
        ]
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.read or self.errors, what="records to arrive")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, job: Any) -> None:
        try:
            job()
        except Exception as failure:  # noqa: BLE001 - the test reports it
            self.errors.append(repr(failure))
            self._written.set()

    def _write(self) -> None:
        producer = confluent_kafka.Producer(
            {**self.config, "transactional.id": "resize", "error_cb": self._on_error}
        )
        producer.init_transactions(60)
        while not self._stop.is_set():
            batch = [str(len(self.sent) + number) for number in range(20)]
            producer.begin_transaction()
            for value in batch:
                producer.produce(self.topic, value, key=value)
            producer.commit_transaction(60)
            self.sent += batch
            time.sleep(0.02)
        self._written.set()

    def _consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                **self.config,
                "group.id": "resize",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "error_cb": self._on_error,
            }
        )
        consumer.subscribe([self.topic])
        deadline = float("inf")
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error():
                self.errors.append(str(message.error()))
            elif message is not None:
                self.read[str((message.value() or b"").decode())] += 1
            if self._written.is_set():
                if len(self.read) == len(self.sent):
                    break
                deadline = min(deadline, time.monotonic() + 60)
        consumer.close()

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        """librdkafka also reports every connection that a stopped broker closes; those cost nothing."""
        if error.code() not in (
            confluent_kafka.KafkaError._TRANSPORT,
            confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
        ):
            self.errors.append(str(error))


@dataclass
class Cluster:
    """What Kafka itself reports."""

    platform: Platform

    def _call(self, work: Any) -> Any:
        async def run() -> Any:
            fleet = self.platform.fleet
            node = next(node for node in fleet.nodes if node.spec.is_broker)
            async with Client(fleet.clusters[0].cluster.spec.bootstrap(), security_of(node)) as client:
                return await work(client)

        return asyncio.run(run())

    def registered(self) -> set[int]:
        async def read(client: Client) -> set[int]:
            return set((await brokers.describe(client, fenced=True)).brokers)

        result: set[int] = self._call(read)
        return result

    def replicas(self, prefix: str = "") -> Counter[int]:
        async def read(client: Client) -> Counter[int]:
            described = results_or_raise(await topics.describe(client))
            return Counter(
                broker
                for name, topic in described.items()
                if name.startswith(prefix)
                for partition in topic.partitions
                for broker in partition.replicas
            )

        result: Counter[int] = self._call(read)
        return result

    def throttles(self) -> list[str]:
        """Every throttle that is set anywhere."""

        async def read(client: Client) -> list[str]:
            listed = await topics.describe(client)
            resources = [configs.topic(name) for name in listed]
            resources += [configs.broker(number) for number in (await brokers.describe(client)).brokers]
            described = results_or_raise(await configs.describe(client, resources, names=THROTTLES))
            return [
                f"{resource}: {name}={entry.value}"
                for resource, entries in described.items()
                for name, entry in entries.items()
                if entry.value and entry.source in (configs.Source.TOPIC, configs.Source.BROKER_DYNAMIC)
            ]

        result: list[str] = self._call(read)
        return result


@pytest.fixture
def penstock(tmp_path: Path) -> Iterator[Penstock]:
    one = Penstock(home=tmp_path / "home", directory=tmp_path)
    yield one
    one("down")
    one.end_everything()


def started(penstock: Penstock, *flags: str) -> Platform:
    up = penstock("up", *flags, "--port", "0", "--detach", "-o", "json", env=WITH_PLATFORM)
    assert up.code == 0, up.err
    return Platform(penstock)


def services(platform: Platform) -> dict[str, Identity | None]:
    """The processes beside the brokers."""
    return {path.name: read_alive(path) for path in service_records(platform.layout)}


def tenant_config(penstock: Penstock) -> dict[str, Any]:
    ran = penstock("cluster", "connect", "demo", "--client", "python", "-o", "json")
    assert ran.code == 0, ran.err
    return dict(ran.data)


def test_a_cell_is_added_to_a_fleet_that_runs_and_tenants_move_into_it(penstock: Penstock) -> None:
    platform = started(penstock, "--brokers", "1", "--zones", "a")
    before, supervisor, beside = platform.process("b1"), platform.supervisor(), services(platform)

    added = penstock("cell", "add", "-o", "json")

    assert added.code == 0, added.err
    assert (added.data["id"], added.data["brokers"]) == ("cell-2", [2])
    assert platform.process("b1") == before
    assert platform.process("b2") is not None
    assert (platform.supervisor(), services(platform)) == (supervisor, beside)
    moved = penstock("cluster", "move", "demo", "--cell", "cell-2")
    assert moved.code == 0, moved.err
    assert penstock("produce", "orders", "hello", "--cluster", "demo").code == 0
    assert penstock("control", "check").code == 0


def test_a_fleet_grows_and_shrinks_under_load_without_errors_or_restarts(penstock: Penstock) -> None:
    platform = started(penstock, "--brokers", "3")
    cluster = Cluster(platform)
    processes, beside = platform.processes(), services(platform)
    assert penstock("topic", "create", "resized", "--partitions", "12", "--cluster", "demo").code == 0
    with Load(tenant_config(penstock), "resized") as load:
        grown = penstock("fleet", "grow", "--brokers", "3", "-o", "json")
        assert grown.code == 0, grown.err
        states = {row["id"]: row["states"] for row in penstock("broker", "list", "-o", "json").data}
        assert states == {broker: ["normal"] for broker in range(1, 7)}
        held = cluster.replicas()
        assert all(held[broker] for broker in (4, 5, 6)), held

        shrunk = penstock("fleet", "shrink", "4", "5", "6", "-o", "json")
        assert shrunk.code == 0, shrunk.err

    assert load.errors == []
    assert set(load.read) == set(load.sent)
    assert set(load.read.values()) == {1}
    assert cluster.registered() == {1, 2, 3}
    assert cluster.throttles() == []
    assert platform.processes() == processes
    assert services(platform) == beside
    assert penstock("control", "check").code == 0
