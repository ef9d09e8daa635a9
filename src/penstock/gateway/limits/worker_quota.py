"""Quotas of a configuration file, enforced by all workers of a gateway together.

No coordinator assigns shares. Each worker has the whole limit and also charges it with what passed through
the others, as they publish it in the shared counters. Between two updates each may spend what is available;
the excess is debt that all of them wait for. So over any longer time the gateway passes what its file allows.
A tenant without room in the shared counters gets an even split.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.tenant_quota import Quotas
from penstock.quota.enforcement import SHARED

if TYPE_CHECKING:
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.limits.shared_counters import SharedCounters
    from penstock.gateway.limits.tenant_quota import Rates
    from penstock.gateway.process.server import Gateway
    from penstock.model.events import Dimension
    from penstock.model.ids import LogicalClusterId

SHARE_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 1.0  # between two checks for a changed configuration, with one worker


def increase(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """The increase of counters; those that went back belong to a restarted worker."""
    return tuple(b - a if b >= a else b for a, b in zip(before, now, strict=True))


class WorkerQuotas:
    """Pass `quotas` to the sessions, and run it."""

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters
        self._seen: dict[LogicalClusterId, list[tuple[float, ...]]] = {}
        self._published: dict[LogicalClusterId, tuple[float, ...]] = {}
        self._no_room: set[LogicalClusterId] = set()
        self.quotas = Quotas(self._granted)

    def _granted(self, tenant: LogicalClusterId, configured: Rates) -> Rates:
        if tenant not in self._no_room:
            return configured
        return {dimension: rate / self._counters.workers for dimension, rate in configured.items()}

    async def run(self, gateway: Gateway) -> None:
        """Update until cancelled. Changed limits apply to existing connections too."""
        while True:
            await asyncio.sleep(SHARE_SECONDS if self._counters.others else SETTLE_SECONDS)
            self.update(gateway)

    def update(self, gateway: Gateway) -> None:
        now = gateway.now()
        for tenant, quota in self.quotas:
            known = gateway.config.tenant_of.get(tenant)
            limits = known.quota if known is not None else {}
            usage = gateway.usage.get(tenant)
            if usage is not None and limits and self._counters.others:
                use = self._other_workers_usage(tenant, usage)
                if any(use.values()):
                    quota.charge_other_workers(use, now)
            self.quotas.apply(tenant, limits, now)

    def _other_workers_usage(self, tenant: LogicalClusterId, usage: Usage) -> dict[Dimension, float]:
        """Publish this worker's counters, and return what passed the others since the last update. A worker
        without traffic skips this: it catches up with its next request.
        """
        used = usage.used()
        own = tuple(used[dimension] for dimension in SHARED)
        if self._published.get(tenant) == own:
            return {}
        self._published[tenant] = own
        key = self._counters.key(f"use {tenant}")
        if not self._counters.publish_usage(key, own):
            self._no_room.add(tenant)
            return {}
        others = self._counters.other_workers_usage(key)
        seen = self._seen.get(tenant, others)  # earlier usage is not charged
        self._seen[tenant] = others
        increases = [increase(*each) for each in zip(seen, others, strict=True)]
        return dict(zip(SHARED, map(sum, zip(*increases, strict=True)), strict=True))
