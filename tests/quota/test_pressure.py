"""When a broker is under pressure: how it begins, lasts and ends, and what gateways report."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import Broker, BrokerMetrics
from penstock.gateway.limits.metering import Source
from penstock.gateway.limits.pressure_reports import CONFIRMED_SECONDS, PressureWatch, in_flight
from penstock.kafka.broker_metrics import BrokerMetrics as ScrapedBrokerMetrics
from penstock.kafka.broker_metrics import ControllerMetrics, NodeMetrics
from penstock.kafka.connection import Connection
from penstock.model.errors.fleet import MetricsUnreachable
from penstock.model.events import BrokerPressure, Phase
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.quota.pressure import (
    HANDLERS_BUSY_MIN,
    QUEUED_MIN,
    REPORT_INTERVAL_MS,
    SUSTAINED,
    PressureState,
    Sample,
    observe,
)
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.gateway.process.server import Gateway
    from tests.harness.fleet import Fleet

SLOW, CALM, BETWEEN = 0.9, 0.1, 0.4


def phases(waits: Sequence[float]) -> list[Phase | None]:
    state, reported = PressureState(), []
    for second, waited in enumerate(waits):
        state, phase, _ = observe(state, Sample(second * 1000, 10, waited))
        reported.append(phase)
    return reported


def test_pressure_begins_and_ends_after_enough_samples_in_a_row() -> None:
    reported = phases([SLOW] * SUSTAINED + [CALM] * SUSTAINED)

    assert reported == [None] * 4 + [Phase.BEGAN] + [None] * 4 + [Phase.ENDED]


def test_an_occasional_stall_is_no_pressure() -> None:
    assert set(phases(([SLOW] * (SUSTAINED - 1) + [CALM]) * 5)) == {None}


def test_lasting_pressure_is_reported_again() -> None:
    reported = phases([SLOW] * (SUSTAINED + REPORT_INTERVAL_MS // 1000))

    assert reported[-1] is Phase.LASTS


def test_between_calm_and_slow_nothing_changes() -> None:
    assert Phase.ENDED not in phases([SLOW] * SUSTAINED + [BETWEEN] * 50)
    assert Phase.BEGAN not in phases([BETWEEN] * 50)


@given(st.lists(st.sampled_from((SLOW, CALM, BETWEEN)), max_size=200))
def test_pressure_begins_before_it_lasts_or_ends_and_ends_once(waits: list[float]) -> None:
    reported = [phase for phase in phases(waits) if phase is not None]

    for before, after in zip([None, *reported], reported):
        assert (after is Phase.BEGAN) == (before in (None, Phase.ENDED))


BROKERS = tuple(
    Broker(BrokerId(n), Zone("a"), "127.0.0.1", 9000 + n, 0, {}, BrokerMetrics("127.0.0.1", 9400 + n, 4))
    for n in (1, 2)
)


class PressedGateway:
    """A gateway with requests that have waited for a minute; scraping the second broker fails."""

    def __init__(self, busy: float = 1.0, queued: int = 0) -> None:
        self.busy, self.queued = busy, queued
        self.time = 100.0
        self.config = SimpleNamespace(brokers=BROKERS)
        self.report_source = Source(PhysicalClusterId("pkc-000000"), "gw-1", "1")
        since = self.now() - 60
        self.sessions = {
            n: SimpleNamespace(connection=SimpleNamespace(broker=broker, waiting_since=lambda: since))
            for n, broker in enumerate(BROKERS)
        }
        self.scrapes: list[int] = []
        self.watch = PressureWatch(cast("Gateway", self), self.scrape)

    def now(self) -> float:
        return self.time

    async def scrape(self, host: str, port: int, *, timeout: float) -> NodeMetrics:
        self.scrapes.append(port - 9400)
        if port == 9402:
            raise MetricsUnreachable(address=f"{host}:{port}", reason=f"no answer within {timeout} s")
        scraped = ScrapedBrokerMetrics(
            handler_idle_nanoseconds=(1.0 - self.busy) * self.time * 1e9, request_queue_size=self.queued
        )
        return NodeMetrics(0.0, 0.0, scraped, ControllerMetrics())

    async def seconds(self, count: int) -> list[BrokerPressure]:
        events = []
        for second in range(count):
            events += self.watch.sample(second * 1000)
            await self.watch.confirm()
            self.time += 1.0
        return events


async def test_a_slow_broker_is_scraped_and_events_report_how_busy_its_handlers_were() -> None:
    pressed = PressedGateway()

    began = await pressed.seconds(SUSTAINED)

    busy = {int(event.broker): event.handlers_busy for event in began}
    assert busy == {1: 1.0, 2: None}  # no more idle time than before; a failed scrape is ignored
    assert pressed.scrapes.count(1) == SUSTAINED


@pytest.mark.parametrize(
    ("busy", "queued", "confirmed"),
    [
        (1.0, 0, True),
        (HANDLERS_BUSY_MIN + 0.01, 0, True),
        (0.04, 0, False),
        (0.04, QUEUED_MIN, True),
        (0.04, 3, False),
    ],
)
async def test_tenants_are_throttled_only_if_the_broker_confirms_its_overload(
    busy: float, queued: int, confirmed: bool
) -> None:
    pressed = PressedGateway(busy, queued)

    began = await pressed.seconds(SUSTAINED)

    assert [event.phase for event in began] == [Phase.BEGAN] * 2  # reported in any case
    assert list(pressed.watch.overloaded()) == ([1] if confirmed else [])  # the second one cannot be scraped


async def test_a_scrape_confirms_for_a_few_seconds_only() -> None:
    pressed = PressedGateway()
    await pressed.seconds(SUSTAINED)
    before = list(pressed.watch.overloaded())

    pressed.time += CONFIRMED_SECONDS + 1.0

    assert before == [1]
    assert pressed.watch.overloaded() == {}


async def test_a_broker_that_responds_in_time_is_not_scraped() -> None:
    calm = PressedGateway()
    calm.sessions.clear()

    assert await calm.seconds(SUSTAINED) == []
    assert calm.scrapes == []


@pytest.mark.kafka
def test_a_broker_that_does_not_respond_is_under_pressure_until_it_does(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    running = start_gateway(fleet, [new_access()])
    (node,) = fleet.brokers
    watching = PressureWatch(running.gateway)

    def sample(second: int) -> list[BrokerPressure]:
        return running.do(lambda: watching.sample(second * 1000))

    async def call() -> None:
        """On one connection, so that a request waits and not a login."""
        host, port = running.bootstrap.split(":")
        async with await Connection.open(host, int(port), running.accesses[0].security()) as connection:
            while not done.is_set():
                await connection.call("ListGroups", {})
                called_once.set()

    called_once, done = threading.Event(), threading.Event()
    caller = threading.Thread(target=lambda: asyncio.run(call()))
    caller.start()
    try:
        assert called_once.wait(60)
        fleet.pause(node.name)

        def waits() -> bool:
            return running.do(lambda: in_flight(running.gateway))[node.spec.id][1] > 0.6

        wait_for(waits, what="a request that waits")
        began = [event for second in range(SUSTAINED) for event in sample(second)]
        done.set()
        fleet.resume(node.name)
        caller.join()

        def responded() -> bool:
            return running.do(lambda: in_flight(running.gateway))[node.spec.id][0] == 0

        wait_for(responded, what="its response")
        ended = [event for second in range(SUSTAINED, 2 * SUSTAINED) for event in sample(second)]

        assert [(event.phase, event.broker) for event in began] == [(Phase.BEGAN, node.spec.id)]
        assert began[0].waited_us > 500_000
        assert began[0].in_flight >= 1
        assert [event.phase for event in ended] == [Phase.ENDED]
        assert ended[0].began_ms == began[0].began_ms
    finally:
        done.set()
        fleet.resume(node.name)
        caller.join()
        running.stop()
