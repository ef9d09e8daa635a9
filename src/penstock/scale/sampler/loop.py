"""The sampling loop: sample, publish, read back, evaluate, report.

Several instances may run. The one that wrote the last round samples; the others do so only if they
received no round for one and a half intervals. If two write, the first in the topic counts. So they agree
without an election, and without clocks that agree: each measures intervals on its monotonic clock.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Final

from penstock.model.errors import PenstockError
from penstock.scale.decision.values import Change
from penstock.scale.event_loop import FULL_COLLECTION_SECONDS, TimeSlice
from penstock.scale.sampler.records import Sampled, Watched
from penstock.scale.watched_groups import REFRESH_SECONDS, Watch, WatchedGroups
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.metrics import ScalerMetrics
    from penstock.scale.sampler.cluster import ClusterSampler
    from penstock.scale.sampler.samples_topic import Event, Journal

_log = logging.getLogger("penstock.scale")

STAND_BY_INTERVALS: Final = 1.5  # without a round of another instance, this one samples


class SamplingLoop:
    """Samples all clusters and evaluates every record of the journal."""

    def __init__(
        self,
        samplers: Mapping[str, ClusterSampler],
        journal: Journal,
        watches: WatchedGroups,
        metrics: ScalerMetrics,
        *,
        instance: str,
        report: Callable[[Watch], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samplers = samplers
        self.watches = watches
        self.metrics = metrics
        self.clock = clock
        self.unreachable: dict[str, str] = {}  # by cluster: why the last round failed
        self._journal = journal
        self._instance = instance
        self._report = report
        self._wake = {cluster: asyncio.Event() for cluster in samplers}
        self._unpublished: dict[str, Watch] = {}  # by key: not yet announced to other instances
        self._time_slice = TimeSlice()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._journal.follow(self.apply))
            for sampler in self.samplers.values():
                tasks.create_task(self._sample(sampler))
            tasks.create_task(self._housekeep())

    def watch_requested(self, watch: Watch) -> None:
        """Called for each call of KEDA. A new watch is sampled at once and announced to other instances."""
        now = self.clock()
        if now - watch.announced_at >= REFRESH_SECONDS:
            watch.announced_at = now
            self._unpublished[watch.key] = watch
            self._wake[watch.policy.cluster].set()

    async def apply(self, event: Event, live: bool) -> None:
        """Processes one record of the journal, from this instance or another."""
        now = self.clock()
        if isinstance(event, Watched):
            try:
                watch = self.watches.admit(event.scaled_object, event.metadata, now)
            except PenstockError:
                return  # of another version; a caller gets the error when it calls this instance
            watch.announced_at = now
            return
        for watch in self.watches.take(event, now if live else None):
            if live:
                self._report(watch)
                if watch.verdict is not None and watch.verdict.change is not Change.HOLD:
                    self.metrics.count(watch)
                    _log.info("%s: %d replicas, %s", watch.key, watch.verdict.replicas, watch.verdict.reason)
            await self._time_slice.yield_if_over()

    async def _sample(self, sampler: ClusterSampler) -> None:
        cluster, interval = sampler.cluster, sampler.interval
        number = 0
        while True:
            number = max(number, int(self.clock() // interval)) + 1  # a missed round is not made up for
            await self._until(sampler, number * interval)
            last = self.watches.last_round(cluster)
            other = last.received_at if last is not None and last.by != self._instance else None
            if other is None or self.clock() - other >= STAND_BY_INTERVALS * interval:
                await self._round(sampler, number)

    async def _until(self, sampler: ClusterSampler, when: float) -> None:
        """Sleeps until `when`; announces and samples new watches at once."""
        wake = self._wake[sampler.cluster]
        while (left := when - self.clock()) > 0:
            if not await wait_at_most(wake, min(left, sampler.interval)):
                continue
            wake.clear()
            await self._publish_watches()
            if sampler.groups(only_new=True):
                await self._round(sampler, 0, only_new=True)

    async def _round(self, sampler: ClusterSampler, number: int, *, only_new: bool = False) -> None:
        started = time.perf_counter()
        try:
            records: list[Sampled] = await sampler.round(number, self.clock, only_new=only_new)
            if not records:
                return
            await self._journal.publish(records)
        except PenstockError as failure:
            if sampler.cluster not in self.unreachable:
                _log.warning("cluster %s cannot be sampled: %s", sampler.cluster, failure)
            self.unreachable[sampler.cluster] = str(failure)
            self.metrics.failures.labels(sampler.cluster, failure.code).inc()
            return
        if self.unreachable.pop(sampler.cluster, None) is not None:
            _log.info("cluster %s is sampled again", sampler.cluster)
        self.metrics.rounds.labels(sampler.cluster).observe(time.perf_counter() - started)

    async def _publish_watches(self) -> None:
        unpublished, self._unpublished = self._unpublished, {}
        if unpublished:
            events = [Watched(each.scaled_object, each.metadata) for each in unpublished.values()]
            try:
                await self._journal.publish(events)
            except PenstockError:  # published with the next housekeeping
                self._unpublished = unpublished | self._unpublished

    async def _housekeep(self) -> None:
        collected_at = time.monotonic()
        while True:
            if time.monotonic() - collected_at > FULL_COLLECTION_SECONDS:
                gc.collect()
                collected_at = time.monotonic()
            self.watches.expire(self.clock())
            await self._publish_watches()
            await asyncio.sleep(min(each.interval for each in self.samplers.values()))
