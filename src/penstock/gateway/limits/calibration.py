"""Request time by tenant, calibrated against what each broker's request handlers actually did.

Applies to brokers with `metrics` in the settings. Every few seconds their handler idle time is scraped. The
factor of `penstock.quota.calibration` follows from it and from what all workers of this gateway observed. A
broker that cannot be scraped keeps its factor.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.limits.worker_quota import increase
from penstock.kafka.metrics_scrape import scrape
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.quota.calibration import CalibrationState, HandlerSample, updated_calibration, work_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.gateway.config import Broker, BrokerMetrics
    from penstock.gateway.limits.shared_counters import SharedCounters

SCRAPE_SECONDS: Final = 10.0

log = structlog.get_logger("penstock.gateway")


class BrokerWork:
    """One broker's request time: as sessions observe it, and as the broker reports it."""

    __slots__ = ("_before", "_calibrated", "_seen_before", "factor", "metrics", "seen_seconds")

    def __init__(self, metrics: BrokerMetrics) -> None:
        self.metrics = metrics
        self._calibrated = CalibrationState()
        self.factor = self._calibrated.factor
        self.seen_seconds = 0.0  # from request to response, all tenants
        self._before: HandlerSample | None = None
        self._seen_before: list[tuple[float, ...]] = []

    def correction(self, seen_seconds: float) -> float:
        """Count observed seconds; returns the part that was not the broker's work, below 0."""
        self.seen_seconds += seen_seconds
        return seen_seconds * (self.factor - 1.0)

    def update(self, handlers: HandlerSample, other_workers: Iterable[tuple[float, ...]] = ()) -> None:
        """Recalibrate from the broker's handlers and what other workers of this gateway observed."""
        before, self._before = self._before, handlers
        seen_before, self._seen_before = self._seen_before, [(self.seen_seconds,), *other_workers]
        if before is not None:
            pairs = zip(seen_before, self._seen_before, strict=True)
            seen = sum(increase(*each)[0] for each in pairs)
            worked = work_seconds(before, handlers, self.metrics.handler_threads)
            self._calibrated = updated_calibration(self._calibrated, worked, seen)
            self.factor = self._calibrated.factor


class Calibration:
    """All brokers of one gateway: pass it to the sessions, and run it."""

    def __init__(self, brokers: Iterable[Broker], counters: SharedCounters) -> None:
        self._counters = counters
        self._brokers: dict[int, BrokerWork] = {}
        self.follow(brokers)

    def follow(self, brokers: Iterable[Broker]) -> None:
        """The brokers from now on; those known before keep their factors."""
        measured = {int(one.id): one.metrics for one in brokers if one.metrics is not None}
        self._brokers = {
            number: self._brokers.get(number) or BrokerWork(metrics) for number, metrics in measured.items()
        }

    def __iter__(self) -> Iterator[tuple[int, BrokerWork]]:
        return iter(self._brokers.items())

    def of(self, broker: Broker) -> BrokerWork | None:
        return self._brokers.get(int(broker.id))

    async def update(self) -> None:
        for number, work in [*self._brokers.items()]:
            try:
                metrics = await scrape(work.metrics.host, work.metrics.port)
            except PenstockError as failure:
                log.warning(
                    "request time not calibrated", **{key_names.BROKER: number, key_names.ERROR: str(failure)}
                )
                continue
            idle_seconds = metrics.broker.handler_idle_nanoseconds / 1e9
            work.update(HandlerSample(time.monotonic(), idle_seconds), self._other_workers(number, work))

    def _other_workers(self, broker: int, work: BrokerWork) -> list[tuple[float, ...]]:
        """Publish what was observed here, and read it from the other workers."""
        key = self._counters.key(f"work {broker}")
        self._counters.publish_usage(key, (work.seen_seconds,))
        return self._counters.other_workers_usage(key)

    async def run(self) -> None:
        """Scrape until cancelled."""
        while True:
            await self.update()
            await asyncio.sleep(SCRAPE_SECONDS)
