"""From what points have told to what a tenant used: the state of one tenant at its coordinator.

Counters are cumulative, so that a repeated report is harmless, a lost one is made good by the next,
and the order in which they come does not matter: of each point, only the newest counts. A point of
which nothing newer came is silent: what it had stays reserved for it until it has surely fallen back
to the even split by itself, and when it has been gone for longer, it is no member any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.quota.sharing import RULES, Rules, Use, limits, peaks, share_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INTERVAL_SECONDS: Final = 5.0  # between two decisions of a coordinator
FALLBACK_SECONDS: Final = 60.0  # without any word from a coordinator, a point splits evenly
GONE_SECONDS: Final = 180.0  # unheard of for so long, a point is no member any more
THROTTLED_MIN: Final = 0.001  # part of an interval


@dataclass(frozen=True, slots=True)
class Counters:
    """One tenant's use of one resource at one point, since the point's process began."""

    point: str
    incarnation: str
    sequence: int
    time: float
    used: float
    throttled_seconds: float


@dataclass(frozen=True, slots=True)
class Shared:
    """What a coordinator knows of a tenant and has told its points."""

    quota: float
    shares: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    heard: Mapping[str, Counters] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)  # what each point may be enforcing now
    peaks: Mapping[str, float] = field(default_factory=dict)  # what each point used at most of late


def newest(known: Mapping[str, Counters], arrived: Iterable[Counters]) -> dict[str, Counters]:
    """Of each point the newest counters, whatever the order they came in."""
    found = dict(known)
    for one in arrived:
        before = found.get(one.point)
        if before is None or _rank(one) > _rank(before):
            found[one.point] = one
    return found


def decide(state: Shared, arrived: Iterable[Counters], now: float, rules: Rules = RULES) -> Shared:
    """Shares and limits for the next interval, from the reports that arrived in the last one."""
    heard = newest(state.heard, arrived)
    heard = {point: one for point, one in heard.items() if now - one.time <= GONE_SECONDS}
    if not heard:
        return Shared(state.quota)
    points = sorted(heard)
    even = state.quota / len(points)
    used, throttled, silent, previous = [], [], [], []
    for point in points:
        before, later = state.heard.get(point), heard[point]
        fresh = before is None or _rank(later) > _rank(before)
        rate, waited = between(before, later) if fresh else (0.0, 0.0)
        used.append(rate)
        throttled.append(waited >= THROTTLED_MIN)
        silent.append(not fresh)
        fell_back = not fresh and now - later.time > FALLBACK_SECONDS
        previous.append(even if fell_back else state.held.get(point, 0.0))
    earlier = np.array([[state.peaks.get(point, 0.0) for point in points]])
    use = Use(
        used=np.array([used]),
        peak=peaks(earlier, np.array([used]), rules),
        throttled=np.array([throttled]),
        members=np.ones((1, len(points)), dtype=bool),
        silent=np.array([silent]),
    )
    quota = np.array([state.quota])
    shares = share_out(quota, use, np.array([previous]), rules)
    bounds = limits(quota, shares, use, rules)
    # Who is silent has what it had: a smaller share that it is sent may not reach it.
    held = np.where(use.silent, np.array([previous]), shares)
    return Shared(
        quota=state.quota,
        shares=dict(zip(points, shares[0].tolist())),
        limits=dict(zip(points, bounds[0].tolist())),
        heard=heard,
        held=dict(zip(points, held[0].tolist())),
        peaks=dict(zip(points, use.peak[0].tolist())),
    )


def between(earlier: Counters | None, later: Counters) -> tuple[float, float]:
    """(use a second, part of the time throttled). A new process's counters begin at nothing."""
    if earlier is None:
        return 0.0, 0.0  # when it began to count is not told; the next report will show its use
    seconds = max(later.time - earlier.time, 1e-9)
    if earlier.incarnation != later.incarnation:
        return later.used / seconds, min(1.0, later.throttled_seconds / seconds)
    return (
        max(0.0, later.used - earlier.used) / seconds,
        min(1.0, max(0.0, later.throttled_seconds - earlier.throttled_seconds) / seconds),
    )


def _rank(one: Counters) -> tuple[float, int, str]:
    return one.time, one.sequence, one.incarnation
