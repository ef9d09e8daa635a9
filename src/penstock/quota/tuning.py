"""Auto-tuning: hold a broker below its limit by shrinking every tenant's part alike (Kora §5.2.1).

Called once a second for each resource of a broker. All parts are shrunk to the same level, a tenant
being left with level × its quota there: those who use less than that do not notice, the others share
what is left in proportion to their quotas. Never raises anybody above its quota, never leaves anybody
with less than `LEVEL_MIN` of it, and gives everything back as soon as what is asked for fits again.

Bandwidth and connection rate have a limit that was found by benchmarking. Processor time has none
that could be measured: there the broker's request queue tells, and the limit follows (`request_limit`).
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


def tuned_level(quotas: Floats, demand: Floats, limit: float) -> float:
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
    return float(np.clip(level[first], LEVEL_MIN, 1.0))


def request_limit(limit: float | None, used: float, queue: float, queue_max: float) -> float | None:
    """The limit on request time for the next second; None: no limit.

    Past the threshold it is set below what was done meanwhile, and falls on while requests queue;
    then it rises a little each second, until what is done does not reach it any more.
    """
    if queue > queue_max:
        return BACK_OFF * (used if limit is None else min(used, limit))
    if limit is None or used < limit / RECOVERY**2:
        return None
    return limit * RECOVERY
