"""Request time by tenant, held against what each broker says its request handlers did.

For brokers whose metrics the settings name. Every few seconds their handlers' idle time is scraped, and
the factor of `penstock.quota.calibration` follows from it and from what all workers of this gateway saw.
A broker that does not answer keeps the factor it has.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.pooled import since
from penstock.kafka.metrics import scrape
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.quota.calibration import Calibrated, Handlers, calibrated, work_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.gateway.config import Broker, BrokerMetrics
    from penstock.gateway.tally import Tally

LOOK_SECONDS: Final = 10.0

log = structlog.get_logger("penstock.gateway")


class Work:
    """One broker's, as sessions see it and as it tells."""

    __slots__ = ("_before", "_found", "_seen_before", "factor", "metrics", "seen_seconds")

    def __init__(self, metrics: BrokerMetrics) -> None:
        self.metrics = metrics
        self._found = Calibrated()
        self.factor = self._found.factor
        self.seen_seconds = 0.0  # from requests to answers, of all tenants
        self._before: Handlers | None = None
        self._seen_before: list[tuple[float, ...]] = []

    def taken_off(self, seen_seconds: float) -> float:
        """So much more was seen; what of it was no work of the broker's, below 0."""
        self.seen_seconds += seen_seconds
        return seen_seconds * (self.factor - 1.0)

    def told(self, handlers: Handlers, elsewhere: Iterable[tuple[float, ...]] = ()) -> None:
        """What the broker says now, and what other workers of this gateway have seen of it."""
        before, self._before = self._before, handlers
        seen_before, self._seen_before = self._seen_before, [(self.seen_seconds,), *elsewhere]
        if before is not None:
            pairs = zip(seen_before, self._seen_before, strict=True)
            seen = sum(since(*each)[0] for each in pairs)
            worked = work_seconds(before, handlers, self.metrics.handler_threads)
            self._found = calibrated(self._found, worked, seen)
            self.factor = self._found.factor


class Calibration:
    """Of all brokers of one gateway: give it to the sessions, and run it."""

    def __init__(self, brokers: Iterable[Broker], tally: Tally) -> None:
        self._tally = tally
        self._brokers = {int(one.id): Work(one.metrics) for one in brokers if one.metrics is not None}

    def __iter__(self) -> Iterator[tuple[int, Work]]:
        return iter(self._brokers.items())

    def of(self, broker: Broker) -> Work | None:
        return self._brokers.get(int(broker.id))

    async def look(self) -> None:
        for number, work in self._brokers.items():
            try:
                told = await scrape(work.metrics.host, work.metrics.port)
            except PenstockError as failure:
                log.warning("request time not calibrated", **{keys.BROKER: number, keys.ERROR: str(failure)})
                continue
            idle_seconds = told.broker.handler_idle_nanoseconds / 1e9
            work.told(Handlers(time.monotonic(), idle_seconds), self._elsewhere(number, work))

    def _elsewhere(self, broker: int, work: Work) -> list[tuple[float, ...]]:
        """Tell the other workers what was seen here, and hear it of them."""
        key = self._tally.key(f"work {broker}")
        self._tally.tell_use(key, (work.seen_seconds,))
        return self._tally.use_elsewhere(key)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)
