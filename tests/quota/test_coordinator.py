"""Coordinators on a real Kafka: shares follow the traffic, and a coordinator that dies is replaced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.control.feeder import COMPACTED
from penstock.fleet.local import remember_spec
from penstock.gateway.shares import Reporter, Shares
from penstock.gateway.throttled import throttled_by
from penstock.kafka.appending import append
from penstock.kafka.client import Client
from penstock.kafka.log import bounds, ensure_topic, read
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.topics import NewTopic as KafkaTopic
from penstock.model.events import Dimension, QuotaShares, UsageReport
from penstock.model.keys import STATE_TOPIC
from penstock.model.tenantstate import TenantState
from penstock.quota.told import Told
from penstock.quota.topics import ensure_topics, usage_partition
from tests.ground.command import clean_environment
from tests.ground.fleet import THREE_ZONES, wait_for
from tests.ground.gateway import Access, RunningGateway, known_everywhere, new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka

INGRESS = Dimension.INGRESS_BYTES
QUOTA = 1_500_000.0
POINTS = ("a", "b", "c")
INTERVALS_MAX = 3
INTERVAL_SECONDS = 3
RECORD_BYTES = 20_000


@dataclass
class Point:
    """A gateway that reports and holds to its share."""

    name: str
    running: RunningGateway
    shares: Shares
    reporter: Reporter
    client: Client
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def access(self) -> Access:
        return self.running.accesses[0]

    def limit(self) -> float:
        quota = self.shares.quotas.of(self.access.tenant.id)
        return self.running.do(lambda: quota.granted().get(INGRESS, 0.0))

    def stop(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.running.gateway.close()
            await self.reporter.flush(self.client)
            await self.client.close()

        self.running.call(end())
        self.running.stop()


def begin(fleet: Fleet, name: str, access: Access) -> Point:
    client = Client(fleet.bootstrap, fleet.security())
    shares, reporter = Shares(client, name, len(POINTS)), Reporter()
    running = start_gateway(
        fleet, [access], name=name, evidence=reporter, session=throttled_by(shares.quotas)
    )
    point = Point(name, running, shares, reporter, client)

    async def run() -> None:
        gateway = running.gateway
        point.tasks += [asyncio.create_task(shares.run(gateway)), asyncio.create_task(reporter.run(client))]

    running.call(run())
    return point


@dataclass
class Ground:
    fleet: Fleet
    points: dict[str, Point]
    told: list[QuotaShares] = field(default_factory=list)

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """As much as a producer can, at the first gateway alone; idle connections at the others."""
        access = self.points["a"].access
        client = AdminClient(access.client_config())
        client.create_topics([NewTopic("load", 3, 3)])["load"].result(60)
        asyncio.run(known_everywhere(access, "load"))
        idle = [AdminClient(self.points[name].access.client_config()) for name in ("b", "c")]
        for one in idle:
            one.list_topics(timeout=60)
        ended = threading.Event()
        producer = Producer(access.client_config(linger_ms=5, queue_buffering_max_kbytes=4000))

        def produce() -> None:
            while not ended.is_set():
                try:
                    producer.produce("load", bytes(RECORD_BYTES))
                except BufferError:
                    producer.poll(0.05)
                producer.poll(0)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            producer.purge()


@contextmanager
def coordinator(fleet: Fleet) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, on the home of the fleet."""
    home = str(fleet.local.layout.home)
    words = ["quota", "coordinate", "--interval", str(INTERVAL_SECONDS), "--home", home, "--until-stdin-ends"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stdin=subprocess.PIPE, env=clean_environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def listening(fleet: Fleet, tenant: str, heard: list[QuotaShares]) -> Iterator[None]:
    """What coordinators tell of a tenant, as it comes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def follow() -> None:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            told = Told(client, news=lambda news: heard.append(news) if news.tenant == tenant else None)
            await told.follower.run()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(follow())

    async def end() -> None:
        following.cancel()
        await asyncio.wait({following})

    following = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def declare(fleet: Fleet, access: Access) -> None:
    """As the control plane does it: the tenant's quota stands in the cluster's state."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        await ensure_topics(client)
        await ensure_topic(client, KafkaTopic(STATE_TOPIC, 1, configs=COMPACTED))
        state = TenantState(id=access.tenant.id, version=1, quota={str(INGRESS): QUOTA})
        record = state.to_record()
        await append(client, TopicPartition(STATE_TOPIC, 0), [(record.key, record.to_bytes())])


@pytest.fixture
def ground(fleet: Fleet) -> Iterator[Ground]:
    access = new_access(quota={INGRESS: QUOTA})
    remember_spec(fleet.local.layout, {"clusters": [dict(THREE_ZONES)]})
    asyncio.run(declare(fleet, access))
    points = {name: begin(fleet, name, access) for name in POINTS}
    made = Ground(fleet, points)
    with listening(fleet, access.tenant.id, made.told):
        yield made
    for point in points.values():
        point.stop()


def share(told: QuotaShares, point: str = "a") -> float:
    return told.shares.get(point, {}).get(INGRESS, 0.0) / QUOTA


def test_a_lopsided_tenant_gets_its_quota_within_three_intervals_and_keeps_it_when_its_coordinator_dies(
    ground: Ground,
) -> None:
    first, told = ground.points["a"], ground.told
    with ground.traffic(), coordinator(ground.fleet) as decides:
        assert first.limit() == pytest.approx(QUOTA / len(POINTS))

        wait_for(lambda: told and share(told[-1]) >= 0.95, what="its share")

        throttled = next(n for n, one in enumerate(told) if one.throttled.get("a"))
        reached = next(n for n, one in enumerate(told) if share(one) >= 0.95)
        assert reached - throttled < INTERVALS_MAX
        wait_for(lambda: first.limit() >= 0.95 * QUOTA, what="its limit")

        with coordinator(ground.fleet):
            before = told[-1]
            decides.kill()
            wait_for(lambda: told[-1].epoch > before.epoch, what="a successor")
            taken_over = len(told)
            wait_for(lambda: len(told) >= taken_over + 2, what="its decisions")

        assert min(share(one) for one in told[reached:]) >= 0.9
        assert first.limit() >= 0.9 * QUOTA
        assert set(told[-1].shares) == set(POINTS)
    for one in told:
        assert sum(share(one, point) for point in one.shares) <= 1 + 1e-9


async def reported(fleet: Fleet, tenant: str) -> dict[str, int]:
    """By gateway: ingress as its last report has it."""
    partition = usage_partition(tenant.encode())
    found: dict[str, int] = {}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, _ = await bounds(client, partition)
        while not (chunk := await read(client, partition, position)).caught_up or chunk.records:
            position = chunk.position
            for record in chunk.records:
                report = UsageReport.from_bytes(record.value)
                if report.tenant == tenant:
                    found[report.gateway] = max(found.get(report.gateway, 0), report.used[INGRESS])
    return found


def test_what_was_reported_is_what_was_counted_when_a_gateway_ends(fleet: Fleet) -> None:
    access = new_access()
    asyncio.run(declare(fleet, access))
    point = begin(fleet, "a", access)
    try:
        client = AdminClient(point.access.client_config())
        client.create_topics([NewTopic("load", 1, 3)])["load"].result(60)
        asyncio.run(known_everywhere(point.access, "load"))
        producer = Producer(point.access.client_config())
        for _ in range(50):
            producer.produce("load", bytes(RECORD_BYTES))
        assert producer.flush(60) == 0
    finally:
        point.stop()
    counted = point.running.gateway.usage[access.tenant.id].bytes_in

    assert counted > 50 * RECORD_BYTES
    assert asyncio.run(reported(fleet, access.tenant.id)) == {"a": counted}
