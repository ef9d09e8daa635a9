"""What a coordinator knows of its tenants: their quotas, what gateways reported, what it told them.

One `Tenants` for each part of the tenants that it owns. Whoever takes a part over begins from what was
told last, by whomever, and from the reports of late, so that the first decision is the one that its
predecessor would have made: shares stay where the traffic is.

A gateway at which a tenant has no connection and used nothing since the last decision is at rest, and
is given no share: it takes the even split when traffic comes, and is given one with its next report.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension, QuotaShares
from penstock.quota.reports import FALLBACK_SECONDS, GONE_SECONDS, Counters, Shared, between, decide
from penstock.quota.sharing import RULES, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.model.events import UsageReport
    from penstock.model.ids import LogicalClusterId

# Limits on a rate that several gateways share. The others are levels, or hold for each gateway.
SHARED: Final = (
    Dimension.INGRESS_BYTES,
    Dimension.EGRESS_BYTES,
    Dimension.REQUESTS,
    Dimension.REQUEST_TIME_US,
    Dimension.PARTITION_CHANGES,
)
VALID_MS: Final = int(FALLBACK_SECONDS * 1000)
LAZY_BEYOND: Final = 1 + 1e-9  # of a share: a limit above it is a lazy one


@dataclass(slots=True)
class Known:
    """One tenant."""

    told: QuotaShares | None  # the last decision, whosever
    counted: dict[str, UsageReport] = field(default_factory=dict)  # of each gateway, what that went by
    newest: dict[str, UsageReport] = field(default_factory=dict)
    shared: dict[str, Shared] = field(default_factory=dict)  # by dimension
    restored: bool = False


class Tenants:
    """Of one part. `epoch` is above that of whoever had it before."""

    def __init__(self, epoch: int, rules: Rules = RULES) -> None:
        self.epoch = epoch
        self._rules = rules
        self._known: dict[LogicalClusterId, Known] = {}
        self._sequence = 0

    def take(self, report: UsageReport, told: QuotaShares | None) -> None:
        """A report, and what was told of its tenant before, if this one has told nothing of it yet."""
        known = self._known.get(report.tenant)
        if known is None:
            known = self._known[report.tenant] = Known(told)
        _keep(known.newest, report)
        if not known.restored and known.told is not None and report.time_ms <= known.told.time_ms:
            _keep(known.counted, report)

    def decide(
        self, quotas: Mapping[LogicalClusterId, Mapping[str, float]], now_ms: int
    ) -> Iterator[QuotaShares]:
        """Shares for the next interval, of every tenant that was heard of lately."""
        self._sequence += 1
        for tenant, known in list(self._known.items()):
            oldest = now_ms - int(GONE_SECONDS * 1000)
            known.newest = {p: one for p, one in known.newest.items() if one.time_ms >= oldest}
            if not known.newest:
                del self._known[tenant]
                continue
            if not known.restored:
                _restore(known)
            yield self._decided(tenant, known, quotas.get(tenant, {}), now_ms)

    def _decided(
        self, tenant: LogicalClusterId, known: Known, quota: Mapping[str, float], now_ms: int
    ) -> QuotaShares:
        limited = {str(d): quota[d] for d in SHARED if quota.get(d, 0.0) > 0}
        points = {p: one for p, one in known.newest.items() if not _at_rest(known.counted.get(p), one)}
        shares: dict[str, dict[str, float]] = {point: {} for point in points}
        limits: dict[str, dict[str, float]] = {point: {} for point in points}
        lazy = []
        for dimension, whole in limited.items():
            before = known.shared.get(dimension, Shared(whole))
            before = replace(before, quota=whole, heard=_only(before.heard, points))
            arrived = [_counters(report, dimension) for report in points.values()]
            after = known.shared[dimension] = decide(before, arrived, now_ms / 1000, self._rules)
            for point, share in after.shares.items():
                shares[point][dimension] = share
                limits[point][dimension] = after.limits[point]
            if any(after.limits[p] > share * LAZY_BEYOND for p, share in after.shares.items()):
                lazy.append(dimension)
        for dimension in known.shared.keys() - limited.keys():
            del known.shared[dimension]
        rates = {p: _rates(known.counted.get(p), one) for p, one in points.items()}
        known.told = QuotaShares(
            tenant=tenant,
            epoch=self.epoch,
            sequence=self._sequence,
            time_ms=now_ms,
            valid_ms=VALID_MS,
            quota=limited,
            shares=shares,
            lazy=tuple(lazy),
            limits=limits,
            used={point: used for point, (used, _) in rates.items()},
            throttled={point: waited for point, (_, waited) in rates.items() if waited},
            levels=_levels(points),
        )
        known.counted = dict(known.newest)
        return known.told


def _keep(reports: dict[str, UsageReport], report: UsageReport) -> None:
    before = reports.get(report.gateway)
    if before is None or (report.time_ms, report.sequence) > (before.time_ms, before.sequence):
        reports[report.gateway] = report


def _restore(known: Known) -> None:
    """As it was after the last decision: what points have, and what had been counted by then."""
    known.restored = True
    if known.told is None:
        return
    for dimension, whole in known.told.quota.items():
        held = {p: split[dimension] for p, split in known.told.shares.items() if dimension in split}
        used = {p: split[dimension] for p, split in known.told.used.items() if dimension in split}
        heard = {p: _counters(one, dimension) for p, one in known.counted.items() if p in held}
        known.shared[dimension] = Shared(whole, held, held, heard, held, used)


def _at_rest(before: UsageReport | None, report: UsageReport) -> bool:
    if report.levels.get(Dimension.CONNECTIONS, 1) > 0 or before is None:
        return False
    return before.incarnation == report.incarnation and before.used == report.used


def _only(heard: Mapping[str, Counters], points: Mapping[str, UsageReport]) -> dict[str, Counters]:
    return {point: counters for point, counters in heard.items() if point in points}


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
    """By dimension: (use a second, part of the time throttled), between the last decision and this one."""
    used, throttled = {}, {}
    for dimension in report.used:
        earlier = None if before is None else _counters(before, dimension)
        used[dimension], waited = between(earlier, _counters(report, dimension))
        if waited > 0:
            throttled[dimension] = waited
    return used, throttled


def _levels(points: Mapping[str, UsageReport]) -> dict[str, int]:
    total: dict[str, int] = {}
    for report in points.values():
        for name, level in report.levels.items():
            total[name] = total.get(name, 0) + level
    return total
