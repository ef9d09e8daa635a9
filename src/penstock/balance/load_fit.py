"""Fits the profile of broker load to measurements at known offered loads, and judges it.

Offered load is the request rate relative to the highest that the broker sustains. Up to half load the busy
shares of the threads grow with it: their slopes are the profile's `handlers_full` and `network_full`. The
wait factor and the blend limits are those with the smallest error over all points.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.broker_load import DEFAULT, broker_load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.balance.broker_load import Measurement, Profile

LOW_LOAD: Final = 0.5  # offered; up to here waits are short
FULL_MIN: Final = 0.005  # busy share of threads at saturation, at least
POINTS_MIN: Final = 3
WAIT_FACTORS: Final = tuple(float(factor) for factor in np.geomspace(0.05, 50, 41))
BLENDS: Final = tuple(
    (round(start / 10, 1), round(end / 10, 1)) for start in range(3, 9) for end in range(start + 1, 11)
)


@dataclass(frozen=True, slots=True)
class Point:
    """One level of load."""

    offered: float  # 0 to 1, relative to the highest sustained rate
    measured: Measurement


@dataclass(frozen=True, slots=True)
class Quality:
    r_squared: float  # of offered against reported load
    worst_error: float


def fit(points: Sequence[Point]) -> Profile:
    """The profile with which reported loads are closest to the offered ones."""
    if len(points) < POINTS_MIN or not any(0 < point.offered <= LOW_LOAD for point in points):
        raise ValueError(f"a fit takes {POINTS_MIN} points, one of them at most half load")
    scaled = replace(
        DEFAULT,
        handlers_full=_slope(points, lambda measured: measured.handlers_busy),
        network_full=_slope(points, lambda measured: measured.network_busy),
    )
    candidates = (
        replace(scaled, wait_factor=factor, blend_from=start, blend_to=end)
        for factor in WAIT_FACTORS
        for start, end in BLENDS
    )
    return min(candidates, key=lambda profile: _cost(points, profile))


def quality(points: Sequence[Point], profile: Profile) -> Quality:
    offered = np.array([point.offered for point in points])
    errors = np.array([broker_load(point.measured, profile) for point in points]) - offered
    spread = float(np.sum((offered - offered.mean()) ** 2))
    squares = float(np.sum(errors**2))
    return Quality(1 - squares / spread if spread else 0.0, float(np.max(np.abs(errors))))


def _slope(points: Sequence[Point], share: Callable[[Measurement], float]) -> float:
    low = [point for point in points if 0 < point.offered <= LOW_LOAD]
    busy = sum(point.offered * share(point.measured) for point in low)
    return max(FULL_MIN, busy / sum(point.offered**2 for point in low))


def _cost(points: Sequence[Point], profile: Profile) -> float:
    """Squared errors, with the largest counted twice: one bad level is worse than several fair ones."""
    errors = [(broker_load(point.measured, profile) - point.offered) ** 2 for point in points]
    return sum(errors) + len(errors) * max(errors)
