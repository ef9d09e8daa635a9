"""A gateway's part in sharing quotas: it reports what tenants use here, and holds to what it is told.

Reports go to `_penstock.usage` every other second for as long as a tenant is active here, and some time
longer, so that its coordinator sees that it is at rest. They are cumulative: one that cannot be sent is
dropped, the next makes it good. What comes back on `_penstock.quota` holds at once; without news, what
was told last, and after its time the even split (`penstock.quota.points`).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.throttling import Quotas
from penstock.kafka.appending import LEADER, append
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.events import UsageReport
from penstock.quota.points import enforced
from penstock.quota.told import Told
from penstock.quota.topics import usage_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.gateway.server import Gateway
    from penstock.gateway.throttling import Rates
    from penstock.kafka.client import Client
    from penstock.kafka.partitions import TopicPartition
    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.model.schema import Event

REPORT_MS: Final = 2_000  # between two reports of a tenant
AT_REST_MS: Final = 30_000  # for so long a tenant without traffic is still reported
SETTLE_SECONDS: Final = 1.0  # between two looks at whether what was told has run out

log = structlog.get_logger("penstock.gateway")


class Reporter:
    """Takes a gateway's evidence once a second; picks what is to be sent."""

    def __init__(self) -> None:
        self._sent: dict[LogicalClusterId, UsageReport] = {}
        self._moved_ms: dict[LogicalClusterId, int] = {}
        self._due: dict[LogicalClusterId, UsageReport] = {}
        self._latest: dict[LogicalClusterId, UsageReport] = {}
        self._waiting = asyncio.Event()

    def __call__(self, evidence: Sequence[Event]) -> None:
        for event in evidence:
            if not isinstance(event, UsageReport):
                continue
            self._latest[event.tenant] = event
            if self._wanted(event):
                self._due[event.tenant] = event
        if self._due:
            self._waiting.set()

    def _wanted(self, report: UsageReport) -> bool:
        before = self._sent.get(report.tenant)
        if before is None or before.used != report.used or any(report.levels.values()):
            self._moved_ms[report.tenant] = report.time_ms
        elif report.time_ms - self._moved_ms[report.tenant] > AT_REST_MS:
            return False
        return before is None or report.time_ms - before.time_ms >= REPORT_MS

    def due(self) -> dict[LogicalClusterId, UsageReport]:
        """What is to be sent now; it counts as sent."""
        due, self._due = self._due, {}
        self._sent |= due
        return due

    async def run(self, client: Client) -> None:
        """Send what is due, until cancelled."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await _send(client, self.due().values())

    async def flush(self, client: Client) -> None:
        """At the end: whatever was counted and not yet told."""
        await _send(client, [one for one in self._latest.values() if one != self._sent.get(one.tenant)])


async def _send(client: Client, reports: Iterable[UsageReport]) -> None:
    for partition, some in _by_partition(reports).items():
        try:
            rows = [(report.key, report.to_bytes()) for report in some]
            await append(client, partition, rows, acks=LEADER, tries=2)
        except PenstockError as failure:
            log.warning("use not reported", **{keys.ERROR: str(failure)})


def _by_partition(reports: Iterable[UsageReport]) -> dict[TopicPartition, list[UsageReport]]:
    found: dict[TopicPartition, list[UsageReport]] = {}
    for report in reports:
        found.setdefault(usage_partition(report.key), []).append(report)
    return found


class Shares:
    """What holds here of each tenant's quota: give `quotas` to the sessions, and run it."""

    def __init__(self, client: Client, point: str, gateways: int) -> None:
        self._point = point
        self._gateways = gateways
        self._told = Told(client, news=self._news)
        self._woken = asyncio.Event()
        self.quotas = Quotas(self._granted)

    async def run(self, gateway: Gateway) -> None:
        """Until cancelled. What was told, what ran out, and what is configured otherwise holds at once,
        or a second later."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._told.follower.run())
            while True:
                self._woken.clear()
                await _either(self._woken, SETTLE_SECONDS)
                tenants = gateway.config.tenant_of
                now = time.monotonic()
                for tenant, _ in self.quotas:
                    known = tenants.get(tenant)
                    self.quotas.settle(tenant, known.quota if known is not None else {}, now)

    def _granted(self, tenant: LogicalClusterId, configured: Rates) -> Rates:
        now_ms = int(time.time() * 1000)
        return enforced(configured, self._told.last.get(tenant), self._point, now_ms, self._gateways)

    def _news(self, told: QuotaShares) -> None:
        del told
        self._woken.set()


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
