"""The number the HPA reads, so that it does what was asked in spite of its tolerance.

The target is one per replica, so the value is a replica count. The HPA keeps what it has while
|1 - value / replicas| is within its tolerance (10 % by default), else it takes ceil(value). From ten
replicas up, one more is therefore ignored, and so is one fewer (KEDA issues 2908 and 4791).
Upwards the step is widened until it is seen. Downwards the value is put at the low end of what
still rounds up to the count asked for; where even that is not seen, the step waits until it is
larger: too many is safer than too few.
"""

from __future__ import annotations

import math
from typing import Final

TARGET: Final = 1.0  # what one replica is worth
LOW_END: Final = 0.001  # Kubernetes carries thousandths
METRIC: Final = "persistent-lag-replicas"


def visible_raise(current: int, wanted: int, tolerance: float) -> int:
    """The least count at or above `wanted` that the HPA will not ignore."""
    return max(wanted, math.floor(current * (1 + tolerance) + 1e-9) + 1)


def visible_lowering(current: int, wanted: int, tolerance: float) -> bool:
    """Whether the HPA will act on `wanted` when told its low end."""
    return (wanted - 1 + LOW_END) / current < 1 - tolerance - 1e-9


def value_for(asked: int, current: int) -> float:
    """What to tell an HPA that has `current` replicas so that it gets `asked`."""
    return (asked - 1 + LOW_END) * TARGET if current > asked else asked * TARGET
