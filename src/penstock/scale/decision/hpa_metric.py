"""The metric value that makes the HPA reach the requested count in spite of its tolerance.

The target is one per replica, so the value is a replica count. The HPA changes nothing while
|1 - value / replicas| is within its tolerance (10 % by default), else it takes ceil(value). From ten
replicas up it therefore ignores one more, or one fewer (KEDA issues 2908 and 4791).

A scale-up is widened until the HPA acts on it. For a scale-down the value is the smallest that still
rounds up to the requested count. If the HPA would ignore even that, the step waits until it is
larger: too many replicas are safer than too few.
"""

from __future__ import annotations

import math
from typing import Final

TARGET: Final = 1.0  # metric value for each replica
LOW_END: Final = 0.001  # the resolution of a Kubernetes quantity
METRIC: Final = "persistent-lag-replicas"


def visible_scale_up(current: int, target: int, tolerance: float) -> int:
    """The smallest count at or above `target` that the HPA does not ignore."""
    return max(target, math.floor(current * (1 + tolerance) + 1e-9) + 1)


def is_visible_scale_down(current: int, target: int, tolerance: float) -> bool:
    """Whether the HPA acts on `target` when given the lowest value that rounds up to it."""
    return (target - 1 + LOW_END) / current < 1 - tolerance - 1e-9


def value_for(requested: int, current: int) -> float:
    """The metric value that takes an HPA from `current` to `requested` replicas."""
    return (requested - 1 + LOW_END) * TARGET if current > requested else requested * TARGET
