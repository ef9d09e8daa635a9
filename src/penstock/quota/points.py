"""What one gateway enforces of a tenant's quota, from what its coordinator told it last.

| what was told | what holds here |
|---|---|
| of this gateway, and not long ago | the limit that was told |
| of other gateways only, since nothing of the tenant passed here | the even split over them and this one |
| too long ago | the even split over all gateways that were told of |
| never anything | the even split over as many gateways as the settings say there are |

A quota that was changed meanwhile counts at once: what was told is scaled to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.events import Dimension, QuotaShares


def enforced(
    quota: Mapping[Dimension, float], told: QuotaShares | None, point: str, now_ms: int, points: int
) -> dict[Dimension, float]:
    """By dimension, a second."""
    if told is None:
        return _split(quota, points)
    if now_ms > told.time_ms + told.valid_ms:
        return _split(quota, max(points, len(told.shares)))
    limits = told.limits.get(point)
    if limits is None:
        return _split(quota, len(told.shares) + 1)
    even = _split(quota, len(told.shares))
    return {
        dimension: min(whole, limits[dimension] * whole / told.quota[dimension])
        if dimension in limits and told.quota.get(dimension)
        else even[dimension]
        for dimension, whole in quota.items()
    }


def _split(quota: Mapping[Dimension, float], points: int) -> dict[Dimension, float]:
    return {dimension: whole / max(points, 1) for dimension, whole in quota.items()}
