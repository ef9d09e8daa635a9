"""Brokers under pressure, as a gateway sees them: told on `_penstock.pressure`, once it lasts.

A look a second at what is in flight; the data path knows nothing of it. While requests wait for a broker
whose metrics the settings name, its request handlers are scraped once a second, and what is told says how
busy they were. That only confirms: a broker that cannot be scraped is under pressure all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.appending import append
from penstock.kafka.metrics import scrape
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.events import BrokerPressure
from penstock.model.ids import BrokerId
from penstock.quota.calibration import Handlers, busy_part
from penstock.quota.pressure import SUSTAINED, WAIT_SECONDS, Sample, Watched, watch
from penstock.quota.topics import PRESSURE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.gateway.config import Broker
    from penstock.gateway.server import Gateway
    from penstock.kafka.client import Client
    from penstock.kafka.metrics import NodeMetrics

SAMPLE_SECONDS: Final = 1.0
SCRAPE_SECONDS_MAX: Final = 2.0  # later it would tell of another time

log = structlog.get_logger("penstock.gateway")


def in_flight(gateway: Gateway) -> dict[int, tuple[int, float]]:
    """By broker: requests that it should answer at once and has not yet, and how long the oldest waits."""
    now = perf_counter()
    found: dict[int, tuple[int, float]] = {int(broker.id): (0, 0.0) for broker in gateway.config.brokers}
    for session in list(gateway.sessions.values()):
        if session.broker is None:
            continue
        begun = [sent[2] for sent in list(session.waiting) if sent[1] is not None and sent[1].timed]
        if begun:
            count, oldest = found.get(int(session.broker.id), (0, 0.0))
            found[int(session.broker.id)] = (count + len(begun), max(oldest, now - min(begun)))
    return found


class PressureWatch:
    def __init__(self, gateway: Gateway, scrape: Callable[..., Awaitable[NodeMetrics]] = scrape) -> None:
        self._gateway = gateway
        self._scrape = scrape
        self._watched: dict[int, Watched] = {}
        self._handlers: dict[int, deque[Handlers]] = {}  # of brokers that are waited for, the last scrapes

    def look(self, now_ms: int) -> list[BrokerPressure]:
        """What is to be told after one more look."""
        source, events = self._gateway.counted_by, []
        for broker, (count, waited) in in_flight(self._gateway).items():
            before = self._watched.get(broker, Watched())
            after, phase, began_ms = watch(before, Sample(now_ms, count, waited))
            self._watched[broker] = after
            if phase is not None:
                event = BrokerPressure(
                    cluster=source.cluster,
                    broker=BrokerId(broker),
                    gateway=source.gateway,
                    incarnation=source.incarnation,
                    time_ms=now_ms,
                    began_ms=began_ms,
                    phase=phase,
                    in_flight=after.in_flight,
                    waited_us=int(after.waited_seconds * 1e6),
                    handlers_busy=self._busy(broker),
                )
                log.warning("broker under pressure", phase=str(phase), **{keys.BROKER: broker})
                events.append(event)
        return events

    def pressed(self) -> dict[int, float]:
        """Brokers that are under pressure, and how long the oldest request there waited at the last look."""
        return {
            broker: watched.samples[-1].waited_seconds
            for broker, watched in self._watched.items()
            if watched.began_ms is not None
        }

    def _busy(self, broker: int) -> float | None:
        scraped = self._handlers.get(broker)
        return busy_part(scraped[0], scraped[-1]) if scraped else None

    async def confirm(self) -> None:
        """Scrape the handlers of whom requests wait for."""
        waited = {
            broker
            for broker, watched in self._watched.items()
            if watched.began_ms is not None or watched.samples[-1].waited_seconds > WAIT_SECONDS
        }
        for broker in self._handlers.keys() - waited:
            del self._handlers[broker]
        brokers = [broker for broker in self._gateway.config.brokers if int(broker.id) in waited]
        await asyncio.gather(*map(self._scraped, brokers))

    async def _scraped(self, broker: Broker) -> None:
        if broker.metrics is None:
            return
        try:
            told = await self._scrape(broker.metrics.host, broker.metrics.port, timeout=SCRAPE_SECONDS_MAX)
        except PenstockError as failure:
            log.info("pressure not confirmed", **{keys.BROKER: int(broker.id), keys.ERROR: str(failure)})
            return
        scraped = self._handlers.setdefault(int(broker.id), deque(maxlen=SUSTAINED))
        scraped.append(Handlers(time.monotonic(), told.broker.handler_idle_nanoseconds / 1e9))

    async def run(self, client: Client | None) -> None:
        """Until cancelled; without a client nobody is told."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_always(client))
            tasks.create_task(self._confirm_always())

    async def _confirm_always(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.confirm()

    async def _look_always(self, client: Client | None) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            events = self.look(int(time.time() * 1000))
            if not events or client is None:
                continue
            try:
                await append(client, PRESSURE, [(event.key, event.to_bytes()) for event in events])
            except PenstockError as failure:  # while it lasts it is told again
                log.warning("pressure not told", **{keys.ERROR: str(failure)})
