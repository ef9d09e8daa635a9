"""The whole loop on a real platform: checker, judgement, mitigation, recovery."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.health.mitigation import IMPROVED_SECONDS
from penstock.platform.control_client import connect
from penstock.platform.keyring import saved_key
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka.admin import ClusterMetadata

    from penstock.platform.control_client import ControlClient
    from penstock.process_identity import Identity

BROKER = 2
SECONDS_MAX = 240.0  # on a busy machine
STILL_SECONDS = 0.8


class Writer:
    """A tenant that writes all along; what it was acknowledged must be readable in the end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._producer = Producer(config | {"acks": "all", "enable.idempotence": True, "log_level": 0})
        self.acknowledged = 0
        self.failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self._producer.produce("orders", b"probe", key=b"health-test", on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1


class Stuttering:
    """A process that stands still most of the time, and never for long."""

    def __init__(self, process: Identity) -> None:
        self._process = process
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._process.signal(signal.SIGSTOP)
            self._stop.wait(STILL_SECONDS)
            self._process.signal(signal.SIGCONT)
            self._stop.wait(STILL_SECONDS / 4)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    (tmp_path / "work").mkdir()
    command = Penstock(tmp_path / "home", tmp_path / "work")
    ran = command("up", "--detach", "--port", "0", env={"PENSTOCK_FLEET_ONLY": "no"})
    assert ran.code == 0, ran.err
    yield Platform(command)
    command.end_everything()


def observer(platform: Platform) -> dict[str, Any]:
    """The configuration of a client that knows the other brokers only."""
    config = platform.client_config()
    brokers = AdminClient(config).list_topics(timeout=30).brokers.values()
    others = [f"{each.host}:{each.port}" for each in brokers if each.id != BROKER]
    return config | {"bootstrap.servers": ",".join(others)}


def metadata(config: dict[str, Any]) -> ClusterMetadata:
    """By a new client: one that has learnt of the broker may ask it, though it is frozen."""
    return AdminClient(config).list_topics(timeout=30)


def placement(config: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Replicas, the preferred leader first, and the leader of every partition with several replicas."""
    return {
        f"{name}-{number}": (tuple(partition.replicas), partition.leader)
        for name, topic in metadata(config).topics.items()
        for number, partition in topic.partitions.items()
        if len(partition.replicas) > 1
    }


def in_sync(config: dict[str, Any]) -> set[int]:
    """Brokers in any ISR of partitions with several replicas."""
    topics = metadata(config).topics.values()
    every = [each for topic in topics for each in topic.partitions.values()]
    return {broker for each in every if len(each.replicas) > 1 for broker in each.isrs}


def settled(config: dict[str, Any]) -> bool:
    """Every partition is led by its preferred leader."""
    return all(leader == replicas[0] for replicas, leader in placement(config).values())


def leads(config: dict[str, Any]) -> bool:
    """Whether the broker leads or is preferred anywhere."""
    return any(BROKER in (replicas[0], leader) for replicas, leader in placement(config).values())


def broker_of(control: ControlClient) -> dict[str, Any]:
    (cluster,) = control.get("/health")
    return next(each for each in cluster["brokers"] if each["broker"] == BROKER)


def all_healthy(control: ControlClient) -> bool:
    return all(each["health"] == "healthy" for each in control.get("/health")[0]["brokers"])


def automatic(platform: Platform) -> tuple[ControlClient, dict[str, Any], dict[str, Any]]:
    """Healthy brokers, preferred leaders, and mode `auto`; and how to observe Kafka and to be a tenant."""
    control, key = connect(platform.layout, ""), saved_key(platform.layout, "demo")
    admin = observer(platform)
    wait_for(lambda: all_healthy(control), what="healthy brokers", seconds=SECONDS_MAX)
    wait_for(lambda: settled(admin), what="preferred leaders", seconds=SECONDS_MAX)
    assert leads(admin)
    assert platform.penstock("health", "set", "auto").code == 0
    config = {
        "bootstrap.servers": key.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": key.key, "sasl.password": key.secret,
    }  # fmt: skip
    return control, admin, config


def entries(control: ControlClient) -> list[tuple[str, int]]:
    """Of the only incident: what happened, and when."""
    return [(e["what"], e["time_ms"]) for each in control.every("/incidents") for e in each["entries"]]


def recovered(control: ControlClient) -> bool:
    broker = broker_of(control)
    return (broker["health"], broker["steps"], broker["states"]) == ("healthy", [], ["normal"])


def all_readable(platform: Platform, writer: Writer) -> bool:
    words = ("consume", "orders", "--cluster", "demo", "--from-beginning", "--no-follow", "-o", "jsonl")
    rows = [json.loads(line) for line in platform.penstock(*words).out.splitlines()]
    own = [row for row in rows if row["key"] == "health-test"]
    return len(own) >= writer.acknowledged > 0


@pytest.mark.kafka
@pytest.mark.soak
def test_a_frozen_broker_is_demoted_and_leads_again_once_it_is_healthy(platform: Platform) -> None:
    control, admin, config = automatic(platform)
    before, frozen = placement(admin), platform.process("b2")
    assert frozen is not None

    def outlasted() -> bool:
        """The step was judged for longer than it has to help."""
        done = [at for what, at in entries(control) if what == "done"]
        judged_ms: int = control.get("/health")[0]["judged_ms"]
        return bool(done) and judged_ms > done[0] + 1.5 * IMPROVED_SECONDS * 1000

    with Writer(config) as writer:
        frozen.signal(signal.SIGSTOP)
        try:
            wait_for(lambda: broker_of(control)["steps"] == ["demote"], what="demotion", seconds=SECONDS_MAX)
            assert broker_of(control)["health"] in ("down", "fenced", "cut-off", "storage-stuck")
            wait_for(lambda: not leads(admin), what="other leaders", seconds=SECONDS_MAX)
            wait_for(outlasted, what="the judgement of the demotion", seconds=SECONDS_MAX)
            assert broker_of(control)["states"] == ["demoted"]
        finally:
            frozen.signal(signal.SIGCONT)
        wait_for(lambda: recovered(control), what="recovery", seconds=SECONDS_MAX)
        now = placement(admin)
        assert {name: now[name] for name in before} == before

    assert writer.failed == 0
    assert [what for what, _ in entries(control)] == ["finding", "demote", "done", "resolved"]
    assert all_readable(platform, writer)


@pytest.mark.kafka
@pytest.mark.soak
def test_a_slow_broker_is_excluded_and_restarted_and_leads_again_once_it_is_healthy(
    platform: Platform,
) -> None:
    control, admin, config = automatic(platform)
    before, slow = placement(admin), platform.process("b2")
    assert slow is not None

    with Writer(config) as writer:
        with Stuttering(slow):
            wait_for(
                lambda: broker_of(control)["steps"] == ["exclude"] and "done" in dict(entries(control)),
                what="exclusion", seconds=SECONDS_MAX,
            )  # fmt: skip
            assert broker_of(control)["states"] == ["excluded"]
            assert BROKER not in in_sync(admin)
        wait_for(lambda: recovered(control), what="recovery", seconds=SECONDS_MAX)
        assert platform.process("b2") != slow
        wait_for(
            lambda: before.items() <= placement(admin).items(), what="its leadership", seconds=SECONDS_MAX
        )
        assert BROKER in in_sync(admin)

    assert writer.failed == 0
    assert [what for what, _ in entries(control)] == ["finding", "exclude", "done", "resolved"]
    assert all_readable(platform, writer)
