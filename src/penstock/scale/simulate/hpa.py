"""The horizontal pod autoscaler, following the rules Kubernetes documents.

For an external metric with an average target it changes nothing within the tolerance, and else
recommends ceil(value / target). Then the stabilization windows apply: upwards the lowest
recommendation of the window counts, downwards the highest. Then come the scaling policies and the
replica limits. This happens once every sync.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

SYNC_SECONDS: Final = 15
TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """At most `value` pods, or percent of the pods, in a period."""

    value: int
    period: int  # seconds
    percent: bool = False


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Stabilization window and policies for one direction."""

    window: int  # of stabilization, seconds
    steps: tuple[ScalingPolicy, ...]
    select_max: bool = True  # of several policies, the one that changes most (selectPolicy: Max)

    def limit(self, start_of: dict[int, int], sign: int) -> int:
        """The replica limit now, given the replica count at the start of each policy's period."""
        proposals = []
        for step in self.steps:
            start = start_of[step.period]
            if not step.percent:
                proposals.append(start + sign * step.value)
            elif sign > 0:
                proposals.append(math.ceil(start * (1 + step.value / 100) - 1e-9))
            else:
                proposals.append(math.floor(start * (1 - step.value / 100) + 1e-9))
        far = max if (sign > 0) == self.select_max else min
        return far(proposals)


DEFAULT_UP: Final = ScalingRules(0, (ScalingPolicy(4, 15), ScalingPolicy(100, 15, percent=True)))
DEFAULT_DOWN: Final = ScalingRules(300, (ScalingPolicy(100, 15, percent=True),))


@dataclass
class Autoscaler:
    """One HPA. Call `sync` every `SYNC_SECONDS`; it returns the replica count to set."""

    minimum: int
    maximum: int
    up: ScalingRules = DEFAULT_UP
    down: ScalingRules = DEFAULT_DOWN
    tolerance: float = TOLERANCE
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _changes: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now: float, current: int, value: float | None, target: float) -> int:
        """The replicas to set; unchanged if `value` is None because the metric is unavailable."""
        if value is None or current == 0:
            return current
        desired = recommended(current, value, target, self.tolerance)
        desired = self._stabilised(now, current, desired)
        desired = self._paced(now, current, desired)
        desired = max(self.minimum, min(self.maximum, desired))
        if desired != current:
            self._changes.append((now, desired - current))
        return desired

    def _stabilised(self, now: float, current: int, desired: int) -> int:
        longest = max(self.up.window, self.down.window)
        self._recommended = [(at, count) for at, count in self._recommended if at > now - longest]
        lowest = min([desired, *(count for at, count in self._recommended if at > now - self.up.window)])
        highest = max([desired, *(count for at, count in self._recommended if at > now - self.down.window)])
        self._recommended.append((now, desired))
        return min(max(current, lowest), highest)

    def _paced(self, now: float, current: int, desired: int) -> int:
        if desired > current:
            limit = self.up.limit(self._starts(now, current, self.up), 1)
            return min(desired, max(limit, current))
        if desired < current:
            limit = self.down.limit(self._starts(now, current, self.down), -1)
            return max(desired, min(limit, current))
        return current

    def _starts(self, now: float, current: int, direction: ScalingRules) -> dict[int, int]:
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
