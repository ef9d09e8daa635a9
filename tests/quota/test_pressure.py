"""When a broker is under pressure: it takes a while to begin, a while to end, and is told of meanwhile."""

from __future__ import annotations

import asyncio
import threading
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import Broker, BrokerMetrics
from penstock.gateway.metering import Source
from penstock.gateway.pressure import PressureWatch, in_flight
from penstock.kafka.connection import Connection
from penstock.kafka.metrics import BrokerMetrics as BrokerMetricsTold
from penstock.kafka.metrics import ControllerMetrics, NodeMetrics
from penstock.model.errors.fleet import MetricsUnreachable
from penstock.model.events import BrokerPressure, Phase
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.quota.pressure import AGAIN_MS, SUSTAINED, Sample, Watched, watch
from tests.ground.fleet import wait_for
from tests.ground.gateway import new_access, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.gateway.server import Gateway
    from tests.ground.fleet import Fleet

SLOW, CALM, BETWEEN = 0.9, 0.1, 0.4


def phases(waits: Sequence[float]) -> list[Phase | None]:
    state, told = Watched(), []
    for second, waited in enumerate(waits):
        state, phase, _ = watch(state, Sample(second * 1000, 10, waited))
        told.append(phase)
    return told


def test_pressure_begins_when_it_lasts_and_ends_when_it_is_over_for_as_long() -> None:
    told = phases([SLOW] * SUSTAINED + [CALM] * SUSTAINED)

    assert told == [None] * 4 + [Phase.BEGAN] + [None] * 4 + [Phase.ENDED]


def test_a_stall_now_and_then_is_no_pressure() -> None:
    assert set(phases(([SLOW] * (SUSTAINED - 1) + [CALM]) * 5)) == {None}


def test_what_lasts_is_told_again() -> None:
    told = phases([SLOW] * (SUSTAINED + AGAIN_MS // 1000))

    assert told[-1] is Phase.LASTS


def test_between_calm_and_slow_nothing_changes() -> None:
    assert Phase.ENDED not in phases([SLOW] * SUSTAINED + [BETWEEN] * 50)
    assert Phase.BEGAN not in phases([BETWEEN] * 50)


@given(st.lists(st.sampled_from((SLOW, CALM, BETWEEN)), max_size=200))
def test_every_spell_begins_before_it_lasts_or_ends_and_ends_once(waits: list[float]) -> None:
    told = [phase for phase in phases(waits) if phase is not None]

    for before, after in zip([None, *told], told):
        assert (after is Phase.BEGAN) == (before in (None, Phase.ENDED))


BROKERS = tuple(
    Broker(BrokerId(n), Zone("a"), "127.0.0.1", 9000 + n, 0, {}, BrokerMetrics("127.0.0.1", 9400 + n, 4))
    for n in (1, 2)
)


class Pressed:
    """A gateway that has waited for its brokers for long, and brokers' agents, of which the second is ill."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(brokers=BROKERS)
        self.counted_by = Source(PhysicalClusterId("pkc-000000"), "gw-1", "1")
        waiting = [(0, SimpleNamespace(timed=True), perf_counter() - 60)]
        self.sessions = {
            n: SimpleNamespace(broker=broker, waiting=waiting) for n, broker in enumerate(BROKERS)
        }
        self.scrapes: list[int] = []
        self.watch = PressureWatch(cast("Gateway", self), self.scrape)

    async def scrape(self, host: str, port: int, *, timeout: float) -> NodeMetrics:
        self.scrapes.append(port - 9400)
        if port == 9402:
            raise MetricsUnreachable(address=f"{host}:{port}", reason=f"no answer within {timeout} s")
        return NodeMetrics(0.0, 0.0, BrokerMetricsTold(handler_idle_nanoseconds=5e9), ControllerMetrics())

    async def seconds(self, count: int) -> list[BrokerPressure]:
        events = []
        for second in range(count):
            events += self.watch.look(second * 1000)
            await self.watch.confirm()
        return events


async def test_a_broker_that_is_waited_for_is_scraped_and_what_is_told_says_how_busy_it_was() -> None:
    pressed = Pressed()

    began = await pressed.seconds(SUSTAINED)

    told = {int(event.broker): event.handlers_busy for event in began}
    assert told == {1: 1.0, 2: None}  # idle no longer than before; and a scrape that fails harms nothing
    assert pressed.scrapes.count(1) == SUSTAINED


async def test_a_broker_that_answers_is_not_scraped() -> None:
    calm = Pressed()
    calm.sessions.clear()

    assert await calm.seconds(SUSTAINED) == []
    assert calm.scrapes == []


@pytest.mark.kafka
def test_a_broker_that_does_not_answer_is_under_pressure_until_it_does(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    running = start_gateway(fleet, [new_access()])
    (node,) = fleet.brokers
    watching = PressureWatch(running.gateway)

    def look(second: int) -> list[BrokerPressure]:
        return running.do(lambda: watching.look(second * 1000))

    async def ask_twice() -> None:
        """On one connection, so that it is a request that waits and no login."""
        host, port = running.bootstrap.split(":")
        async with await Connection.open(host, int(port), running.accesses[0].security()) as connection:
            await connection.call("ListGroups", {})
            asked_once.set()
            await asyncio.to_thread(paused.wait)
            await connection.call("ListGroups", {})

    asked_once, paused = threading.Event(), threading.Event()
    asking = threading.Thread(target=lambda: asyncio.run(ask_twice()))
    asking.start()
    try:
        assert asked_once.wait(60)
        fleet.pause(node.name)
        paused.set()

        def waits() -> bool:
            return running.do(lambda: in_flight(running.gateway))[node.spec.id][1] > 0.6

        wait_for(waits, what="a request that waits")
        began = [event for second in range(SUSTAINED) for event in look(second)]
        fleet.resume(node.name)
        asking.join()

        def answered() -> bool:
            return running.do(lambda: in_flight(running.gateway))[node.spec.id][0] == 0

        wait_for(answered, what="its answer")
        ended = [event for second in range(SUSTAINED, 2 * SUSTAINED) for event in look(second)]

        assert [(event.phase, event.broker) for event in began] == [(Phase.BEGAN, node.spec.id)]
        assert began[0].waited_us > 500_000
        assert began[0].in_flight >= 1
        assert [event.phase for event in ended] == [Phase.ENDED]
        assert ended[0].began_ms == began[0].began_ms
    finally:
        paused.set()
        fleet.resume(node.name)
        asking.join()
        running.stop()
