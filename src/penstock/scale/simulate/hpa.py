"""The horizontal pod autoscaler, from the rules Kubernetes documents.

For an external metric with an average target: nothing within the tolerance, else
ceil(value / target). Then the stabilisation windows (upwards the lowest recommendation of the
window counts, downwards the highest), then the policies (most pods that may be added or taken in
a period, of several the one that changes most), then the limits. Once every sync.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

SYNC_SECONDS: Final = 15
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """One policy: at most so many pods, or per cent of them, in a period."""

    value: int
    period: int  # seconds
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Direction:
    window: int  # seconds of stabilisation
    steps: tuple[Step, ...]
    most: bool = True  # of several policies, the one that changes most

    def limit(self, start_of: dict[int, int], sign: int) -> int:
        """How far one may go now, given the replica count at the start of each policy's period."""
        proposals = []
        for step in self.steps:
            start = start_of[step.period]
            if not step.percent:
                proposals.append(start + sign * step.value)
            elif sign > 0:
                proposals.append(math.ceil(start * (1 + step.value / 100) - 1e-9))
            else:
                proposals.append(math.floor(start * (1 - step.value / 100) + 1e-9))
        far = max if (sign > 0) == self.most else min
        return far(proposals)


DEFAULT_UP: Final = Direction(0, (Step(4, 15), Step(100, 15, percent=True)))
DEFAULT_DOWN: Final = Direction(300, (Step(100, 15, percent=True),))


@dataclass
class Autoscaler:
    """One HPA. `sync` is to be called every `SYNC_SECONDS`; it returns the replica count to set."""

    minimum: int
    maximum: int
    up: Direction = DEFAULT_UP
    down: Direction = DEFAULT_DOWN
    tolerance: float = TOLERANCE
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now: float, current: int, value: float | None, target: float) -> int:
        """`value` None: the metric could not be had, and everything stays."""
        if value is None or current == 0:
            return current
        wanted = recommended(current, value, target, self.tolerance)
        wanted = self._stabilised(now, current, wanted)
        wanted = self._paced(now, current, wanted)
        wanted = max(self.minimum, min(self.maximum, wanted))
        if wanted != current:
            self._changes.append((now, wanted - current))
        return wanted

    def _stabilised(self, now: float, current: int, wanted: int) -> int:
        longest = max(self.up.window, self.down.window)
        self._recommended = [(at, count) for at, count in self._recommended if at > now - longest]
        lowest = min([wanted, *(count for at, count in self._recommended if at > now - self.up.window)])
        highest = max([wanted, *(count for at, count in self._recommended if at > now - self.down.window)])
        self._recommended.append((now, wanted))
        return min(max(current, lowest), highest)

    def _paced(self, now: float, current: int, wanted: int) -> int:
        if wanted > current:
            limit = self.up.limit(self._starts(now, current, self.up), 1)
            return min(wanted, max(limit, current))
        if wanted < current:
            limit = self.down.limit(self._starts(now, current, self.down), -1)
            return max(wanted, min(limit, current))
        return current

    def _starts(self, now: float, current: int, direction: Direction) -> dict[int, int]:
        periods = {step.period for step in direction.steps}
        self._changes = [(at, change) for at, change in self._changes if at > now - 3600]
        return {
            period: current - sum(change for at, change in self._changes if at > now - period)
            for period in periods
        }


def recommended(current: int, value: float, target: float, tolerance: float = TOLERANCE) -> int:
    """The average-value rule: keep within the tolerance, else ceil(value / target)."""
    if abs(1.0 - value / (target * current)) <= tolerance:
        return current
    return math.ceil(value / target - 1e-9)
