"""KEDA's kafka scaler, the baseline, including its cap that lets one replica too many through.

It is stateless: lag = end - committed, summed over partitions. Unless idle consumers are allowed, the
sum is limited to partitions x threshold. But it compares the *integer* quotient with the partition
count, so a sum just above the cap passes (KEDA issue 4483).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class KafkaTrigger:
    lag_threshold: int = 10
    limit_to_partitions_with_lag: bool = False
    allow_idle_consumers: bool = False

    def value(self, lags: Sequence[float]) -> float:
        """The metric that the HPA divides by `lag_threshold`."""
        total = int(sum(lags))
        if self.allow_idle_consumers:
            return total
        bound = sum(1 for lag in lags if lag > 0) if self.limit_to_partitions_with_lag else len(lags)
        if total // self.lag_threshold > bound:
            return bound * self.lag_threshold
        return total
