"""What calls are answered from: who is watched, and what was last judged of each.

The service reads it and never waits for a sampler. Whoever judges, in this process or in another,
writes here; new wishes go the other way, through `wish`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.model.errors.scale import SamplerDown
from penstock.scale.watches import GAP_INTERVALS, REFRESH_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.scale.metrics import CallMetrics
    from penstock.scale.values import Verdict
    from penstock.scale.watches import Watch, Watches


class Board:
    def __init__(
        self,
        clusters: frozenset[str],
        watches: Watches,
        metrics: CallMetrics,
        *,
        wish: Callable[[Watch], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clusters = clusters
        self.watches = watches
        self.metrics = metrics
        self.clock = clock
        self.unseen: Mapping[str, str] = {}  # by cluster: why the last round failed
        self.down: str | None = None  # why there is no sampler
        self._wish = wish
        self._changed: dict[str, asyncio.Event] = {}

    def admit(self, scaled_object: str, metadata: Mapping[str, str]) -> Watch:
        """The watch for a caller's wish. A new one is handed on, an old one now and then."""
        now = self.clock()
        watch = self.watches.admit(scaled_object, metadata, now)
        if now - watch.wished_at >= REFRESH_SECONDS:
            watch.wished_at = now
            self._wish(watch)
        return watch

    def answer(self, watch: Watch) -> Verdict:
        """The verdict in force, or the error that says why there is none.

        Without a sampler the last verdict counts as long as it always would, and no longer.
        """
        now = self.clock()
        if self.down is not None:
            age = now - (watch.sampled_at or 0.0)
            if age > GAP_INTERVALS * watch.interval:
                since = f"for {age:.0f} s" if watch.sampled_at is not None else "yet"
                raise SamplerDown(group=watch.policy.group, since=since, reason=self.down)
        return watch.answer(now, self.unseen.get(watch.policy.cluster, "no answer yet"))

    async def changed(self, watch: Watch, seconds: float) -> None:
        """Returns when the watch has been judged again, or after `seconds`."""
        event = self._changed.setdefault(watch.key, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    def notify(self, watch: Watch) -> None:
        """It has been judged."""
        event = self._changed.pop(watch.key, None)
        if event is not None:
            event.set()
