"""An overloaded broker: every tenant is limited to its share, and released afterwards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.broker_pressure import AutoTuner, BrokerTuner, TenantShare
from penstock.gateway.limits.pressure_reports import PressureWatch
from penstock.gateway.limits.tenant_quota import Quotas
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.gateway.process.worker_supervisor import as_worker
from penstock.gateway.settings import GatewaySettings
from penstock.model.events import Dimension
from penstock.model.ids import LogicalClusterId
from penstock.quota.pressure import WAIT_SECONDS
from tests.gateway.wires import BROKER, quiet_gateway, serving_session
from tests.harness.fleet import wait_for
from tests.harness.gateway import brokers_of, new_access, start_gateway, wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.gateway.limits.tenant_quota import Rates
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

INGRESS = Dimension.INGRESS_BYTES
TICKS = 100  # per second
CHUNK_BYTES = 4_000
TENANTS = 10
PARTS = sum(range(1, TENANTS + 1))


@dataclass
class Greedy:
    """A tenant that offers its quota, on its own clock, and waits as requested."""

    share: TenantShare
    quota: float
    offers: bool = True
    saved: float = 0.0
    may_at: float = 0.0

    def tick(self, now: float) -> None:
        self.saved = min(self.saved + self.quota / TICKS, self.quota) if self.offers else 0.0
        while self.saved >= CHUNK_BYTES and now >= self.may_at:
            self.saved -= CHUNK_BYTES
            self.share.usage.bytes_in += CHUNK_BYTES
            if self.share.usage.bytes_in > self.share.usage.bytes_in_check_at:
                self.may_at = now + self.share.quota.charge_ingress(now)
                if self.may_at > now:
                    self.share.quota.queue(INGRESS).waited_at = self.may_at


@dataclass
class Harness:
    """Ten tenants with quotas 1 : 2 : 3 …, whose sum is twice their broker's limit."""

    limit: float = 1e6
    now: float = 0.0
    tenants: dict[LogicalClusterId, Greedy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker = BrokerTuner({INGRESS: self.limit})
        for number in range(1, TENANTS + 1):
            name = LogicalClusterId(f"lkc-00000{number:x}")
            quota = 2 * self.limit * number / PARTS
            self.tenants[name] = Greedy(self.broker.share(name, 0.0), quota)

    def rates(self, tenant: LogicalClusterId) -> Rates:
        return {INGRESS: self.tenants[tenant].quota}

    def seconds(self, count: int) -> list[float]:
        """What each tenant got meanwhile, per second."""
        before = [one.share.usage.bytes_in for one in self.tenants.values()]
        for _ in range(count):
            for _ in range(TICKS):
                self.now += 1 / TICKS
                for one in self.tenants.values():
                    one.tick(self.now)
            self.broker.update(self.rates, 0.0, self.now)
        after = [one.share.usage.bytes_in for one in self.tenants.values()]
        return [(later - earlier) / count for earlier, later in zip(before, after)]


def test_an_overloaded_broker_limits_tenants_in_proportion_to_their_quotas() -> None:
    rig = Harness()
    rig.seconds(3)

    got = rig.seconds(20)

    assert sum(got) == pytest.approx(rig.limit, rel=0.05)
    for number, rate in enumerate(got, start=1):
        assert rate == pytest.approx(rig.limit * number / PARTS, rel=0.1)


def test_limits_are_lifted_within_three_seconds_after_the_overload() -> None:
    rig = Harness()
    rig.seconds(10)
    last = list(rig.tenants.values())[-1]
    for one in rig.tenants.values():
        one.offers = one is last

    rig.seconds(3)
    got = rig.seconds(5)

    assert rig.broker.levels == {INGRESS: 1.0}
    assert got[-1] == pytest.approx(last.quota, rel=0.02)


def test_a_tenant_below_its_share_is_not_limited() -> None:
    rig = Harness()
    modest = rig.tenants[LogicalClusterId("lkc-00000a")]
    whole, modest.quota = modest.quota, modest.quota / 10  # it offers a tenth of its quota
    rates = rig.rates
    rig.rates = lambda tenant: (  # type: ignore[method-assign]  # of this one
        {INGRESS: whole} if tenant == "lkc-00000a" else rates(tenant)
    )
    rig.seconds(3)

    got = rig.seconds(10)

    assert got[-1] == pytest.approx(whole / 10, rel=0.02)
    assert sum(got) == pytest.approx(rig.limit, rel=0.05)


def test_tenants_without_quotas_share_equally() -> None:
    broker = BrokerTuner({INGRESS: 1000.0})
    parts = [broker.share(LogicalClusterId(f"lkc-0000{n:02d}"), 0.0) for n in range(50)]
    broker.update(lambda _: {}, 0.0, 0.0)
    for part in parts:
        part.usage.bytes_in += 100

    broker.update(lambda _: {}, 0.0, 1.0)

    assert [part.rate(INGRESS) for part in parts] == pytest.approx([20.0] * 50)


def test_a_single_tenant_without_a_quota_is_limited() -> None:
    rig = Harness()
    (name, alone), *others = rig.tenants.items()
    alone.quota = 5 * rig.limit  # its offered rate
    for _, one in others:
        one.offers = False
    rig.rates = lambda tenant: (  # type: ignore[method-assign]  # of this one
        {} if tenant == name else {INGRESS: 1.0}
    )
    rig.seconds(3)

    got = rig.seconds(20)

    assert got[0] == pytest.approx(rig.limit, rel=0.05)


def test_the_limit_falls_while_requests_wait_and_is_lifted_when_they_do_not() -> None:
    broker = BrokerTuner({})
    busy, calm = (broker.share(LogicalClusterId(f"lkc-00000{n}"), 0.0) for n in (1, 2))
    quota = {Dimension.INGRESS_BYTES: 1e6}
    broker.update(lambda _: quota, 0.0, 0.0)

    def second(number: int, waited: float) -> None:
        busy.usage.service_seconds += 0.8
        calm.usage.service_seconds += 0.01
        broker.update(lambda _: quota, waited, float(number))

    for number in range(1, 4):
        second(number, WAIT_SECONDS * 2)
    held = busy.rate(Dimension.REQUEST_TIME_US)
    for number in range(4, 30):
        busy.usage.service_seconds -= 0.6  # the broker does less now
        second(number, 0.0)

    assert held < 0.8e6
    assert calm.rate(Dimension.REQUEST_TIME_US) > 0.01e6
    assert broker.adaptive == {}


def test_a_stalled_broker_leaves_each_tenant_a_minimum() -> None:
    broker = BrokerTuner({})
    part = broker.share(LogicalClusterId("lkc-000001"), 0.0)
    broker.update(lambda _: {}, 0.0, 0.0)
    part.usage.bytes_in = 1_000_000
    for number in range(1, 60):
        broker.update(lambda _: {}, 5.0, float(number))

    assert part.rate(INGRESS) >= 0.05 * 1_000_000


@pytest.mark.parametrize(("gateways", "workers"), [(1, 1), (3, 1), (3, 2)])
def test_gateways_and_workers_split_a_brokers_limit(tmp_path: Path, gateways: int, workers: int) -> None:
    limit, now = 60_000.0, 0.0
    broker = replace(BROKER, limits={INGRESS: limit})
    stated = GatewaySettings("gw", "", "", tmp_path, gateways=gateways, workers=workers)
    settings = [as_worker(stated, index) if workers > 1 else stated for index in range(workers)]
    tunings = [AutoTuner(Quotas(), gateways=one.gateways) for one in settings for _ in range(gateways)]

    parts = [tuner.share(broker, LogicalClusterId("lkc-000001"), now) for tuner in tunings]
    for part in filter(None, parts):
        part.usage.bytes_in += int(limit)
    for second in range(2):
        for tuner in tunings:
            for _, held in tuner:
                held.update(lambda _: {}, 0.0, float(second))

    assert len(tunings) == gateways * workers
    assert sum(part.rate(INGRESS) for part in parts if part is not None) == pytest.approx(limit)


async def test_changed_limits_apply_to_existing_connections() -> None:
    gateway = quiet_gateway()
    tuner = gateway.services.tuner = AutoTuner(gateway.services.quotas)
    gateway.sessions[1], _, _ = serving_session(gateway)
    held = []
    for second, limits in enumerate(({}, {INGRESS: 1000.0}, {INGRESS: 500.0}, {})):
        gateway.apply_config(replace(gateway.config, brokers=(replace(BROKER, limits=limits),)))
        for look in (0.0, 0.3, 0.6):
            for _, broker in tuner:
                for part in broker.shares.values():
                    part.usage.bytes_in += 1_000_000
            tuner.update(gateway, {}, second + look)
        held.append([part.rate(INGRESS) for _, broker in tuner for part in broker.shares.values()])

    assert held == [[], [1000.0], [500.0], []]


def test_logins_beyond_a_brokers_limit_are_refused_in_proportion_to_quotas() -> None:
    attempts = Dimension.CONNECTION_ATTEMPTS
    broker = BrokerTuner({attempts: 30.0})
    quotas = {LogicalClusterId("lkc-000001"): 20.0, LogicalClusterId("lkc-000002"): 40.0}
    parts = {tenant: broker.share(tenant, 0.0) for tenant in quotas}
    admitted = dict.fromkeys(quotas, 0)
    broker.update(lambda tenant: {attempts: quotas[tenant]}, 0.0, 0.0)
    for tick in range(1, 13 * TICKS):
        for tenant, part in parts.items():
            denial = part.attempt(tick / TICKS)
            admitted[tenant] += denial is None and tick >= 3 * TICKS
            assert denial in (None, Denial.BROKER_RATE)
        if tick % TICKS == 0:
            broker.update(lambda tenant: {attempts: quotas[tenant]}, 0.0, tick / TICKS)

    first, second = admitted.values()
    assert first + second == pytest.approx(300, rel=0.05)
    assert second / first == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("rate", [0.0, *(step / 97 for step in range(1, 98))])
def test_a_login_is_admitted_again_at_any_rate(rate: float) -> None:
    part = TenantShare(0.0)
    part.retune({Dimension.CONNECTION_ATTEMPTS: rate}, 0.0)

    denials = [part.attempt(now) for now in (0.0, 0.0, 1e7)]

    assert denials == [None, Denial.BROKER_RATE, None]


def test_a_gateway_without_overload_does_not_import_numpy() -> None:
    imported = "'numpy' in sys.modules or 'cramjam' in sys.modules"
    program = f"import sys, penstock.cli.operator.gateway; sys.exit({imported})"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@contextmanager
def producing(accesses: list[Access]) -> Iterator[None]:
    """Produce as fast as each of them can."""
    ended = threading.Event()

    def produce(access: Access) -> None:
        producer = Producer(access.client_config(linger_ms=0, queue_buffering_max_kbytes=64))
        while not ended.is_set():
            try:
                producer.produce("load", bytes(CHUNK_BYTES))
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
        producer.purge()

    threads = [threading.Thread(target=produce, args=(access,)) for access in accesses]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.kafka
def test_tenants_share_a_brokers_limit_by_quota_and_the_metrics_show_the_reason(
    make_fleet: Callable[..., Fleet],
) -> None:
    limit, seen_bytes = 600_000.0, 6_000_000
    fleet = make_fleet()
    quotas = Quotas()
    tuner = AutoTuner(quotas)
    accesses = [new_access(quota={INGRESS: 2 * limit * n / 6}) for n in (1, 2, 3)]
    brokers = [replace(broker, limits={INGRESS: limit}) for broker in brokers_of(fleet)]
    running = start_gateway(fleet, accesses, brokers=brokers, quotas=quotas, tuner=tuner)
    gateway = running.gateway

    async def begin() -> list[asyncio.Task[None]]:
        watch = PressureWatch(gateway)
        return [asyncio.create_task(watch.run(None)), asyncio.create_task(tuner.run(gateway, watch))]

    def used() -> tuple[float, list[int]]:
        return time.monotonic(), [gateway.usage[one.tenant.id].bytes_in for one in accesses]

    def level() -> float:
        return next((t.levels.get(INGRESS, 1.0) for _, t in tuner), 1.0)

    tasks = running.call(begin())
    try:
        for access in running.accesses:
            client = AdminClient(access.client_config())
            client.create_topics([NewTopic("load", 1, 1)])["load"].result(60)
            asyncio.run(wait_for_topic(access, "load"))
        with producing(running.accesses):
            wait_for(lambda: running.do(level) < 0.6, what="a level below all")
            begun, before = running.do(used)
            wait_for(lambda: sum(running.do(used)[1]) > sum(before) + seen_bytes, what="some bytes")
            ended, after = running.do(used)
        got = [later - earlier for earlier, later in zip(before, after)]
        wait_for(lambda: running.do(level) == 1.0, what="everything given back")

        # Their quotas allow twice the limit; `bench.isolation` measures how exact the sharing is.
        assert sum(got) <= limit * (ended - begun) * 1.4 + 3 * CHUNK_BYTES
        for part, amount in zip((1, 2, 3), got):
            assert amount == pytest.approx(sum(got) * part / 6, rel=0.3)
        throttled = {
            (sample.labels["tenant"], sample.labels["reason"])
            for family in running.do(lambda: list(GatewayMetrics(gateway, tuner).collect()))
            if family.name == "penstock_gateway_throttled_seconds"
            for sample in family.samples
        }
        assert {(str(access.tenant.id), "broker_pressure") for access in accesses} <= throttled
    finally:

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        running.call(end())
        running.stop()
