"""Request time calibrated against brokers' request handlers, with given metrics and a real broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.spec import Listener
from penstock.gateway.config import Broker, BrokerMetrics
from penstock.gateway.limits.calibration import BrokerWork, Calibration
from penstock.gateway.limits.metering import Source, Usage
from penstock.gateway.limits.shared_counters import SharedCounters
from penstock.gateway.limits.tenant_quota import Quotas, TenantQuota
from penstock.gateway.process.metrics import GatewayMetrics
from penstock.kafka.admin.groups import list_all
from penstock.kafka.client import Client
from penstock.kafka.metrics_scrape import scrape
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId
from penstock.quota.calibration import (
    FACTOR_MAX,
    FACTOR_MIN,
    CalibrationState,
    HandlerSample,
    busy_ratio,
    updated_calibration,
    work_seconds,
)
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import RunningGateway

TIME = Dimension.REQUEST_TIME_US
THREADS = 4
IDLE_SECONDS = 3.0
POLL_SECONDS = 1.0  # how long a handler may have been idle before it reports it, and a margin
METRICS = BrokerMetrics("127.0.0.1", 1, THREADS)


def test_work_is_the_time_handlers_were_not_idle() -> None:
    assert work_seconds(HandlerSample(10.0, 5.0), HandlerSample(20.0, 12.5), THREADS) == pytest.approx(10.0)
    assert (
        work_seconds(HandlerSample(10.0, 5.0), HandlerSample(20.0, 0.5), THREADS) is None
    )  # the broker was restarted
    assert work_seconds(HandlerSample(10.0, 5.0), HandlerSample(20.0, 15.1), THREADS) == 0.0
    assert busy_ratio(HandlerSample(10.0, 5.0), HandlerSample(20.0, 12.5)) == pytest.approx(0.25)
    assert busy_ratio(HandlerSample(10.0, 5.0), HandlerSample(20.0, 0.5)) is None


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), max_size=50))
def test_the_factor_is_bounded_for_any_input(intervals: list[tuple[float, float]]) -> None:
    calibration = CalibrationState()
    for work, seen in intervals:
        calibration = updated_calibration(calibration, work, seen)

        assert FACTOR_MIN <= calibration.factor <= FACTOR_MAX


def test_a_busy_interval_counts_at_once_after_quiet_ones() -> None:
    calibration = CalibrationState()
    for _ in range(50):
        calibration = updated_calibration(calibration, 0.2, 0.05)
    quiet = calibration.factor

    busy = updated_calibration(calibration, 2.0, 20.0)

    assert quiet == FACTOR_MAX
    assert busy.factor == pytest.approx(0.1, rel=0.3)


def test_the_factor_converges_to_the_ratio_of_work_to_observed_time() -> None:
    work = BrokerWork(METRICS)
    for number in range(30):  # handlers are busy for a twentieth of 4 × 10 s, gateways observed 8 s
        work.correction(8.0)
        work.update(HandlerSample(10.0 * number, 9.5 * number))
    calibration = work.factor
    for number in range(30, 60):
        work.update(HandlerSample(10.0 * number, 9.5 * 30 + 10.0 * (number - 30)))

    assert calibration == pytest.approx(0.25, rel=0.01)
    assert work.factor == calibration


def test_other_workers_count_and_a_restarted_one_does_no_harm() -> None:
    work = BrokerWork(METRICS)
    for number in range(60):  # likewise, but 2 s of the 8 s here; the other worker restarts halfway
        work.correction(2.0)
        work.update(HandlerSample(10.0 * number, 9.5 * number), [(6.0 * (number % 30 + 1),)])

    assert work.factor == pytest.approx(0.25, rel=0.01)


def test_tenants_are_charged_for_work_alone() -> None:
    quota, usage = TenantQuota(), Usage()
    quota.retune({TIME: 1e6}, now=0.0)
    quota.bind(usage)
    usage.service_seconds, usage.calibration = 6.0, -4.5  # a quarter of it

    report = usage.report(
        Source(PhysicalClusterId("pkc-000000"), "gw-1", "1"), LogicalClusterId("lkc-aaaaaa"), 1, 1
    )

    assert usage.service_seconds > quota.service_check_at  # so it is charged
    assert quota.charge_service_time(now=0.0) == 0.5
    assert report.used[TIME] == 1_500_000


@pytest.mark.kafka
def test_a_brokers_factor_follows_its_handlers_and_is_shown_in_the_metrics(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway]
) -> None:
    (node, *_) = fleet.brokers
    metrics = BrokerMetrics("127.0.0.1", node.spec.ports[Listener.METRICS], THREADS)
    calibration = Calibration(
        [Broker(BrokerId(node.spec.id), node.spec.zone, node.spec.host, 1, 0, {}, metrics)], SharedCounters()
    )
    running = make_gateway(new_access(), quotas=Quotas(), calibration=calibration)
    (access,) = running.accesses
    ((number, work),) = calibration

    async def ask() -> None:
        async with Client(access.bootstrap, access.security()) as client:
            for _ in range(200):
                await list_all(client)

    def idle_seconds() -> float:
        report = asyncio.run(scrape(metrics.host, metrics.port))
        return report.broker.handler_idle_nanoseconds / 1e9

    begin, first = time.monotonic(), idle_seconds()
    wait_for(lambda: idle_seconds() > first + IDLE_SECONDS, what="handlers that were idle")
    assert time.monotonic() - begin > IDLE_SECONDS - POLL_SECONDS  # of one handler, not of all together
    running.call(calibration.update())
    asyncio.run(ask())
    wait_for(lambda: work.seen_seconds > 0.05 or asyncio.run(ask()), what="requests that took time")
    running.call(calibration.update())

    assert FACTOR_MIN <= work.factor <= FACTOR_MAX
    families = running.do(lambda: list(GatewayMetrics(running.gateway, None, calibration).collect()))
    (report,) = (f for f in families if f.name == "penstock_gateway_request_time_factor")
    assert [(s.labels, s.value) for s in report.samples] == [({"broker": str(number)}, work.factor)]
    usage = running.gateway.usage[access.tenant.id]
    assert -usage.service_seconds < usage.calibration <= 0.0
