"""Killed, frozen and starved: nothing acknowledged is lost, everything comes back, status tells it."""

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
from penstock.fleet.status import fleet_status
from penstock.fleet.supervisor import Supervisor, sole_supervisor
from penstock.fleet.watch import NodeState
from tests.ground.command import Penstock
from tests.ground.fleet import wait_for
from tests.ground.platform import Platform, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from tests.ground.disk import FaultyDisk
    from tests.ground.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]  # one node after the other is started again

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
    """A producer with acks=all that never stops, and what it was promised."""

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
        """Until so many more records were acknowledged: the cluster takes writes."""
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
    """Everything that the topic holds now."""
    consumer = Consumer(config | {"group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = set(), set()
    try:
        while len(ended) < PARTITIONS:
            record = consumer.poll(SECONDS_MAX)
            assert record is not None, f"nothing came for {SECONDS_MAX} s"
            if record.error() is None:
                found.add(int(record.value()))
            elif record.error().code() == KafkaError._PARTITION_EOF:
                ended.add(record.partition())  # told again, if its leader was lost meanwhile
    finally:
        consumer.close()
    return found


def test_kill_9_of_any_process_loses_no_acknowledged_record_and_status_tells_the_truth(
    platform: Platform, unique: Callable[[str], str]
) -> None:
    config, topic = platform.client_config(), unique("orders")
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(SECONDS_MAX)
    nodes = list(platform.processes())

    with Witness(platform) as witness, Load(config, topic) as load:
        load.wait_for_more()
        for node in nodes:
            before = platform.process(node)
            witness.saw_die(platform.kill(node))
            platform.wait_ready()
            assert platform.process(node) not in (None, before)
            load.wait_for_more()
        left = platform.processes()
        platform.kill_supervisor()
        load.wait_for_more()
        platform.up()
        assert platform.processes() == left, "the next supervisor takes the very same processes"
        load.wait_for_more()

    assert load.refused == []
    assert load.acknowledged - consumed(config, topic) == set()
    assert witness.lies() == []
    for node in nodes:
        states = witness.states(node)
        assert states[0] == states[-1] == "ready"
        assert {"restarting", "starting"} & set(states), states
        assert "stopped" not in states, "it was on its way back all the time"
    restarts = {node.node: node.restarts for node in platform.status().nodes}
    assert set(restarts.values()) == {0}, "a new supervisor has restarted nothing yet"


def test_a_frozen_node_is_unresponsive_and_ready_again_once_it_thaws(platform: Platform) -> None:
    process = platform.process("b3")
    assert process is not None
    process.signal(signal.SIGSTOP)
    try:
        wait_for(lambda: state_of(platform, "b3") == "unresponsive", what="it to be noticed")
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
    (found,) = (str(node.state) for node in platform.status().nodes if node.node == name)
    return found


def test_up_beside_a_fleet_that_is_up_changes_nothing(platform: Platform) -> None:
    before, supervisor = platform.processes(), platform.supervisor()
    assert supervisor is not None
    said = platform.layout.supervisor_log.read_bytes()

    ran = [platform.penstock("up", "-o", "json"), platform.penstock("up", "--detach", "-o", "json")]

    assert [(one.code, one.error["code"]) for one in ran] == [(1, "PEN-2010")] * 2
    assert f"process {supervisor.pid} supervises" in ran[0].error["message"]
    assert (platform.processes(), platform.supervisor()) == (before, supervisor)
    assert platform.layout.supervisor_log.read_bytes().startswith(said)


def test_a_node_on_a_full_disk_is_restarted_until_there_is_room(
    tmp_path: Path, make_disk: Callable[[Path], FaultyDisk], make_fleet: Callable[..., Fleet]
) -> None:
    disk = make_disk(Layout(tmp_path / "fleet-0").node("home", "b1").data)
    fleet = make_fleet(environment={"b1": disk.environment()})
    quiet = {"log_level": 0}
    producer = Producer(fleet.client_config(acks="all") | quiet)
    admin = AdminClient(fleet.client_config() | quiet)
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(SECONDS_MAX)

    told, why = asyncio.run(_starved(fleet, disk, producer))

    assert "it ended; the supervisor starts it again" in why
    assert "No space left on device" in why
    assert told[:2] == [NodeState.READY, NodeState.RESTARTING]
    assert told[-1] is NodeState.READY
    producer.produce("orders", b"after")
    assert producer.flush(SECONDS_MAX) == 0


async def _starved(fleet: Fleet, disk: FaultyDisk, producer: Producer) -> tuple[list[NodeState], str]:
    """Supervise a node while its disk is full, then has room: what was told, and what status said."""
    told: list[NodeState] = []
    supervisor = Supervisor(fleet.local, told=lambda node, watch: told.append(watch.state))
    stop = asyncio.Event()
    with sole_supervisor(fleet.local.layout):
        await supervisor.start()
        keeping = asyncio.create_task(supervisor.keep(stop))
        disk.full()
        producer.produce("orders", b"x" * 1000)
        producer.flush(0)
        why = await _why_restarting(fleet)
        disk.heal()
        await _until(lambda: told[-1] is NodeState.READY)
        stop.set()
        await keeping
        for one in supervisor.watched:
            await one.prober.close()
    producer.purge()
    producer.poll(0)
    return told, why


async def _why_restarting(fleet: Fleet) -> str:
    """What status says of the node between two of its runs."""
    while True:
        (node,) = (await fleet_status(fleet.local)).nodes
        if node.state is NodeState.RESTARTING and "last words" in node.reason:
            return node.reason
        await asyncio.sleep(0.02)


async def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 110
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
