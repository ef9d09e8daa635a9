"""Auto-tuning: hold a broker below its limit by shrinking every tenant's part alike (Kora §5.2.1).

Called once a second for each resource of a broker. All parts are shrunk to the same level, a tenant
being left with level × its quota there: those who use less than that do not notice, the others share
what is left in proportion to their quotas. Never raises anybody above its quota, never leaves anybody
with less than `LEVEL_MIN` of it, and gives everything back as soon as what is asked for fits again.

Bandwidth and connection rate have a limit that was found by benchmarking. Where none is stated, and for
processor time, which has none that could be measured, waiting requests tell, and the limit follows
(`request_limit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating]
    Flags = NDArray[np.bool_]

LEVEL_MIN: Final = 0.05  # of a quota; below, a tenant would starve
PROBE: Final = 1.5  # a throttled tenant is taken to want this times what it got
BACK_OFF: Final = 0.8  # of what was done while requests queued
RECOVERY: Final = 1.15  # times the limit, each second in which none did


def wanted(quotas: Floats, used: Floats, throttled: Flags) -> Floats:
    """What tenants would use: what they do, and those who were throttled some more, up to the quota."""
    return np.minimum(quotas, np.where(throttled, np.maximum(used, LEVEL_MIN * quotas) * PROBE, used))


def tuned_parts(quotas: Floats, used: Floats, throttled: Flags, limit: float) -> tuple[float, Floats]:
    """The level, and what it leaves each tenant with on a broker that can do so much.

    A tenant without a quota (infinity) counts as if the whole limit were its own; there may be more of
    those than `LEVEL_MIN` would let the limit hold for, so for them it does not.
    """
    bounded = np.isfinite(quotas)
    allotted = np.where(bounded, quotas, limit)
    total = float(allotted.sum())
    level_min = LEVEL_MIN if bounded.all() or not total else min(LEVEL_MIN, limit / total)
    level = tuned_level(allotted, wanted(allotted, used, throttled), limit, level_min)
    return level, level * allotted


def in_proportion(weights: Floats, limit: float) -> Floats:
    """Quotas for a resource that nobody has one of, by those of another: the least is the whole limit."""
    return np.asarray(weights / weights.min() * limit)


def tuned_level(quotas: Floats, demand: Floats, limit: float, level_min: float = LEVEL_MIN) -> float:
    """The level at which all that passes is just the limit: Σ min(demand, level × quota) = limit."""
    if float(np.minimum(demand, quotas).sum()) <= limit:
        return 1.0
    # Those who want the smallest part of their quota are satisfied first.
    part = np.divide(demand, quotas, out=np.zeros_like(demand, dtype=float), where=quotas > 0)
    order = np.argsort(part, kind="stable")
    satisfied = np.concatenate([[0.0], np.cumsum(demand[order])[:-1]])
    rest = np.cumsum(quotas[order][::-1])[::-1]
    level = np.divide(limit - satisfied, rest, out=np.ones_like(rest, dtype=float), where=rest > 0)
    first = int(np.argmax(part[order] > level))  # from here on, nobody gets all it wants
    return float(np.clip(level[first], level_min, 1.0))


def request_limit(
    limit: float | None, used: float, queue: float, queue_max: float, least: float = 0.0
) -> float | None:
    """The limit that follows what waits, for the next second; None: no limit.

    Past the threshold it is set below what was done meanwhile, and falls on while requests queue, but
    not below `least`: a broker that stands still is not to find its tenants gone when it comes back.
    Then it rises a little each second, until what is done does not reach it any more.
    """
    if queue > queue_max:
        return max(least, BACK_OFF * (used if limit is None else min(used, limit)))
    if limit is None or used < limit / RECOVERY**2:
        return None
    return limit * RECOVERY
