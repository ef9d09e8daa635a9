"""A gateway's side of quota sharing: it reports tenants' usage and enforces the shares it receives.

Usage goes to `_penstock.usage` every other second while a tenant is active here, and a while longer, so that
its coordinator sees it is idle. Reports are cumulative: one that cannot be sent is dropped and the next one
makes up for it. Shares received on `_penstock.quota` apply at once. Without new ones the last stay in force,
and after they expire the even split does (`penstock.quota.enforcement`).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.gateway.limits.tenant_quota import Quotas
from penstock.kafka.append import LEADER, append
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.events import UsageReport
from penstock.quota.enforcement import enforced_limits
from penstock.quota.share_follower import ShareFollower
from penstock.quota.topics import usage_partition
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.gateway.limits.tenant_quota import Rates
    from penstock.gateway.process.server import Gateway
    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId
    from penstock.model.schema import Event

REPORT_MS: Final = 2_000  # between two reports of a tenant
IDLE_MS: Final = 30_000  # a tenant without traffic is still reported for so long
SETTLE_SECONDS: Final = 1.0  # between two checks for expired shares

log = structlog.get_logger("penstock.gateway")


class UsageReporter:
    """Takes a gateway's events once a second, and picks the usage reports to send."""

    def __init__(self) -> None:
        self._sent: dict[LogicalClusterId, UsageReport] = {}
        self._changed_ms: dict[LogicalClusterId, int] = {}
        self._due: dict[LogicalClusterId, UsageReport] = {}
        self._latest: dict[LogicalClusterId, UsageReport] = {}
        self._waiting = asyncio.Event()

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, UsageReport):
                continue
            self._latest[event.tenant] = event
            if self._is_due(event):
                self._due[event.tenant] = event
        if self._due:
            self._waiting.set()

    def _is_due(self, report: UsageReport) -> bool:
        before = self._sent.get(report.tenant)
        if before is None or before.used != report.used or any(report.levels.values()):
            self._changed_ms[report.tenant] = report.time_ms
        elif report.time_ms - self._changed_ms[report.tenant] > IDLE_MS:
            return False
        return before is None or report.time_ms - before.time_ms >= REPORT_MS

    def due(self) -> dict[LogicalClusterId, UsageReport]:
        """The reports to send now; they count as sent."""
        due, self._due = self._due, {}
        self._sent |= due
        return due

    async def run(self, client: Client) -> None:
        """Send due reports until cancelled."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await _send(client, self.due().values())

    async def flush(self, client: Client) -> None:
        """Send the last usage that was not reported yet."""
        await _send(client, [one for one in self._latest.values() if one != self._sent.get(one.tenant)])


async def _send(client: Client, reports: Iterable[UsageReport]) -> None:
    for partition, some in _by_partition(reports).items():
        try:
            rows = [(report.key, report.to_bytes()) for report in some]
            await append(client, partition, rows, acks=LEADER, attempts_max=2)
        except PenstockError as failure:
            log.warning("usage not reported", **{key_names.ERROR: str(failure)})


def _by_partition(reports: Iterable[UsageReport]) -> dict[TopicPartition, list[UsageReport]]:
    by_partition: dict[TopicPartition, list[UsageReport]] = {}
    for report in reports:
        by_partition.setdefault(usage_partition(report.key), []).append(report)
    return by_partition


class QuotaShareFollower:
    """The part of each tenant's quota in force here: pass `quotas` to the sessions, and run it."""

    def __init__(self, client: Client, gateway: str, gateways: int) -> None:
        self._gateway = gateway
        self._gateways = gateways
        self._shares = ShareFollower(client, on_shares=self._on_shares)
        self._changed = asyncio.Event()
        self.quotas = Quotas(self._granted)

    async def run(self, gateway: Gateway) -> None:
        """Until cancelled, apply new, expired and reconfigured shares within a second."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._shares.follower.run())
            while True:
                self._changed.clear()
                await wait_at_most(self._changed, SETTLE_SECONDS)
                tenants = gateway.config.tenant_of
                now = time.monotonic()
                for tenant, _ in self.quotas:
                    known = tenants.get(tenant)
                    self.quotas.apply(tenant, known.quota if known is not None else {}, now)

    def _granted(self, tenant: LogicalClusterId, configured: Rates) -> Rates:
        now_ms = int(time.time() * 1000)
        return enforced_limits(
            configured, self._shares.latest.get(tenant), self._gateway, now_ms, self._gateways
        )

    def _on_shares(self, shares: QuotaShares) -> None:
        del shares
        self._changed.set()
