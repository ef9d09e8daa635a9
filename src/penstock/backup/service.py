"""Runs a backup: rounds of the archiver and the catalogue until stopped.

A failed round is repeated at the next interval. The process is ready while its last complete round is not
older than a few intervals.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.backup.archiver import Archiver
from penstock.backup.catalogue import Catalogue
from penstock.backup.cataloguer import Cataloguer
from penstock.backup.drill import last_drill
from penstock.metric_families import Samples
from penstock.model.errors import PenstockError
from penstock.model.metric_catalogue import BACKUP
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.backup.settings import BackupSettings
    from penstock.kafka.client import Client
    from penstock.tier.store import Store

LATE_INTERVALS: Final = 6  # without a complete round, the backup is not ready
RETRY_SECONDS: Final = 5.0

log = structlog.get_logger()


class BackupService:
    def __init__(self, client: Client, store: Store, settings: BackupSettings) -> None:
        self._client = client
        self._store = store
        self._settings = settings
        self.archiver = Archiver(client, store, selects=settings.selects)
        self.catalogue: Catalogue | None = None
        self._drilled_ms = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. What is buffered is stored again by the next process."""
        await self._start(stop)
        while not stop.is_set():
            began = time.monotonic()
            await self._round()
            left = self._settings.interval_seconds - (time.monotonic() - began)
            await wait_at_most(stop, left)

    def not_ready(self) -> str:
        if not self.archiver.last_round_at:
            return "no round is complete yet"
        late = LATE_INTERVALS * self._settings.interval_seconds
        age = time.time() - self.archiver.last_round_at
        return f"no complete round for {age:.0f} s" if age > late else ""

    async def _start(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._store.probe()
                await self.archiver.resume()
                catalogue = Catalogue(self._store, self.archiver.cluster)
                await catalogue.resume()
                drilled = await last_drill(self._store, self.archiver.cluster)
            except PenstockError as error:
                if not error.retriable:
                    raise
                log.warning("backup not started", error=str(error))
                await wait_at_most(stop, RETRY_SECONDS)
                continue
            self._drilled_ms = drilled.at_ms if drilled is not None else 0
            self.catalogue = catalogue
            interval_ms = int(self._settings.catalogue_seconds * 1000)
            self._cataloguer = Cataloguer(self._client, catalogue, self.archiver, interval_ms=interval_ms)
            return

    async def _round(self) -> None:
        for duty, name in ((self.archiver.round, "archive"), (self._cataloguer.round, "catalogue")):
            try:
                await duty()
            except PenstockError as error:
                self.archiver.totals.failures += 1
                log.warning("round failed", duty=name, error=str(error))

    def collect(self) -> Iterator[Metric]:
        """The metrics of this process."""
        samples = Samples(BACKUP)
        logs, totals = self.archiver.logs.values(), self.archiver.totals
        samples.add("partitions", len(logs))
        samples.add("lag_offsets", sum(one.lag for one in logs))
        samples.add("lag_offsets_max", max((one.lag for one in logs), default=0))
        samples.add("failing_partitions", sum(bool(one.problem) for one in logs))
        samples.add("segments", totals.segments)
        samples.add("bytes", totals.log_bytes)
        samples.add("gaps", totals.gaps)
        samples.add("failures", totals.failures)
        samples.add("round_seconds", self.archiver.last_round_at)
        last = self.catalogue.last if self.catalogue is not None else None
        samples.add("catalogue_seconds", last.at_ms / 1000 if last is not None else 0)
        samples.add("drill_seconds", self._drilled_ms / 1000)
        return iter(samples)
