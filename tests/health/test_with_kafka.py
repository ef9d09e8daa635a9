"""The whole loop on a real platform: checker, judgement, mitigation, recovery."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.platform.control_client import connect
from penstock.platform.keyring import saved_key
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.platform.control_client import ControlClient

BROKER = 2
SECONDS_MAX = 240.0  # on a busy machine


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


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    (tmp_path / "work").mkdir()
    command = Penstock(tmp_path / "home", tmp_path / "work")
    ran = command("up", "--detach", "--port", "0", env={"PENSTOCK_FLEET_ONLY": "no"})
    assert ran.code == 0, ran.err
    yield Platform(command)
    command.end_everything()


def placement(admin: AdminClient) -> dict[str, tuple[tuple[int, ...], int]]:
    """Replicas, the preferred leader first, and the leader of every partition with several replicas."""
    return {
        f"{name}-{number}": (tuple(partition.replicas), partition.leader)
        for name, topic in admin.list_topics(timeout=30).topics.items()
        for number, partition in topic.partitions.items()
        if len(partition.replicas) > 1
    }


def settled(admin: AdminClient) -> bool:
    """Every partition is led by its preferred leader."""
    return all(leader == replicas[0] for replicas, leader in placement(admin).values())


def leads(admin: AdminClient) -> bool:
    """Whether the broker leads or is preferred anywhere."""
    return any(BROKER in (replicas[0], leader) for replicas, leader in placement(admin).values())


def broker_of(control: ControlClient) -> dict[str, Any]:
    (cluster,) = control.get("/health")
    return next(each for each in cluster["brokers"] if each["broker"] == BROKER)


@pytest.mark.kafka
@pytest.mark.soak
def test_a_frozen_broker_is_demoted_and_leads_again_once_it_is_healthy(platform: Platform) -> None:
    control = connect(platform.layout, "")
    key = saved_key(platform.layout, "demo")
    wait_for(
        lambda: all(b["health"] == "healthy" for b in control.get("/health")[0]["brokers"]),
        what="healthy brokers", seconds=SECONDS_MAX,
    )  # fmt: skip
    assert platform.penstock("health", "set", "auto").code == 0
    config = {
        "bootstrap.servers": key.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": key.key, "sasl.password": key.secret,
    }  # fmt: skip
    frozen = platform.process("b2")
    assert frozen is not None
    admin = AdminClient(platform.client_config())
    wait_for(lambda: settled(admin), what="preferred leaders", seconds=SECONDS_MAX)
    before = placement(admin)
    assert leads(admin)

    with Writer(config) as writer:
        frozen.signal(signal.SIGSTOP)
        try:
            wait_for(lambda: broker_of(control)["steps"] == ["demote"], what="demotion", seconds=SECONDS_MAX)
            assert broker_of(control)["health"] in ("down", "fenced", "cut-off", "storage-stuck")
            wait_for(lambda: not leads(admin), what="other leaders", seconds=SECONDS_MAX)
        finally:
            frozen.signal(signal.SIGCONT)
        wait_for(
            lambda: broker_of(control)["health"] == "healthy" and not broker_of(control)["steps"],
            what="recovery", seconds=SECONDS_MAX,
        )  # fmt: skip
        assert broker_of(control)["states"] == ["normal"]
        now = placement(admin)
        assert {name: now[name] for name in before} == before

    assert (writer.failed, writer.acknowledged > 0) == (0, True)
    (incident,) = control.every("/incidents")
    assert [e["what"] for e in incident["entries"]] == ["finding", "demote", "done", "resolved"]
    words = ("consume", "orders", "--cluster", "demo", "--from-beginning", "--no-follow", "-o", "jsonl")
    rows = [json.loads(line) for line in platform.penstock(*words).out.splitlines()]
    assert sum(row["key"] == "health-test" for row in rows) >= writer.acknowledged
