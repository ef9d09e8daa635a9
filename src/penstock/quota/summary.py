"""A tenant's quota over all gateways, from the latest decision: used, demanded, granted, throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.quota.auto_tuning import estimated_demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.events import QuotaShares


def total_over_gateways(by_gateway: Mapping[str, Mapping[str, float]], dimension: str) -> float:
    return sum(amounts.get(dimension, 0.0) for amounts in by_gateway.values())


def demand(shares: QuotaShares, dimension: str) -> float:
    """What a tenant would use: its use, and more where it was throttled, up to its quota.

    For a dimension without shares the demand is unknown; its use is reported instead.
    """
    used = np.array([amounts.get(dimension, 0.0) for amounts in shares.used.values()])
    if not (quota := shares.quota.get(dimension, 0.0)):
        return float(used.sum())
    throttled = np.array([shares.throttled.get(name, {}).get(dimension, 0.0) > 0 for name in shares.used])
    more = float(estimated_demand(np.full(used.shape, quota), used, throttled).sum())
    return max(float(used.sum()), min(quota, more))
