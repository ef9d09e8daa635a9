"""Coordinators on a real Kafka: shares follow the traffic, and a killed coordinator is replaced."""

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

from penstock.control.gateways.state_publisher import COMPACTED
from penstock.fleet.local_fleet import save_fleet_document
from penstock.gateway.limits.quota_shares import QuotaShareFollower, UsageReporter
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic as KafkaTopic
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.model.events import Dimension, QuotaShares, UsageReport
from penstock.model.key_names import STATE_TOPIC
from penstock.model.tenant_state import TenantState
from penstock.quota.share_follower import ShareFollower
from penstock.quota.topics import ensure_topics, usage_partition
from tests.harness.command import clean_environment
from tests.harness.fleet import THREE_ZONES, wait_for
from tests.harness.gateway import Access, RunningGateway, new_access, start_gateway, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

INGRESS = Dimension.INGRESS_BYTES
QUOTA = 1_500_000.0
NAMES = ("a", "b", "c")
INTERVALS_MAX = 3
INTERVAL_SECONDS = 3
RECORD_BYTES = 20_000


@dataclass
class ReportingGateway:
    """A gateway that reports use and enforces its shares."""

    name: str
    running: RunningGateway
    shares: QuotaShareFollower
    reporter: UsageReporter
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


def start_reporting(fleet: Fleet, name: str, access: Access) -> ReportingGateway:
    client = Client(fleet.bootstrap, fleet.security())
    shares, reporter = QuotaShareFollower(client, name, len(NAMES)), UsageReporter()
    running = start_gateway(fleet, [access], name=name, publish=reporter, quotas=shares.quotas)
    reporting = ReportingGateway(name, running, shares, reporter, client)

    async def run() -> None:
        reporting.tasks += [
            asyncio.create_task(shares.run(running.gateway)),
            asyncio.create_task(reporter.run(client)),
        ]

    running.call(run())
    return reporting


@dataclass
class ThreeGateways:
    fleet: Fleet
    gateways: dict[str, ReportingGateway]
    published: list[QuotaShares] = field(default_factory=list)

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """A producer at full speed at the first gateway; idle connections at the others."""
        access = self.gateways["a"].access
        client = AdminClient(access.client_config())
        client.create_topics([NewTopic("load", 3, 3)])["load"].result(60)
        asyncio.run(wait_for_topic(access, "load"))
        idle = [AdminClient(self.gateways[name].access.client_config()) for name in ("b", "c")]
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
    """A coordinator process, on the home of the fleet."""
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
def following(fleet: Fleet, tenant: str, received: list[QuotaShares]) -> Iterator[None]:
    """Collects the shares that coordinators publish for a tenant."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def follow() -> None:
        async with Client(fleet.bootstrap, fleet.security()) as client:
            shares = ShareFollower(
                client, on_shares=lambda new: received.append(new) if new.tenant == tenant else None
            )
            await shares.follower.run()

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(follow())

    async def end() -> None:
        task.cancel()
        await asyncio.wait({task})

    task = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def declare(fleet: Fleet, access: Access) -> None:
    """Publishes the tenant's quota in the cluster's state, as the control plane does."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        await ensure_topics(client)
        await ensure_topic(client, KafkaTopic(STATE_TOPIC, 1, configs=COMPACTED))
        state = TenantState(id=access.tenant.id, version=1, quota={str(INGRESS): QUOTA})
        record = state.to_record()
        await append(client, TopicPartition(STATE_TOPIC, 0), [(record.key, record.to_bytes())])


@pytest.fixture
def three_gateways(fleet: Fleet) -> Iterator[ThreeGateways]:
    access = new_access(quota={INGRESS: QUOTA})
    save_fleet_document(fleet.local.layout, {"clusters": [dict(THREE_ZONES)]})
    asyncio.run(declare(fleet, access))
    gateways = {name: start_reporting(fleet, name, access) for name in NAMES}
    scenario = ThreeGateways(fleet, gateways)
    with following(fleet, access.tenant.id, scenario.published):
        yield scenario
    for gateway in gateways.values():
        gateway.stop()


def share(published: QuotaShares, gateway: str = "a") -> float:
    return published.shares.get(gateway, {}).get(INGRESS, 0.0) / QUOTA


def test_a_tenant_at_one_gateway_gets_its_quota_within_three_intervals_and_keeps_it_when_its_coordinator_dies(
    three_gateways: ThreeGateways,
) -> None:
    first, published = three_gateways.gateways["a"], three_gateways.published
    with three_gateways.traffic(), coordinator(three_gateways.fleet) as active:
        assert first.limit() == pytest.approx(QUOTA / len(NAMES))

        wait_for(lambda: published and share(published[-1]) >= 0.95, what="its share")

        throttled = next(n for n, one in enumerate(published) if one.throttled.get("a"))
        reached = next(n for n, one in enumerate(published) if share(one) >= 0.95)
        assert reached - throttled < INTERVALS_MAX
        wait_for(lambda: first.limit() >= 0.95 * QUOTA, what="its limit")

        with coordinator(three_gateways.fleet):
            before = published[-1]
            active.kill()
            wait_for(lambda: published[-1].epoch > before.epoch, what="a successor")
            taken_over = len(published)
            wait_for(lambda: len(published) >= taken_over + 2, what="its decisions")

        assert min(share(one) for one in published[reached:]) >= 0.9
        assert first.limit() >= 0.9 * QUOTA
        assert set(published[-1].shares) == set(NAMES)
    for one in published:
        assert sum(share(one, gateway) for gateway in one.shares) <= 1 + 1e-9


async def reported(fleet: Fleet, tenant: str) -> dict[str, int]:
    """By gateway: the ingress in its last report."""
    partition = usage_partition(tenant.encode())
    ingress: dict[str, int] = {}
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, _ = await bounds(client, partition)
        while not (chunk := await read(client, partition, position)).caught_up or chunk.records:
            position = chunk.position
            for record in chunk.records:
                report = UsageReport.from_bytes(record.value)
                if report.tenant == tenant:
                    ingress[report.gateway] = max(ingress.get(report.gateway, 0), report.used[INGRESS])
    return ingress


def test_a_stopped_gateway_has_reported_everything_it_counted(fleet: Fleet) -> None:
    access = new_access()
    asyncio.run(declare(fleet, access))
    gateway = start_reporting(fleet, "a", access)
    try:
        client = AdminClient(gateway.access.client_config())
        client.create_topics([NewTopic("load", 1, 3)])["load"].result(60)
        asyncio.run(wait_for_topic(gateway.access, "load"))
        producer = Producer(gateway.access.client_config())
        for _ in range(50):
            producer.produce("load", bytes(RECORD_BYTES))
        assert producer.flush(60) == 0
    finally:
        gateway.stop()
    counted = gateway.running.gateway.usage[access.tenant.id].bytes_in

    assert counted > 50 * RECORD_BYTES
    # Only its leader acknowledged the report: it can be read once the followers have it.
    expected = {"a": counted}
    wait_for(lambda: asyncio.run(reported(fleet, access.tenant.id)) == expected, what=f"{expected} reported")
