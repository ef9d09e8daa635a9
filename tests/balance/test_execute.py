"""Tenants moved between two cells of six real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.balance.cells import Broker, Cell, plan_cells
from penstock.balance.cluster_observation import observe
from penstock.balance.execute import move_tenant
from penstock.balance.replica_placement import PlacementRequest, fits, spread
from penstock.balance.replication_throttle import FOLLOWERS, LEADERS, RATES, is_platform_rate
from penstock.balance.tenant_move import Progress, Target
from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.configs import Source
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.model import fault_points
from penstock.model.errors.balance import MoveStalled
from penstock.model.ids import BrokerId, LogicalClusterId, Zone, new_logical_cluster_id
from tests.harness.fleet import Fleet, wait_for
from tests.harness.propagation import wait_for_leaders
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.harness.processes import Processes

pytestmark = pytest.mark.kafka

SIX = {"port": 0, "brokers": 6, "heap": 256}
PARTITIONS = 6
REPLICAS = 3
ARRIVAL_SECONDS_MAX = 60
LOST_CONNECTIONS = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


class Cells:
    """The fleet, divided into two cells."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.brokers = [Broker(BrokerId(node.spec.id), Zone(node.spec.zone)) for node in fleet.brokers]
        by_zone: dict[Zone, list[BrokerId]] = {}
        for broker in self.brokers:
            by_zone.setdefault(broker.zone, []).append(broker.id)
        self.one, self.two = plan_cells(by_zone, 3)

    def members(self, cell: Cell) -> tuple[Broker, ...]:
        return tuple(broker for broker in self.brokers if broker.id in cell.brokers)

    def client(self) -> Client:
        return Client(self.fleet.bootstrap, self.fleet.security())

    async def topic(self, client: Client, tenant: LogicalClusterId, name: str, cell: Cell) -> str:
        full = f"{tenant}_{name}"
        placed = spread(PlacementRequest(tenant, full, 0, PARTITIONS, REPLICAS, self.members(cell)))
        assert placed is not None
        replicas = {index: [int(b) for b in brokers] for index, brokers in enumerate(placed)}
        settings = {"min.insync.replicas": "2"}
        results_or_raise(
            await topics.create(client, [topics.NewTopic(full, replicas=replicas, configs=settings)])
        )
        await wait_for_leaders(self.fleet.bootstrap, self.fleet.security(), full, PARTITIONS)
        return full

    async def is_in(self, client: Client, topic: str, cell: Cell) -> bool:
        partitions = results_or_raise(await topics.describe(client, [topic]))[topic].partitions
        return fits([p.replicas for p in partitions], self.members(cell)) and all(
            p.leader == p.replicas[0] for p in partitions
        )


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    fleet = Fleet.start(tmp_path_factory.mktemp("cells"), SIX)
    yield Cells(fleet)
    fleet.destroy()


@pytest.fixture
def tenant() -> LogicalClusterId:
    return new_logical_cluster_id(random.SystemRandom().choice)


class Clients:
    """A producer and a consumer that run until the block ends, and their records and errors."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self.topic = topic
        self.acknowledged: list[tuple[int, int]] = []  # partition, number
        self.read: dict[tuple[int, int], int] = {}  # partition, offset: number
        self.errors: list[str] = []
        self._end = threading.Event()
        self._producer = Producer(
            config | {"enable.idempotence": True, "linger.ms": 5, "error_cb": self._on_error}
        )
        self._consumer = Consumer(config | {"group.id": topic, "error_cb": self._on_error})
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Clients:
        partitions = [TopicPartition(self.topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)]
        self._consumer.assign(partitions)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def more(self) -> None:
        """Returns when further records have been acknowledged and read."""
        sent, read = len(self.acknowledged), len(self.read)
        wait_for(lambda: len(self.acknowledged) > sent + 50 and len(self.read) > read + 50, what="traffic")

    def _produce(self) -> None:
        # Well below the rate of the move: a copy that writers outrun never ends.
        number, filler = 0, b"x" * 2_000
        while not self._end.wait(0.004):
            partition = number % PARTITIONS
            value = str(number).encode() + b" " + filler
            self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush(ARRIVAL_SECONDS_MAX)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        value = message.value()
        assert value is not None
        self.acknowledged.append((message.partition() or 0, int(value.split()[0])))

    def _consume(self) -> None:
        # Reads until everything that was acknowledged has been read.
        while (
            not self._end.is_set() or len(self.read) < len(self.acknowledged) or self._threads[0].is_alive()
        ):
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error, value = message.error(), message.value()
            if error is not None or value is None:
                self.errors.append(str(error))
                continue
            # A consumer whose leader changed may step back and read an offset again.
            self.read[message.partition() or 0, message.offset() or 0] = int(value.split()[0])

    def _on_error(self, error: KafkaError) -> None:
        # The client reports every lost connection here and reconnects by itself: no error. What it
        # gives up on is reported by a delivery or a poll.
        if error.fatal() or not (error.retriable() or error.code() in LOST_CONNECTIONS):
            self.errors.append(str(error))


async def remaining_throttles(client: Client, cells: Cells, topic: str) -> list[str]:
    """The throttles that are still set on any broker or on the topic."""
    resources = [configs.broker(int(broker.id)) for broker in cells.brokers]
    rate_entries = results_or_raise(await configs.describe(client, resources, names=RATES))
    rates = [
        f"{where}: {e.name}"
        for where, entries in rate_entries.items()
        for e in entries.values()
        if is_platform_rate(e)
    ]
    lists = results_or_raise(
        await configs.describe(client, [configs.topic(topic)], names=(LEADERS, FOLLOWERS))
    )
    return rates + [
        e.name for entries in lists.values() for e in entries.values() if e.source is Source.TOPIC
    ]


async def no_throttles_left(client: Client, cells: Cells, topic: str) -> bool:
    return not await remaining_throttles(client, cells, topic)


async def test_clients_work_through_a_move_and_lose_nothing(cells: Cells, tenant: LogicalClusterId) -> None:
    reports: list[Progress] = []
    async with cells.client() as client:
        topic = await cells.topic(client, tenant, "orders", cells.one)
        neighbour = await cells.topic(client, LogicalClusterId("lkc-zzzzzz"), "orders", cells.one)
        with Clients(cells.fleet.client_config(), topic) as clients:
            await asyncio.to_thread(clients.more)

            await move_tenant(
                client,
                Target(tenant, cells.members(cells.two)),
                rate=5e6,
                report=reports.append,
                poll_seconds=0.2,
            )
            await asyncio.to_thread(clients.more)

        assert clients.errors == []
        for partition in range(PARTITIONS):
            sent = [number for where, number in clients.acknowledged if where == partition]
            read = [number for (where, _), number in sorted(clients.read.items()) if where == partition]
            assert read == sorted(set(sent))  # the log has each once, in order, none missing
        await eventually(lambda: cells.is_in(client, topic, cells.two))
        assert await cells.is_in(client, neighbour, cells.one)
        await eventually(lambda: no_throttles_left(client, cells, topic))
    done = [report.partitions_done for report in reports]
    assert done == sorted(done)
    assert reports[-1].ratio == 1.0


@pytest.mark.parametrize("point", sorted(fault_points.points("balance.move")))
async def test_a_killed_move_is_resumed_by_calling_it_again(
    cells: Cells, tenant: LogicalClusterId, point: str, processes: Processes
) -> None:
    config = cells.fleet.client_config()
    members = cells.members(cells.two)
    plan = {
        "bootstrap": cells.fleet.bootstrap,
        "user": config["sasl.username"],
        "password": config["sasl.password"],
        "tenant": tenant,
        "brokers": [(broker.id, broker.zone) for broker in members],
        "rate": 3e6,
    }
    async with cells.client() as client:
        topic = await cells.topic(client, tenant, "orders", cells.one)
        command = [sys.executable, "-m", "tests.balance.move_process", json.dumps(plan)]
        child = processes.start(command, env=os.environ | {fault_points.FAULT_VARIABLE: point})
        assert await asyncio.to_thread(child.wait, ARRIVAL_SECONDS_MAX) == -signal.SIGKILL
        await eventually(lambda: remaining_throttles(client, cells, topic))  # throttles are set first

        await move_tenant(client, Target(tenant, members), rate=8e6, poll_seconds=0.1)

        await eventually(lambda: cells.is_in(client, topic, cells.two))
        await eventually(lambda: no_throttles_left(client, cells, topic))


async def test_a_rate_that_an_operator_set_stays(cells: Cells, tenant: LogicalClusterId) -> None:
    broker = configs.broker(int(cells.two.brokers[0]))
    async with cells.client() as client:
        topic = await cells.topic(client, tenant, "orders", cells.one)
        results_or_raise(await configs.alter(client, {broker: configs.changes({RATES[0]: "9000000"})}))

        await move_tenant(client, Target(tenant, cells.members(cells.two)), poll_seconds=0.1)

        entries = results_or_raise(await configs.describe(client, [broker], names=RATES))[broker]
        results_or_raise(await configs.alter(client, {broker: configs.changes({RATES[0]: None})}))
        assert entries[RATES[0]].value == "9000000"
        await eventually(lambda: no_throttles_left(client, cells, topic))


async def test_a_move_to_a_cell_with_a_dead_broker_stalls_before_it_starts(
    cells: Cells, tenant: LogicalClusterId
) -> None:
    dead = Broker(BrokerId(99), cells.brokers[0].zone)
    async with cells.client() as client:
        topic = await cells.topic(client, tenant, "orders", cells.one)
        target = Target(tenant, (*cells.members(cells.two), dead))

        with pytest.raises(MoveStalled) as stalled:
            await move_tenant(client, target, poll_seconds=0.05, stalled_seconds=0.2)

        assert "broker 99" in str(stalled.value)
        assert await cells.is_in(client, topic, cells.one)


async def test_a_tenant_that_has_moved_stays_where_it_is(cells: Cells, tenant: LogicalClusterId) -> None:
    async with cells.client() as client:
        topic = await cells.topic(client, tenant, "orders", cells.two)
        target = Target(tenant, cells.members(cells.two))
        before = (await observe(client, [topic])).partitions

        result = await move_tenant(client, target)

        assert result.partitions_done == PARTITIONS
        assert (await observe(client, [topic])).partitions == before
