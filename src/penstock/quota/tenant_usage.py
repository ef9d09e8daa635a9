"""The tenants of one usage partition at their coordinator: usage reports in, shares out.

A successor starts from the shares published last and from recent reports, so its first decision is the one
its predecessor would have made. A gateway where a tenant has no connection and no use since the last
decision gets no share. It takes the even split when traffic arrives, and a share with its next report.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension, QuotaShares
from penstock.quota.enforcement import SHARED
from penstock.quota.sharing import DEFAULT_POLICY, SharingPolicy
from penstock.quota.usage_reports import (
    FALLBACK_SECONDS,
    GATEWAY_EXPIRY_SECONDS,
    Counters,
    SharingState,
    between,
    decide,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.model.events import UsageReport
    from penstock.model.ids import LogicalClusterId

VALID_MS: Final = int(FALLBACK_SECONDS * 1000)
GATEWAYS_MAX: Final = 1_000  # of one tenant: the names come from the reports
LAZY_BEYOND: Final = 1 + 1e-9  # a limit above this multiple of the share is a lazy one


@dataclass(slots=True)
class TenantRecord:
    """One tenant."""

    published: QuotaShares | None  # the latest decision, of this coordinator or its predecessor
    baseline: dict[str, UsageReport] = field(default_factory=dict)  # by gateway: what it was based on
    newest: dict[str, UsageReport] = field(default_factory=dict)
    sharing: dict[str, SharingState] = field(default_factory=dict)  # by dimension
    restored: bool = False


class OwnedTenants:
    """The tenants of one partition. `epoch` is above that of the previous owner."""

    def __init__(self, epoch: int, policy: SharingPolicy = DEFAULT_POLICY) -> None:
        self.epoch = epoch
        self._policy = policy
        self._records: dict[LogicalClusterId, TenantRecord] = {}
        self._sequence = 0

    def add_report(self, report: UsageReport, published: QuotaShares | None) -> None:
        """`published`: the tenant's latest shares, used if this object has not decided on it yet."""
        record = self._records.get(report.tenant)
        if record is None:
            record = self._records[report.tenant] = TenantRecord(published)
        _keep_newest(record.newest, report)
        last = record.published
        if not record.restored and last is not None and report.time_ms <= last.time_ms:
            _keep_newest(record.baseline, report)

    def decide(
        self, quotas: Mapping[LogicalClusterId, Mapping[str, float]], now_ms: int
    ) -> Iterator[QuotaShares]:
        """Shares for the next interval, of every tenant with recent reports."""
        self._sequence += 1
        for tenant, record in list(self._records.items()):
            oldest = now_ms - int(GATEWAY_EXPIRY_SECONDS * 1000)
            record.newest = {name: one for name, one in record.newest.items() if one.time_ms >= oldest}
            if not record.newest:
                del self._records[tenant]
                continue
            if not record.restored:
                _restore(record)
            yield self._decide_tenant(tenant, record, quotas.get(tenant, {}), now_ms)

    def _decide_tenant(
        self, tenant: LogicalClusterId, record: TenantRecord, quota: Mapping[str, float], now_ms: int
    ) -> QuotaShares:
        limited = {str(d): quota[d] for d in SHARED if quota.get(d, 0.0) > 0}
        gateways = {
            name: one for name, one in record.newest.items() if not _at_rest(record.baseline.get(name), one)
        }
        shares: dict[str, dict[str, float]] = {gateway: {} for gateway in gateways}
        limits: dict[str, dict[str, float]] = {gateway: {} for gateway in gateways}
        lazy = []
        for dimension, whole in limited.items():
            before = record.sharing.get(dimension, SharingState(whole))
            latest = {gateway: one for gateway, one in before.latest.items() if gateway in gateways}
            before = replace(before, quota=whole, latest=latest)
            arrived = [_counters(report, dimension) for report in gateways.values()]
            after = record.sharing[dimension] = decide(before, arrived, now_ms / 1000, self._policy)
            for gateway, share in after.shares.items():
                shares[gateway][dimension] = share
                limits[gateway][dimension] = after.limits[gateway]
            if any(after.limits[name] > share * LAZY_BEYOND for name, share in after.shares.items()):
                lazy.append(dimension)
        for dimension in record.sharing.keys() - limited.keys():
            del record.sharing[dimension]
        rates = {name: _rates(record.baseline.get(name), one) for name, one in gateways.items()}
        record.published = QuotaShares(
            tenant=tenant,
            epoch=self.epoch,
            sequence=self._sequence,
            time_ms=now_ms,
            valid_ms=VALID_MS,
            quota=limited,
            shares=shares,
            lazy=tuple(lazy),
            limits=limits,
            used={gateway: used for gateway, (used, _) in rates.items()},
            throttled={gateway: throttled for gateway, (_, throttled) in rates.items() if throttled},
            levels=_levels(gateways),
        )
        record.baseline = dict(record.newest)
        return record.published


def _keep_newest(reports: dict[str, UsageReport], report: UsageReport) -> None:
    before = reports.get(report.gateway)
    if before is None and len(reports) >= GATEWAYS_MAX:
        return
    if before is None or (report.time_ms, report.sequence) > (before.time_ms, before.sequence):
        reports[report.gateway] = report


def _restore(record: TenantRecord) -> None:
    """The state after the predecessor's last decision: gateways' shares, and what was counted by then."""
    record.restored = True
    published = record.published
    if published is None:
        return
    for dimension, whole in published.quota.items():
        shares = {name: split[dimension] for name, split in published.shares.items() if dimension in split}
        used = {name: split[dimension] for name, split in published.used.items() if dimension in split}
        latest = {name: _counters(one, dimension) for name, one in record.baseline.items() if name in shares}
        record.sharing[dimension] = SharingState(whole, shares, shares, latest, shares, used)


def _at_rest(before: UsageReport | None, report: UsageReport) -> bool:
    if report.levels.get(Dimension.CONNECTIONS, 1) > 0 or before is None:
        return False
    return before.incarnation == report.incarnation and before.used == report.used


def _counters(report: UsageReport, dimension: str) -> Counters:
    return Counters(
        report.gateway,
        report.incarnation,
        report.sequence,
        report.time_ms / 1000,
        float(report.used.get(dimension, 0)),
        report.throttled_ms.get(dimension, 0) / 1000,
    )


def _rates(before: UsageReport | None, report: UsageReport) -> tuple[dict[str, float], dict[str, float]]:
    """By dimension: (use per second, share of time throttled), between the last decision and this one."""
    used, throttled = {}, {}
    for dimension in report.used:
        earlier = None if before is None else _counters(before, dimension)
        used[dimension], throttled_ratio = between(earlier, _counters(report, dimension))
        if throttled_ratio > 0:
            throttled[dimension] = throttled_ratio
    return used, throttled


def _levels(reports: Mapping[str, UsageReport]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for report in reports.values():
        total.update(report.levels)
    return dict(total)
