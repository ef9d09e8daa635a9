"""The scaler's heart-beat: sample, publish, read back, judge, report.

Several instances may run. Each slot of the clock is sampled by one: the instance that wrote the
last slot goes first, the others a third of an interval later and only if nothing came. Should two
write, the first in the topic counts. So they agree without an election.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Final

from penstock.model.errors import PenstockError
from penstock.scale.records import Sampled, Watched
from penstock.scale.turns import FULL_COLLECTION_SECONDS, Turns
from penstock.scale.values import Change
from penstock.scale.watches import REFRESH_SECONDS, Watch, Watches, next_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.journal import Journal, Told
    from penstock.scale.metrics import ScalerMetrics
    from penstock.scale.sampler import Sampler

_log = logging.getLogger("penstock.scale")

STAND_BY_SHARE: Final = 1 / 3  # of an interval that the others wait for the writer of the last slot


class Loop:
    def __init__(
        self,
        samplers: Mapping[str, Sampler],
        journal: Journal,
        watches: Watches,
        metrics: ScalerMetrics,
        *,
        instance: str,
        report: Callable[[Watch], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.samplers = samplers
        self.watches = watches
        self.metrics = metrics
        self.clock = clock
        self.unseen: dict[str, str] = {}  # by cluster: why the last round failed
        self._journal = journal
        self._instance = instance
        self._report = report
        self._wake = {cluster: asyncio.Event() for cluster in samplers}
        self._untold: dict[str, Watch] = {}  # by key: to be told to the other instances
        self._turns = Turns()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._journal.follow(self.take))
            for sampler in self.samplers.values():
                tasks.create_task(self._sample(sampler))
            tasks.create_task(self._housekeep())

    def want(self, watch: Watch) -> None:
        """Somebody asks for this one. If it is new it is sampled at once, and told to the others."""
        now = self.clock()
        if now - watch.told_at >= REFRESH_SECONDS:
            watch.told_at = now
            self._untold[watch.key] = watch
            self._wake[watch.policy.cluster].set()

    async def take(self, told: Told, live: bool) -> None:
        """One record of the journal, ours or another's."""
        if isinstance(told, Watched):
            try:
                watch = self.watches.admit(told.scaled_object, told.metadata, told.at)
            except PenstockError:
                return  # another version's wish; whoever asked for it is told when it asks here
            watch.told_at = max(watch.told_at, told.at)
            return
        for watch in self.watches.take(told, judge=live):
            if live:
                self._report(watch)
                if watch.verdict is not None and watch.verdict.change is not Change.HOLD:
                    self.metrics.count(watch)
                    _log.info("%s: %d replicas, %s", watch.key, watch.verdict.replicas, watch.verdict.reason)
            await self._turns.taken()

    async def _sample(self, sampler: Sampler) -> None:
        cluster, interval = sampler.cluster, sampler.interval
        slot = -1
        while True:
            slot = next_slot(self.clock(), interval, slot)
            await self._until(sampler, slot * interval)
            newest, writer = self.watches.newest_slot(cluster)
            if newest >= 0 and writer != self._instance:
                await self._until(sampler, (slot + STAND_BY_SHARE) * interval)
                if self.watches.newest_slot(cluster)[0] >= slot:
                    continue
            await self._round(sampler, slot)

    async def _until(self, sampler: Sampler, when: float) -> None:
        """Sleeps; a new watch in between is told and sampled at once."""
        wake = self._wake[sampler.cluster]
        while (left := when - self.clock()) > 0:
            try:
                async with asyncio.timeout(min(left, sampler.interval)):
                    await wake.wait()
            except TimeoutError:
                continue
            wake.clear()
            await self._tell()
            if await sampler.groups(only_new=True):
                await self._round(sampler, int(self.clock() // sampler.interval), only_new=True)

    async def _round(self, sampler: Sampler, slot: int, *, only_new: bool = False) -> None:
        begun = time.perf_counter()
        try:
            parts: list[Sampled] = await sampler.round(slot, self.clock, only_new=only_new)
            if not parts:
                return
            await self._journal.publish(parts)
        except PenstockError as failure:
            if sampler.cluster not in self.unseen:
                _log.warning("cluster %s cannot be sampled: %s", sampler.cluster, failure)
            self.unseen[sampler.cluster] = str(failure)
            self.metrics.failures.labels(sampler.cluster, failure.code).inc()
            return
        if self.unseen.pop(sampler.cluster, None) is not None:
            _log.info("cluster %s is sampled again", sampler.cluster)
        self.metrics.rounds.labels(sampler.cluster).observe(time.perf_counter() - begun)

    async def _tell(self) -> None:
        untold, self._untold = self._untold, {}
        if untold:
            try:
                await self._journal.publish(
                    [Watched(each.scaled_object, each.metadata, each.called_at) for each in untold.values()]
                )
            except PenstockError:
                self._untold = untold | self._untold  # told with the next round of housekeeping

    async def _housekeep(self) -> None:
        collected_at = time.monotonic()
        while True:
            if time.monotonic() - collected_at > FULL_COLLECTION_SECONDS:
                gc.collect()
                collected_at = time.monotonic()
            self.watches.expire(self.clock())
            await self._tell()
            await asyncio.sleep(min(each.interval for each in self.samplers.values()))
