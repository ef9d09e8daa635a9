"""Killed, frozen and out of disk: no acknowledged record is lost, nodes recover, status is right."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.layout import Layout
from penstock.fleet.node_watch import NodeState
from penstock.fleet.status import fleet_status
from penstock.fleet.supervisor import Supervisor, sole_supervisor
from tests.harness.command import Penstock
from tests.harness.fleet import wait_for
from tests.harness.platform import Platform, StatusWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from tests.harness.disk import FaultyDisk
    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]  # every node is restarted in turn

PARTITIONS = 3
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One controller and three brokers under a supervisor; every test leaves it ready."""
    directory = tmp_path_factory.mktemp("platform")
    penstock = Penstock(home=directory / "home", directory=directory)
    platform = Platform(penstock)
    platform.up("--port", "0")
    yield platform
    penstock.end_everything()


class Load:
    """A producer with acks=all that keeps producing, and what was acknowledged."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.refused: list[KafkaError] = []
        self._producer = Producer(config | {"acks": "all", "linger.ms": 5, "message.timeout.ms": 110_000})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._producer.flush(110)

    def wait_for_more(self, count: int = 50) -> None:
        """Wait until `count` more records are acknowledged: the cluster accepts writes."""
        enough = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= enough, what="acknowledged records", seconds=110)

    def _produce(self) -> None:
        number = 0
        while not self._end.wait(0.005):
            partition = number % PARTITIONS
            self._producer.produce(self.topic, str(number), partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, record: Any) -> None:
        if error is None:
            self.acknowledged.add(int(record.value()))
        else:
            self.refused.append(error)


def consumed(config: dict[str, Any], topic: str) -> set[int]:
    """All values in the topic."""
    consumer = Consumer(config | {"group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values, ended = set[int](), set[int | None]()
    try:
        while len(ended) < PARTITIONS:
            record = consumer.poll(SECONDS_MAX)
            assert record is not None, f"nothing came for {SECONDS_MAX} s"
            error = record.error()
            if error is None:
                values.add(int(record.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(record.partition())  # reported again if its leader was lost in between
    finally:
        consumer.close()
    return values


def test_kill_9_of_any_process_loses_no_acknowledged_record_and_status_stays_right(
    platform: Platform, unique: Callable[[str], str]
) -> None:
    config, topic = platform.client_config(), unique("orders")
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(SECONDS_MAX)
    nodes = list(platform.processes())

    with StatusWatcher(platform) as watcher, Load(config, topic) as load:
        load.wait_for_more()
        for node in nodes:
            before = platform.process(node)
            watcher.record_death(platform.kill(node))
            platform.wait_ready()
            assert platform.process(node) not in (None, before)
            load.wait_for_more()
        survivors = platform.processes()
        platform.kill_supervisor()
        load.wait_for_more()
        platform.up()
        assert platform.processes() == survivors, "the next supervisor takes over the same processes"
        load.wait_for_more()

    assert load.refused == []
    assert load.acknowledged - consumed(config, topic) == set()
    assert watcher.false_reports() == []
    for node in nodes:
        states = watcher.states(node)
        assert states[0] == states[-1] == "ready"
        assert {"restarting", "starting"} & set(states), states
        assert "stopped" not in states, "a supervisor was restarting it all the time"
    restarts = {node.node: node.restarts for node in platform.status().nodes}
    assert set(restarts.values()) == {0}, "a new supervisor has restarted nothing yet"


def test_a_frozen_node_is_unresponsive_and_ready_again_when_it_continues(platform: Platform) -> None:
    process = platform.process("b3")
    assert process is not None
    process.signal(signal.SIGSTOP)
    try:
        wait_for(lambda: state_of(platform, "b3") == "unresponsive", what="b3 to be unresponsive")
        seen = platform.penstock("status", "-o", "json")
        assert seen.code == 5
        assert seen.data["state"] == "degraded"
        others = [node["state"] for node in seen.data["nodes"] if node["node"] != "b3"]
        assert others == ["ready"] * 3
    finally:
        process.signal(signal.SIGCONT)

    platform.wait_ready()
    assert platform.process("b3") == process, "it was not restarted"


def state_of(platform: Platform, name: str) -> str:
    (state,) = (str(node.state) for node in platform.status().nodes if node.node == name)
    return state


def test_up_changes_nothing_if_the_fleet_is_running(platform: Platform) -> None:
    before, supervisor = platform.processes(), platform.supervisor()
    assert supervisor is not None
    logged = platform.layout.supervisor_log.read_bytes()

    ran = [platform.penstock("up", "-o", "json"), platform.penstock("up", "--detach", "-o", "json")]

    assert [(one.code, one.error["code"]) for one in ran] == [(1, "PEN-2010")] * 2
    assert f"process {supervisor.pid} supervises" in ran[0].error["message"]
    assert (platform.processes(), platform.supervisor()) == (before, supervisor)
    assert platform.layout.supervisor_log.read_bytes().startswith(logged)


def test_a_node_on_a_full_disk_is_restarted_until_there_is_space(
    tmp_path: Path, make_disk: Callable[[Path], FaultyDisk], make_fleet: Callable[..., Fleet]
) -> None:
    disk = make_disk(Layout(tmp_path / "fleet-0").node("home", "b1").data)
    fleet = make_fleet(environment={"b1": disk.environment()})
    quiet = {"log_level": 0}
    producer = Producer(fleet.client_config(acks="all") | quiet)
    admin = AdminClient(fleet.client_config() | quiet)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(SECONDS_MAX)

    states, why = asyncio.run(_starved(fleet, disk, producer))

    assert "it exited; the supervisor restarts it" in why
    assert "No space left on device" in why
    assert states[:2] == [NodeState.READY, NodeState.RESTARTING]
    assert states[-1] is NodeState.READY
    producer.produce("orders", b"after")
    assert producer.flush(SECONDS_MAX) == 0


async def _starved(fleet: Fleet, disk: FaultyDisk, producer: Producer) -> tuple[list[NodeState], str]:
    """Supervise a node whose disk is full and then has space; returns its states and the status reason."""
    states: list[NodeState] = []
    supervisor = Supervisor(fleet.local, on_change=lambda node, watch: states.append(watch.state))
    stop = asyncio.Event()
    with sole_supervisor(fleet.local.layout):
        await supervisor.start()
        running = asyncio.create_task(supervisor.run(stop))
        disk.full()
        producer.produce("orders", b"x" * 1000)
        producer.flush(0)
        why = await _why_restarting(fleet)
        disk.heal()
        await _until(lambda: states[-1] is NodeState.READY)
        stop.set()
        await running
        for one in supervisor.watched:
            await one.prober.close()
    producer.purge()
    producer.poll(0)
    return states, why


async def _why_restarting(fleet: Fleet) -> str:
    """The reason in the status between two runs of the node."""
    while True:
        (node,) = (await fleet_status(fleet.local)).nodes
        if node.state is NodeState.RESTARTING and "last error" in node.reason:
            return node.reason
        await asyncio.sleep(0.02)


async def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 110
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
