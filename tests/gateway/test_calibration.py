"""Request time held against what brokers say of their request handlers: planted figures, and a real one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.spec import Listener
from penstock.gateway.calibration import Calibration, Work
from penstock.gateway.config import Broker, BrokerMetrics
from penstock.gateway.metering import Source, Usage
from penstock.gateway.metrics import Figures
from penstock.gateway.tally import Tally
from penstock.gateway.throttled import throttled_by
from penstock.gateway.throttling import Quotas, TenantQuota
from penstock.kafka.client import Client
from penstock.kafka.groups import list_all
from penstock.kafka.metrics import scrape
from penstock.model.events import Dimension
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId
from penstock.quota.calibration import (
    FACTOR_MAX,
    FACTOR_MIN,
    Calibrated,
    Handlers,
    busy_part,
    calibrated,
    work_seconds,
)
from tests.ground.fleet import wait_for
from tests.ground.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.ground.gateway import RunningGateway

TIME = Dimension.REQUEST_TIME_US
THREADS = 4
IDLE_SECONDS = 3.0
POLL_SECONDS = 1.0  # what a handler may have been idle before it says so, and more
METRICS = BrokerMetrics("127.0.0.1", 1, THREADS)


def test_what_handlers_did_is_what_they_were_not_idle() -> None:
    assert work_seconds(Handlers(10.0, 5.0), Handlers(20.0, 12.5), THREADS) == pytest.approx(10.0)
    assert work_seconds(Handlers(10.0, 5.0), Handlers(20.0, 0.5), THREADS) is None  # it was restarted
    assert work_seconds(Handlers(10.0, 5.0), Handlers(20.0, 15.1), THREADS) == 0.0
    assert busy_part(Handlers(10.0, 5.0), Handlers(20.0, 12.5)) == pytest.approx(0.25)
    assert busy_part(Handlers(10.0, 5.0), Handlers(20.0, 0.5)) is None


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1000)), max_size=50))
def test_the_factor_is_bounded_whatever_is_told(intervals: list[tuple[float, float]]) -> None:
    found = Calibrated()
    for work, seen in intervals:
        found = calibrated(found, work, seen)

        assert FACTOR_MIN <= found.factor <= FACTOR_MAX


def test_a_busy_interval_counts_at_once_after_quiet_ones_with_work_for_others() -> None:
    found = Calibrated()
    for _ in range(50):
        found = calibrated(found, 0.2, 0.05)
    quiet = found.factor

    busy = calibrated(found, 2.0, 20.0)

    assert quiet == FACTOR_MAX
    assert busy.factor == pytest.approx(0.1, rel=0.3)


def test_the_factor_comes_to_what_work_is_of_what_is_seen_and_stays_without_traffic() -> None:
    work = Work(METRICS)
    for number in range(30):  # handlers are busy for a twentieth of 4 × 10 s, gateways saw 8 s
        work.taken_off(8.0)
        work.told(Handlers(10.0 * number, 9.5 * number))
    found = work.factor
    for number in range(30, 60):
        work.told(Handlers(10.0 * number, 9.5 * 30 + 10.0 * (number - 30)))

    assert found == pytest.approx(0.25, rel=0.01)
    assert work.factor == found


def test_what_other_workers_of_the_gateway_saw_counts_and_one_that_began_anew_does_no_harm() -> None:
    work = Work(METRICS)
    for number in range(60):  # likewise, but 2 s of the 8 s here; the other begins anew halfway
        work.taken_off(2.0)
        work.told(Handlers(10.0 * number, 9.5 * number), [(6.0 * (number % 30 + 1),)])

    assert work.factor == pytest.approx(0.25, rel=0.01)


def test_tenants_are_charged_and_reported_by_what_was_work() -> None:
    quota, usage = TenantQuota(), Usage()
    quota.retune({TIME: 1e6}, now=0.0)
    quota.bind(usage)
    usage.service_seconds, usage.calibration = 6.0, -4.5  # a quarter of it

    told = usage.report(
        Source(PhysicalClusterId("pkc-000000"), "gw-1", "1"), LogicalClusterId("lkc-aaaaaa"), 1, 1
    )

    assert usage.service_seconds > quota.service_next  # so it is asked
    assert quota.served(now=0.0) == 0.5
    assert told.used[TIME] == 1_500_000


@pytest.mark.kafka
def test_a_broker_tells_of_its_handlers_and_its_factor_is_told(
    fleet: Fleet, make_gateway: Callable[..., RunningGateway]
) -> None:
    (node, *_) = fleet.brokers
    metrics = BrokerMetrics("127.0.0.1", node.spec.ports[Listener.METRICS], THREADS)
    calibration = Calibration(
        [Broker(BrokerId(node.spec.id), node.spec.zone, node.spec.host, 1, 0, {}, metrics)], Tally()
    )
    running = make_gateway(new_access(), session=throttled_by(Quotas(), None, calibration))
    (access,) = running.accesses
    ((number, work),) = calibration

    async def ask() -> None:
        async with Client(access.bootstrap, access.security()) as client:
            for _ in range(200):
                await list_all(client)

    def idle_seconds() -> float:
        told = asyncio.run(scrape(metrics.host, metrics.port))
        return told.broker.handler_idle_nanoseconds / 1e9

    begin, first = time.monotonic(), idle_seconds()
    wait_for(lambda: idle_seconds() > first + IDLE_SECONDS, what="handlers that were idle")
    assert time.monotonic() - begin > IDLE_SECONDS - POLL_SECONDS  # of one of them, not of all together
    running.call(calibration.look())
    asyncio.run(ask())
    wait_for(lambda: work.seen_seconds > 0.05 or asyncio.run(ask()), what="requests that took time")
    running.call(calibration.look())

    assert FACTOR_MIN <= work.factor <= FACTOR_MAX
    families = running.do(lambda: list(Figures(running.gateway, None, calibration).collect()))
    (told,) = (f for f in families if f.name == "penstock_gateway_request_time_factor")
    assert [(s.labels, s.value) for s in told.samples] == [({"broker": str(number)}, work.factor)]
    usage = running.gateway.usage[access.tenant.id]
    assert -usage.service_seconds < usage.calibration <= 0.0
