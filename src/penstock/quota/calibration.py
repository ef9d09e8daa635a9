"""How much of the request time that a gateway measures is the broker's own work.

The time from a request to its response includes the network and the broker's queues, which grow with the
load of other tenants. Brokers report how long their request handlers were idle; the rest is the work of
all requests. So a tenant's request time is what the gateway measured, times a factor for each broker:
handlers' work ÷ the time that gateways measured. It is at most 1, as replication is not charged, and
never 0.

Intervals are weighted by measured time: in a quiet interval most work is replication. Before the first
measurement the smallest factor applies, so that no tenant is throttled for work that may not be its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FACTOR_MIN: Final = 0.05
FACTOR_MAX: Final = 1.0
DECAY: Final = 0.7  # weight of earlier intervals after one more
MEASURED_SECONDS_MIN: Final = 0.02  # in an interval; with less, noise dominates


@dataclass(frozen=True, slots=True)
class HandlerSample:
    """The idle time of a broker's request handlers, as scraped at some time."""

    time: float
    idle_seconds: float  # average of all handlers, since the broker started


def work_seconds(before: HandlerSample, after: HandlerSample, threads: int) -> float | None:
    """How long all handlers together worked between two samples; None if unknown, as after a restart."""
    elapsed, idle = after.time - before.time, after.idle_seconds - before.idle_seconds
    if elapsed <= 0 or idle < 0:
        return None
    return max(0.0, elapsed - idle) * threads


def busy_ratio(before: HandlerSample, after: HandlerSample) -> float | None:
    """The share of time in which a handler worked between two samples, 0 to 1."""
    work = work_seconds(before, after, 1)
    return None if work is None else min(1.0, work / (after.time - before.time))


@dataclass(frozen=True, slots=True)
class CalibrationState:
    """Work and measured time of recent intervals, the newest weighted most."""

    work_seconds: float = 0.0
    measured_seconds: float = 0.0

    @property
    def factor(self) -> float:
        if not self.measured_seconds:
            return FACTOR_MIN
        return min(max(self.work_seconds / self.measured_seconds, FACTOR_MIN), FACTOR_MAX)


def updated_calibration(
    before: CalibrationState, work: float | None, measured_seconds: float
) -> CalibrationState:
    if work is None or measured_seconds < MEASURED_SECONDS_MIN:
        return before
    measured = DECAY * before.measured_seconds + measured_seconds
    return CalibrationState(DECAY * before.work_seconds + work, measured)
