"""From cumulative usage reports to a tenant's next shares: one tenant and dimension at its coordinator.

Counters are cumulative, and only the latest report of each gateway counts: a repeated, lost or late one
is harmless. A gateway without a new report is silent: its share stays reserved until it has certainly
fallen back to the even split. After `GATEWAY_EXPIRY_SECONDS` it is no longer a member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.quota.sharing import DEFAULT_POLICY, IntervalUsage, SharingPolicy, lazy_limits, peaks, share_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INTERVAL_SECONDS: Final = 5.0  # between two decisions of a coordinator
FALLBACK_SECONDS: Final = 60.0  # without new shares, a gateway falls back to the even split
GATEWAY_EXPIRY_SECONDS: Final = 180.0  # without a report, a gateway is no longer a member
THROTTLED_MIN: Final = 0.001  # share of an interval


@dataclass(frozen=True, slots=True)
class Counters:
    """One tenant's use of one resource at one gateway, since the gateway's process started."""

    gateway: str
    incarnation: str
    sequence: int
    time: float
    used: float
    throttled_seconds: float


@dataclass(frozen=True, slots=True)
class SharingState:
    """What a coordinator knows of a tenant, and has published to its gateways."""

    quota: float
    shares: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    latest: Mapping[str, Counters] = field(default_factory=dict)
    enforced: Mapping[str, float] = field(default_factory=dict)  # what each gateway may be enforcing now
    peaks: Mapping[str, float] = field(default_factory=dict)  # recent peak use of each gateway


def decide(
    state: SharingState, arrived: Iterable[Counters], now: float, policy: SharingPolicy = DEFAULT_POLICY
) -> SharingState:
    """Shares and limits for the next interval, from the reports that arrived in the last one."""
    known = [*state.latest.values(), *arrived]
    latest = {one.gateway: one for one in sorted(known, key=_order)}
    latest = {gateway: one for gateway, one in latest.items() if now - one.time <= GATEWAY_EXPIRY_SECONDS}
    if not latest:
        return SharingState(state.quota)
    gateways = sorted(latest)
    even = state.quota / len(gateways)
    used, throttled, silent, previous = [], [], [], []
    for gateway in gateways:
        before, later = state.latest.get(gateway), latest[gateway]
        fresh = before is None or _order(later) > _order(before)
        rate, throttled_ratio = between(before, later) if fresh else (0.0, 0.0)
        used.append(rate)
        throttled.append(throttled_ratio >= THROTTLED_MIN)
        silent.append(not fresh)
        fell_back = not fresh and now - later.time > FALLBACK_SECONDS
        previous.append(even if fell_back else state.enforced.get(gateway, 0.0))
    earlier = np.array([[state.peaks.get(gateway, 0.0) for gateway in gateways]])
    rates, members = np.array([used]), np.ones((1, len(gateways)), dtype=bool)
    peak = peaks(earlier, rates, policy)
    usage = IntervalUsage(rates, peak, np.array([throttled]), members, np.array([silent]))
    quota = np.array([state.quota])
    shares = share_out(quota, usage, np.array([previous]), policy)
    bounds = lazy_limits(quota, shares, usage, policy)
    # A silent gateway enforces what it had: a smaller share may not reach it.
    enforced = np.where(usage.silent, np.array([previous]), shares)
    return SharingState(
        quota=state.quota,
        shares=dict(zip(gateways, shares[0].tolist())),
        limits=dict(zip(gateways, bounds[0].tolist())),
        latest=latest,
        enforced=dict(zip(gateways, enforced[0].tolist())),
        peaks=dict(zip(gateways, usage.peak[0].tolist())),
    )


def between(earlier: Counters | None, later: Counters) -> tuple[float, float]:
    """(use per second, share of time throttled). A new process's counters start at zero."""
    if earlier is None:
        return 0.0, 0.0  # when it started to count is unknown; the next report shows its use
    seconds = max(later.time - earlier.time, 1e-9)
    used, throttled = later.used, later.throttled_seconds
    if earlier.incarnation == later.incarnation:
        used, throttled = used - earlier.used, throttled - earlier.throttled_seconds
    return max(0.0, used) / seconds, min(1.0, max(0.0, throttled) / seconds)


def _order(one: Counters) -> tuple[float, int, str]:
    return one.time, one.sequence, one.incarnation
