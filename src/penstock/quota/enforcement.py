"""The limits that one gateway enforces, given the shares that a coordinator published last.

| the latest shares of the tenant | the limit here |
|---|---|
| name this gateway, and are recent | the published limit |
| name other gateways only, because the tenant had no traffic here | the even split over them and this one |
| are too old | the even split over all gateways they name |
| do not exist | the even split over the number of gateways in the settings |

A changed quota applies at once: published limits are scaled to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.events import QuotaShares

# Rates that gateways, and workers of one, share. Other dimensions are levels, or apply to each gateway.
SHARED: Final = (
    Dimension.INGRESS_BYTES,
    Dimension.EGRESS_BYTES,
    Dimension.REQUESTS,
    Dimension.REQUEST_TIME_US,
    Dimension.GATEWAY_TIME_US,
    Dimension.PARTITION_CHANGES,
)


def enforced_limits(
    quota: Mapping[Dimension, float], shares: QuotaShares | None, gateway: str, now_ms: int, gateways: int
) -> dict[Dimension, float]:
    """By dimension, per second."""
    if shares is None:
        return _split(quota, gateways)
    if now_ms > shares.time_ms + shares.valid_ms:
        return _split(quota, max(gateways, len(shares.shares)))
    limits = shares.limits.get(gateway)
    if limits is None:
        return _split(quota, len(shares.shares) + 1)
    even = _split(quota, len(shares.shares))
    return {
        dimension: min(whole, limits[dimension] * whole / shares.quota[dimension])
        if dimension in limits and shares.quota.get(dimension)
        else even[dimension]
        for dimension, whole in quota.items()
    }


def _split(quota: Mapping[Dimension, float], gateways: int) -> dict[Dimension, float]:
    return {dimension: whole / max(gateways, 1) for dimension, whole in quota.items()}
