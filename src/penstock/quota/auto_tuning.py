"""Auto-tuning: keeps a broker below its limit by shrinking every tenant's limit alike (Kora §5.2.1).

Called once a second for each resource of a broker. Every tenant is limited to level × its quota there:
tenants that use less do not notice, the others share the rest in proportion to their quotas. It never
raises a tenant above its quota, never leaves one with less than `LEVEL_MIN` of it, and lifts all limits
as soon as demand fits again. Where no limit is configured, it follows the waiting requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from penstock.quota.sharing import Flags, Floats

LEVEL_MIN: Final = 0.05  # of a quota; below that, a tenant would starve
PROBE: Final = 1.5  # estimated demand of a throttled tenant, as a multiple of its use
BACK_OFF: Final = 0.8  # the next limit, as a multiple of the throughput while requests queued
RECOVERY: Final = 1.15  # growth of the limit in each second without a queue


def estimated_demand(quotas: Floats, used: Floats, throttled: Flags) -> Floats:
    """What tenants would use: their use, and more where they were throttled, up to the quota."""
    return np.minimum(quotas, np.where(throttled, np.maximum(used, LEVEL_MIN * quotas) * PROBE, used))


def tuned_limits(quotas: Floats, used: Floats, throttled: Flags, limit: float) -> tuple[float, Floats]:
    """The level, and each tenant's limit on a broker with this limit.

    A tenant without a quota (infinity) counts as if the whole limit were its quota. `LEVEL_MIN` does not
    hold then: with many such tenants the broker's limit could not be kept.
    """
    bounded = np.isfinite(quotas)
    allotted = np.where(bounded, quotas, limit)
    total = float(allotted.sum())
    level_min = LEVEL_MIN if bounded.all() or not total else min(LEVEL_MIN, limit / total)
    level = tuned_level(allotted, estimated_demand(allotted, used, throttled), limit, level_min)
    return level, level * allotted


def proportional_quotas(weights: Floats, limit: float) -> Floats:
    """Quotas for a resource without quotas, in proportion to another's; the smallest is the whole limit."""
    return np.asarray(weights / weights.min() * limit)


def tuned_level(quotas: Floats, demand: Floats, limit: float, level_min: float = LEVEL_MIN) -> float:
    """The level at which the throughput equals the limit: Σ min(demand, level × quota) = limit."""
    if float(np.minimum(demand, quotas).sum()) <= limit:
        return 1.0
    # Tenants that need the smallest part of their quota are satisfied first.
    ratio = np.divide(demand, quotas, out=np.zeros_like(demand, dtype=float), where=quotas > 0)
    order = np.argsort(ratio, kind="stable")
    satisfied = np.concatenate([[0.0], np.cumsum(demand[order])[:-1]])
    rest = np.cumsum(quotas[order][::-1])[::-1]
    level = np.divide(limit - satisfied, rest, out=np.ones_like(rest, dtype=float), where=rest > 0)
    first = int(np.argmax(ratio[order] > level))  # from here on, tenants are limited
    return float(np.clip(level[first], level_min, 1.0))


def adaptive_limit(
    limit: float | None, used: float, queue: float, queue_max: float, least: float = 0.0
) -> float | None:
    """The limit for the next second, following the queue of waiting requests; None: no limit.

    While requests queue, it falls, but not below `least`: a broker that was stuck must find tenants still
    sending when it recovers. Then it rises every second until the throughput no longer reaches it.
    """
    if queue > queue_max:
        return max(least, BACK_OFF * (used if limit is None else min(used, limit)))
    if limit is None or used < limit / RECOVERY**2:
        return None
    return limit * RECOVERY
