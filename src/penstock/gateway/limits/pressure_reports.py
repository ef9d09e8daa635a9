"""Broker pressure as a gateway observes it: reported on `_penstock.pressure` while it lasts.

Requests in flight are sampled once a second, off the data path. While requests wait for a broker with
`metrics` in the settings, its request handlers and request queue are scraped once a second, and reports
include how busy the handlers were. Only a broker that confirms its overload this way has its tenants
throttled: a request may also wait for the network, for other brokers, or for what throttling does not change.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.append import append
from penstock.kafka.metrics_scrape import scrape
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.events import BrokerPressure
from penstock.model.ids import BrokerId
from penstock.quota.calibration import HandlerSample, busy_ratio
from penstock.quota.pressure import SUSTAINED, WAIT_SECONDS, PressureState, Sample, is_overloaded, observe
from penstock.quota.topics import PRESSURE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.gateway.config import Broker
    from penstock.gateway.process.server import Gateway
    from penstock.kafka.broker_metrics import NodeMetrics
    from penstock.kafka.client import Client

SAMPLE_SECONDS: Final = 1.0
SCRAPE_SECONDS_MAX: Final = 2.0  # a later result would describe another moment
CONFIRMED_SECONDS: Final = 5.0  # a scrape describes the broker for so long

log = structlog.get_logger("penstock.gateway")


def in_flight(gateway: Gateway) -> dict[int, tuple[int, float]]:
    """By broker: connections with a request it works on, long polls excepted, and for how long at most.

    Of a connection only the first request counts: those behind it wait for that response.
    """
    now = gateway.now()
    by_broker: dict[int, tuple[int, float]] = {int(broker.id): (0, 0.0) for broker in gateway.config.brokers}
    for session in list(gateway.sessions.values()):
        connection = session.connection
        since = connection.waiting_since()
        if since is not None and connection.broker is not None:
            count, oldest = by_broker.get(int(connection.broker.id), (0, 0.0))
            by_broker[int(connection.broker.id)] = (count + 1, max(oldest, now - since))
    return by_broker


class PressureWatch:
    """Watches all brokers of one gateway for pressure."""

    def __init__(self, gateway: Gateway, scrape: Callable[..., Awaitable[NodeMetrics]] = scrape) -> None:
        self._gateway = gateway
        self._scrape = scrape
        self._watched: dict[int, PressureState] = {}
        self._handlers: dict[int, deque[HandlerSample]] = {}  # of brokers with waiting requests
        self._queues: dict[int, float] = {}  # their request queues, at the last scrape

    def sample(self, now_ms: int) -> list[BrokerPressure]:
        """Take a sample; returns the events to report."""
        source, events = self._gateway.report_source, []
        for broker, (count, waited) in in_flight(self._gateway).items():
            before = self._watched.get(broker, PressureState())
            after, phase, began_ms = observe(before, Sample(now_ms, count, waited))
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
                log.warning("broker under pressure", phase=str(phase), **{key_names.BROKER: broker})
                events.append(event)
        return events

    def overloaded(self) -> dict[int, float]:
        """Brokers under pressure that confirm it, and the age of the oldest request at the last sample."""
        return {
            broker: watched.samples[-1].waited_seconds
            for broker, watched in self._watched.items()
            if watched.began_ms is not None and self._confirmed(broker)
        }

    def _confirmed(self, broker: int) -> bool:
        """Whether the broker's own metrics show overload: busy handlers, or requests queued before them."""
        scraped = self._handlers.get(broker)
        if not scraped or self._gateway.now() - scraped[-1].time > CONFIRMED_SECONDS:
            return False
        return is_overloaded(self._busy(broker), self._queues[broker])

    def _busy(self, broker: int) -> float | None:
        scraped = self._handlers.get(broker)
        return busy_ratio(scraped[0], scraped[-1]) if scraped else None

    async def confirm(self) -> None:
        """Scrape the request handlers of brokers with waiting requests."""
        waited = {
            broker
            for broker, watched in self._watched.items()
            if watched.began_ms is not None or watched.samples[-1].waited_seconds > WAIT_SECONDS
        }
        for broker in self._handlers.keys() - waited:
            del self._handlers[broker], self._queues[broker]
        brokers = [broker for broker in self._gateway.config.brokers if int(broker.id) in waited]
        await asyncio.gather(*map(self._scraped, brokers))

    async def _scraped(self, broker: Broker) -> None:
        if broker.metrics is None:
            return
        try:
            metrics = await self._scrape(broker.metrics.host, broker.metrics.port, timeout=SCRAPE_SECONDS_MAX)
        except PenstockError as failure:
            log.info(
                "pressure not confirmed", **{key_names.BROKER: int(broker.id), key_names.ERROR: str(failure)}
            )
            return
        scraped = self._handlers.setdefault(int(broker.id), deque(maxlen=SUSTAINED))
        idle_seconds = metrics.broker.handler_idle_nanoseconds / 1e9
        scraped.append(HandlerSample(self._gateway.now(), idle_seconds))
        self._queues[int(broker.id)] = metrics.broker.request_queue_size

    async def run(self, client: Client | None) -> None:
        """Watch until cancelled; without a client nothing is reported."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample_forever(client))
            tasks.create_task(self._confirm_forever())

    async def _confirm_forever(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            await self.confirm()

    async def _sample_forever(self, client: Client | None) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            events = self.sample(int(time.time() * 1000))
            if not events or client is None:
                continue
            try:
                await append(client, PRESSURE, [(event.key, event.to_bytes()) for event in events])
            except PenstockError as failure:  # it is reported again while it lasts
                log.warning("pressure not reported", **{key_names.ERROR: str(failure)})
