"""How much of the time that a gateway sees a broker take is the broker's own work.

What a gateway measures from a request to its answer holds the network and the broker's queues as well,
which grow with what others ask of it. A broker tells how long its request handlers were idle; the rest
is what all requests together have cost. So a tenant's request time is what was seen of it, times one
factor for each broker: handlers' work ÷ all that gateways saw. The factor is at most 1, since nobody is
charged for work that was done for others, such as followers; and never so small that time would be free.

Intervals count by what was seen in them: in a quiet one most of the work is for others, and a busy one
should not be charged by it. Until anything was found the smallest factor holds, so that nobody waits for
what may be no work of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FACTOR_MIN: Final = 0.05
FACTOR_MAX: Final = 1.0
KEPT: Final = 0.7  # of what earlier intervals count, after one more
SEEN_SECONDS_MIN: Final = 0.02  # in an interval: with less, chance tells more than the broker


@dataclass(frozen=True, slots=True)
class Handlers:
    """A broker's request handlers, as it told at some time."""

    time: float
    idle_seconds: float  # of one of them, on average, since the broker started


def work_seconds(before: Handlers, after: Handlers, threads: int) -> float | None:
    """What all handlers did meanwhile; None if it cannot be told, as after a restart."""
    elapsed, idle = after.time - before.time, after.idle_seconds - before.idle_seconds
    if elapsed <= 0 or idle < 0:
        return None
    return max(0.0, elapsed - idle) * threads


def busy_part(before: Handlers, after: Handlers) -> float | None:
    """Of the time between, 0 to 1: that in which a handler worked, on average."""
    work = work_seconds(before, after, 1)
    return None if work is None else min(1.0, work / (after.time - before.time))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Of late, the newest counting most."""

    work_seconds: float = 0.0
    seen_seconds: float = 0.0

    @property
    def factor(self) -> float:
        if not self.seen_seconds:
            return FACTOR_MIN
        return min(max(self.work_seconds / self.seen_seconds, FACTOR_MIN), FACTOR_MAX)


def calibrated(before: Calibrated, work: float | None, seen_seconds: float) -> Calibrated:
    """After one more interval."""
    if work is None or seen_seconds < SEEN_SECONDS_MIN:
        return before
    return Calibrated(KEPT * before.work_seconds + work, KEPT * before.seen_seconds + seen_seconds)
