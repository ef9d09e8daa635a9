"""Rolls of a real platform under load: clients through gateways, a watcher of the controllers, and a kill."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.local_fleet import load_fleet
from penstock.fleet.node_generations import generations
from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka.client import Client
from penstock.kafka.metadata_image import MetadataFollower
from penstock.model.errors import PenstockError
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

WHOLE = {"PENSTOCK_FLEET_ONLY": "no"}
SECONDS_MAX = 400.0
BEFORE: dict[str, Any] = {"clusters": [{"port": 0, "brokers": 3}]}
AFTER: dict[str, Any] = {
    "clusters": [
        {"port": 0, "brokers": 3, "config": {"socket.send.buffer.bytes": 204800, "num.io.threads": 3}}
    ]
}
BROKEN: dict[str, Any] = {
    "clusters": [{"port": 0, "brokers": 3, "config": {"replica.fetch.max.bytes": "many"}}]
}


@dataclass
class Watcher:
    """Reads the metadata log all the time: zones with a broker down, and partitions below their minimum."""

    platform: Platform
    zones: list[frozenset[str]] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watcher:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        assert self._thread is not None
        self._thread.join()

    async def _watch(self) -> None:
        fleet = self.platform.fleet
        controller = next(node for node in fleet.nodes if node.spec.is_controller)
        bootstrap = fleet.clusters[0].cluster.spec.bootstrap(Listener.CONTROLLER)
        async with Client(bootstrap, security_of(controller), controllers=True) as client:
            follower = MetadataFollower(client)
            while not self._end.is_set():
                try:
                    image = await follower.catch_up()
                except PenstockError:  # the controller restarts
                    continue
                down = {b.rack or "" for b in image.brokers.values() if b.fenced or b.shutting_down}
                if down and (not self.zones or self.zones[-1] != down):
                    self.zones.append(frozenset(down))
                tenants = {k: p for k, p in image.by_name.items() if k[0].startswith("lkc-")}
                # Probes of a broker alone, or of a pair, have no replica to spare.
                self.below += [
                    f"{t}-{n}" for (t, n), p in tenants.items() if len(p.replicas) > 2 and len(p.isr) < 2
                ]
                await asyncio.sleep(0.1)


@dataclass
class Clients:
    """An idempotent producer, a transactional one, and a consumer of both, through the gateways."""

    config: dict[str, Any]
    errors: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    read: list[str] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)
    _all_acknowledged: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Clients:
        admin = AdminClient(self.config)
        for name, created in admin.create_topics([NewTopic("a", 6), NewTopic("b", 6)]).items():
            created.result(60)
            wait_for(partial(self._has, admin, name), what=f"topic {name}")
        for run in (self._produce, self._transact, self._consume):
            thread = threading.Thread(target=run)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        *producers, consumer = self._threads
        for thread in producers:
            thread.join()
        self._all_acknowledged.set()
        consumer.join()

    def _has(self, admin: AdminClient, topic: str) -> bool:
        described = admin.list_topics(topic, timeout=30).topics[topic]
        return len(described.partitions) == 6 and all(p.leader >= 0 for p in described.partitions.values())

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(f"produce: {error}")
        else:
            self.acknowledged.add(message.value().decode())

    def _produce(self) -> None:
        producer = Producer(self.config | {"enable.idempotence": True, "linger.ms": 5})
        for number in itertools.count():
            if self._end.is_set():
                break
            producer.produce("a", f"a{number}", on_delivery=self._delivered)
            producer.poll(0.01)
        assert producer.flush(60) == 0

    def _transact(self) -> None:
        producer = Producer(self.config | {"transactional.id": "t", "transaction.timeout.ms": 60000})
        producer.init_transactions(60)
        try:
            for number in itertools.count():
                if self._end.is_set():
                    break
                producer.begin_transaction()
                producer.produce("b", f"b{number}")
                producer.commit_transaction(60)
                self.acknowledged.add(f"b{number}")
        except KafkaException as error:
            self.errors.append(f"transaction: {error}")

    def _consume(self) -> None:
        settings = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = Consumer(self.config | settings)
        consumer.subscribe(["a", "b"])
        while not self._all_acknowledged.is_set() or self.acknowledged - set(self.read):
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(f"consume: {message.error()}")
            else:
                self.read.append((message.value() or b"").decode())
        consumer.close()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    penstock = Penstock(home=tmp_path / "home", directory=tmp_path)
    path = penstock.directory / "fleet.yaml"
    path.write_text(yaml.safe_dump(BEFORE))
    try:
        ran = penstock("up", "--detach", "--fleet", str(path), env=WHOLE)
        assert ran.code == 0, ran.err
        yield Platform(penstock)
    finally:
        penstock("down")
        penstock.end_everything()


def tenant_config(platform: Platform) -> dict[str, Any]:
    ran = platform.penstock("cluster", "connect", "demo", "--client", "python", "-o", "json")
    assert ran.code == 0, ran.err
    return dict(ran.data) | {"log_level": 0}


def start_roll(platform: Platform, document: dict[str, Any], *flags: str) -> None:
    path = platform.penstock.directory / "changed.yaml"
    path.write_text(yaml.safe_dump(document))
    ran = platform.penstock("fleet", "roll", "--fleet", str(path), "--no-wait", *flags)
    assert ran.code == 0, ran.err


def last_roll(platform: Platform) -> dict[str, Any]:
    ran = platform.penstock("fleet", "roll", "show", "-o", "json")
    return dict(ran.data) if ran.out else {"state": "unknown", "nodes_done": 0}


def wait_for_roll(platform: Platform, *states: str) -> dict[str, Any]:
    wait_for(lambda: last_roll(platform)["state"] in states, what=f"a roll {states}", seconds=SECONDS_MAX)
    return last_roll(platform)


def kill_control_plane(platform: Platform) -> None:
    record = json.loads((platform.layout.home / "control.process.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)


def behind(platform: Platform) -> set[str]:
    return {each.name for each in generations(load_fleet(platform.layout)) if each.behind}


def check_clients(clients: Clients) -> None:
    assert clients.errors == []
    assert clients.acknowledged
    assert sorted(clients.read) == sorted(clients.acknowledged)  # nothing is lost, nothing twice


@pytest.mark.kafka
@pytest.mark.timeout(900)  # a busy machine starts JVMs slowly
@pytest.mark.soak
def test_a_roll_survives_its_control_plane_and_clients_notice_nothing(platform: Platform) -> None:
    with Clients(tenant_config(platform)) as clients, Watcher(platform) as watcher:
        start_roll(platform, AFTER, "--zone", "a", "--zone", "b")
        wait_for(lambda: last_roll(platform)["nodes_done"] or watcher.zones, what="the first broker")
        kill_control_plane(platform)
        roll = wait_for_roll(platform, "done", "paused")

    assert roll["state"] == "done", roll
    check_clients(clients)
    assert set(watcher.zones) == {frozenset("a"), frozenset("b")}
    assert watcher.below == []
    assert behind(platform) == {"b3", "c1001"}


@pytest.mark.kafka
@pytest.mark.timeout(900)  # a busy machine starts JVMs slowly
@pytest.mark.soak
def test_a_setting_that_prevents_a_start_stops_the_roll_and_is_rolled_back(platform: Platform) -> None:
    with Clients(tenant_config(platform)) as clients, Watcher(platform) as watcher:
        start_roll(platform, BROKEN, "--zone", "a", "--zone", "b", "--zone", "c")
        paused = wait_for_roll(platform, "paused")
        assert "replica.fetch.max.bytes" in "".join(paused["evidence"])
        assert len(paused["nodes"]) == 1
        ran = platform.penstock("fleet", "roll", "--roll-back", "--no-wait")
        assert ran.code == 0, ran.err
        wait_for_roll(platform, "done")

    check_clients(clients)
    assert len(set(watcher.zones)) == 1
    assert watcher.below == []
    assert behind(platform) == set()


@pytest.mark.kafka
@pytest.mark.timeout(900)  # a busy machine starts JVMs slowly
@pytest.mark.soak
def test_every_node_is_rolled_by_flag_even_the_only_controller(platform: Platform) -> None:
    refused = platform.penstock("fleet", "roll", "--node", "c1001", "-o", "json")
    assert refused.error["code"] == "PEN-2040"
    with Clients(tenant_config(platform)) as clients, Watcher(platform) as watcher:
        start_roll(platform, AFTER, "--allow-downtime")
        assert wait_for_roll(platform, "done", "paused")["state"] == "done"

    check_clients(clients)
    assert all(len(zones) == 1 for zones in watcher.zones)
    assert behind(platform) == set()
