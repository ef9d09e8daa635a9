"""Limits of a file, held by all workers of a gateway together.

There is no coordinator to deal out shares. So each worker has the whole limit, and charges it with what
went through the others, too, as they tell it in the table that they share. Between two looks each may
spend what is there: that is debt, which all of them wait for, so over any longer time the gateway passes
what its file says and no more. A tenant for whom the table has no room gets an even split.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.gateway.throttling import Quotas
from penstock.model.events import Dimension

if TYPE_CHECKING:
    from penstock.gateway.metering import Usage
    from penstock.gateway.server import Gateway
    from penstock.gateway.tally import Tally
    from penstock.gateway.throttling import Rates
    from penstock.model.ids import LogicalClusterId

LOOK_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 1.0  # between two looks of a worker that is alone: at what is configured anew
DIMENSIONS: Final = (
    Dimension.INGRESS_BYTES,
    Dimension.EGRESS_BYTES,
    Dimension.REQUESTS,
    Dimension.REQUEST_TIME_US,
    Dimension.PARTITION_CHANGES,
)


def figures(usage: Usage) -> tuple[float, ...]:
    """In the order of `DIMENSIONS`."""
    return (
        usage.bytes_in,
        usage.bytes_out,
        usage.requests,
        usage.request_time_us(),
        usage.partition_changes,
    )


def since(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """What came to it; counters that went back are those of a worker that began anew."""
    return tuple(b - a if b >= a else b for a, b in zip(before, now, strict=True))


class Pooled:
    """Give `quotas` to the sessions, and run it."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._seen: dict[LogicalClusterId, list[tuple[float, ...]]] = {}
        self._told: dict[LogicalClusterId, tuple[float, ...]] = {}
        self._no_room: set[LogicalClusterId] = set()
        self.quotas = Quotas(self._granted)

    def _granted(self, tenant: LogicalClusterId, configured: Rates) -> Rates:
        if tenant not in self._no_room:
            return configured
        return {dimension: rate / self._tally.workers for dimension, rate in configured.items()}

    async def run(self, gateway: Gateway) -> None:
        """Until cancelled. A limit that is configured anew holds for connections that there are."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if self._tally.others else SETTLE_SECONDS)
            self.look(gateway)

    def look(self, gateway: Gateway) -> None:
        now = gateway.now()
        for tenant, quota in self.quotas:
            known = gateway.config.tenant_of.get(tenant)
            limits = known.quota if known is not None else {}
            usage = gateway.usage.get(tenant)
            if usage is not None and limits and self._tally.others:
                use = self._elsewhere(tenant, usage)
                if any(use.values()):
                    quota.elsewhere(use, now)
            self.quotas.settle(tenant, limits, now)

    def _elsewhere(self, tenant: LogicalClusterId, usage: Usage) -> dict[Dimension, float]:
        """Tell what went through here, and see what went through the others since the last look. While
        nothing goes through here nobody need wait: it is seen when something does."""
        mine = figures(usage)
        if self._told.get(tenant) == mine:
            return {}
        self._told[tenant] = mine
        key = self._tally.key(f"use {tenant}")
        if not self._tally.tell_use(key, mine):
            self._no_room.add(tenant)
            return {}
        told = self._tally.use_elsewhere(key)
        seen = self._seen.get(tenant, told)  # what was before the first look is not ours to pay
        self._seen[tenant] = told
        gained = [since(*each) for each in zip(seen, told, strict=True)]
        return dict(zip(DIMENSIONS, map(sum, zip(*gained, strict=True)), strict=True))
