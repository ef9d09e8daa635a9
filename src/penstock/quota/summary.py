"""A tenant's quota as a whole, from the last decision about it: used, wanted, granted, throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.quota.tuning import wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.events import QuotaShares


def summed(parts: Mapping[str, Mapping[str, float]], dimension: str) -> float:
    """Over all gateways."""
    return sum(split.get(dimension, 0.0) for split in parts.values())


def demand(told: QuotaShares, dimension: str) -> float:
    """What a tenant would use: what it does, and some more where it was throttled, up to its quota.

    Of what is not shared out nobody knows whether it is wanted: there it is what is used.
    """
    used = np.array([split.get(dimension, 0.0) for split in told.used.values()])
    if not (quota := told.quota.get(dimension, 0.0)):
        return float(used.sum())
    throttled = np.array([told.throttled.get(point, {}).get(dimension, 0.0) > 0 for point in told.used])
    more = float(wanted(np.full(used.shape, quota), used, throttled).sum())
    return max(float(used.sum()), min(quota, more))
