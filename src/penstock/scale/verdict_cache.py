"""The latest verdict of each watched ScaledObject, from which the service answers calls.

The service reads it and never waits for the sampler. The sampler, in this process or another, writes
it. New watches go to the sampler through `on_watch`.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from penstock.model.errors.scale import SamplerUnavailable
from penstock.scale.watched_groups import GAP_INTERVALS, REFRESH_SECONDS
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.decision.values import Verdict
    from penstock.scale.metrics import CallMetrics
    from penstock.scale.watched_groups import Watch, WatchedGroups


class VerdictCache:
    """Watches, their verdicts, and why there may be none."""

    def __init__(
        self,
        clusters: frozenset[str],
        watches: WatchedGroups,
        metrics: CallMetrics,
        *,
        on_watch: Callable[[Watch], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clusters = clusters
        self.watches = watches
        self.metrics = metrics
        self.clock = clock
        self.unreachable: Mapping[str, str] = {}  # by cluster: why the last round failed
        self.sampler_down: str | None = None  # why there is no sampler, if there is none
        self._on_watch = on_watch
        self._waiters: dict[str, asyncio.Event] = {}

    def admit(self, scaled_object: str, metadata: Mapping[str, str]) -> Watch:
        """The watch for a call. A new one is sent to the sampler at once, an old one now and then."""
        now = self.clock()
        watch = self.watches.admit(scaled_object, metadata, now)
        if now - watch.forwarded_at >= REFRESH_SECONDS:
            watch.forwarded_at = now
            self._on_watch(watch)
        return watch

    def current_verdict(self, watch: Watch) -> Verdict:
        """The current verdict; raises why there is none.

        Without a sampler, the last verdict stays valid for as long as it would otherwise.
        """
        now = self.clock()
        if self.sampler_down is not None:
            age = math.inf if watch.received_at is None else now - watch.received_at
            if age > GAP_INTERVALS * watch.interval:
                since = "yet" if watch.received_at is None else f"for {age:.0f} s"
                raise SamplerUnavailable(group=watch.policy.group, since=since, reason=self.sampler_down)
        return watch.current_verdict(now, self.unreachable.get(watch.policy.cluster, "no sample yet"))

    async def wait_for_change(self, watch: Watch, seconds: float) -> None:
        """Returns when the watch has a new verdict, or after `seconds`."""
        event = self._waiters.setdefault(watch.key, asyncio.Event())
        await wait_at_most(event, seconds)

    def notify(self, watch: Watch) -> None:
        """Wakes those who wait for a new verdict of this watch."""
        event = self._waiters.pop(watch.key, None)
        if event is not None:
            event.set()
