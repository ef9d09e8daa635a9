"""Real brokers for `bench.cells`: what a request costs, and a move across six of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.fleets import kill_nodes
from bench.measure import processor_seconds
from penstock.balance.cells import Broker, plan_cells
from penstock.balance.execute import move_tenant
from penstock.balance.replica_placement import PlacementRequest, spread
from penstock.balance.tenant_move import Target
from penstock.fleet.credentials.passwords import PLATFORM_USER, SCRAM_MECHANISM
from penstock.fleet.layout import Layout
from penstock.fleet.local_fleet import LocalFleet, open_fleet
from penstock.fleet.readiness import security_of, wait_until_ready
from penstock.fleet.runtime import obtain_runtime
from penstock.fleet.spec_file import parse_fleet
from penstock.fleet.supervisor import stop_nodes
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.kafka.routing import LeaderOf
from penstock.model.ids import BrokerId, LogicalClusterId, Zone
from penstock.sim.cell_batching import Costs
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

BY_NAME_LAST = 12  # the last version of Produce that names topics
SMALL_KB, LARGE_KB = 1, 256
SMALL_REQUESTS, LARGE_REQUESTS = 6_400, 640
WARM_REQUESTS = 16_000
LANES = 32
TENANT = LogicalClusterId("lkc-bench0")
PARTITIONS = 12


@asynccontextmanager
async def fleet_of(shape: Mapping[str, Any]) -> AsyncIterator[LocalFleet]:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    fleet = open_fleet(
        parse_fleet({"clusters": [{"port": 0, **shape}]}), Layout(home), await obtain_runtime()
    )
    try:
        await fleet.prepare()
        for node in fleet.nodes:
            await node.start()
        await wait_until_ready(list(fleet.nodes))
        yield fleet
    finally:
        try:
            await stop_nodes(fleet.nodes)
        finally:
            kill_nodes(fleet)
            shutil.rmtree(home, ignore_errors=True)


async def request_costs(rounds: int) -> list[Costs]:
    """A broker's processor time for a produce request, and for each kilobyte in it."""
    async with fleet_of({"brokers": 1, "zones": ["a"], "combined": True, "jit": "full"}) as fleet:
        node = fleet.nodes[0]
        identity = node.running()
        assert identity is not None
        bootstrap = fleet.clusters[0].cluster.spec.bootstrap()
        async with Client(bootstrap, security_of(node)) as client:
            results_or_raise(await topics.create(client, [topics.NewTopic("load", 1, 1)]))
            await client.leaders(["load"])
            await _append(client, 16, WARM_REQUESTS)
            costs = []
            for _ in range(rounds):
                seconds = []
                for kilobytes, requests in ((SMALL_KB, SMALL_REQUESTS), (LARGE_KB, LARGE_REQUESTS)):
                    before = processor_seconds(identity.pid)
                    await _append(client, kilobytes, requests)
                    seconds.append((processor_seconds(identity.pid) - before) / requests)
                kilobyte = (seconds[1] - seconds[0]) / (LARGE_KB - SMALL_KB)
                request = max(seconds[0] - kilobyte * SMALL_KB, 0.0)
                costs.append(Costs(request * 1e6, kilobyte * 1e6))
    return costs


async def _append(client: Client, kilobytes: int, requests: int) -> None:
    now = int(time.time() * 1000)
    batch = write([Record(i, now, None, bytes(1000)) for i in range(kilobytes)])
    data = {"Name": "load", "PartitionData": [{"Index": 0, "Records": batch}]}
    body = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [data]}

    # A busy broker serves many connections at once; a single one would add the cost of waking up.
    async def lane(name: str) -> None:
        for _ in range(requests // LANES):
            await client.call("Produce", body, to=LeaderOf("load", 0), version_max=BY_NAME_LAST, lane=name)

    await asyncio.gather(*(lane(str(number)) for number in range(LANES)))


@dataclass(frozen=True, slots=True)
class Moved:
    seconds: float
    megabytes: float
    errors: int
    acknowledged: int
    read: int


async def moved_under_load(*, megabytes: int) -> Moved:
    async with fleet_of({"brokers": 6, "heap": 256}) as fleet:
        cluster = fleet.clusters[0].cluster.spec
        brokers = [
            Broker(BrokerId(node.spec.id), Zone(node.spec.zone))
            for node in fleet.nodes
            if node.spec.is_broker
        ]
        zones: dict[Zone, list[BrokerId]] = {}
        for broker in brokers:
            zones.setdefault(broker.zone, []).append(broker.id)
        one, two = (tuple(b for b in brokers if b.id in cell.brokers) for cell in plan_cells(zones, 3))
        topic = f"{TENANT}_orders"
        placed = spread(PlacementRequest(TENANT, topic, 0, PARTITIONS, 3, one))
        assert placed is not None
        replicas = {index: list(map(int, row)) for index, row in enumerate(placed)}
        node = next(node for node in fleet.nodes if node.spec.is_broker)
        config: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap(),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": SCRAM_MECHANISM,
            "sasl.username": PLATFORM_USER,
            "sasl.password": fleet.access.credentials.platform,
        }
        async with Client(cluster.bootstrap(), security_of(node)) as client:
            results_or_raise(await topics.create(client, [topics.NewTopic(topic, replicas=replicas)]))
            await asyncio.to_thread(_fill, config, topic, megabytes)
            clients = _Clients(config, topic)
            await asyncio.to_thread(clients.start)
            start = time.monotonic()
            await move_tenant(client, Target(TENANT, two), rate=50e6)
            seconds = time.monotonic() - start
            await asyncio.to_thread(clients.stop)
    return Moved(seconds, megabytes, clients.errors, clients.acknowledged, clients.read)


def _fill(config: dict[str, Any], topic: str, megabytes: int) -> None:
    producer = Producer(config | {"linger.ms": 20})
    for number in range(megabytes * 10):
        producer.produce(topic, bytes(100_000), partition=number % PARTITIONS)
        producer.poll(0)
        if number % 100 == 99:
            producer.flush(60)
    producer.flush(60)


class _Clients:
    """A producer and a consumer that run during a move."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        self.errors = self.acknowledged = self.read = 0
        self._config, self._topic = config, topic
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = Producer(self._config | {"enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._end.wait(0.005):
            producer.produce(
                self._topic, bytes(1000), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            producer.poll(0)
            number += 1
        producer.flush(60)

    def _delivered(self, error: object, _: object) -> None:
        self.errors += error is not None
        self.acknowledged += error is None

    def _consume(self) -> None:
        consumer = Consumer(self._config | {"group.id": "bench"})
        consumer.assign([TopicPartition(self._topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
        while not self._end.is_set():
            if (message := consumer.poll(0.1)) is not None:
                self.errors += message.error() is not None
                self.read += message.error() is None
        consumer.close()
