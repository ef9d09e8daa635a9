"""Requests and responses of the routes for quotas and usage."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.control.api.schemas import RequestBody, View
from penstock.model.events import Dimension, QuotaShares
from penstock.quota.summary import demand, total_over_gateways

Amount = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]


class QuotaChange(RequestBody):
    limits: dict[Dimension, Amount | None]
    """By dimension; null: the default of the cluster's size. Omitted dimensions stay unchanged."""


class DimensionView(View):
    dimension: str
    quota: float
    overridden: bool
    """Set for this cluster, instead of given by its size."""
    used: float | None
    """Per second, or the current number; null: no recent report."""
    demand: float | None
    """Estimated use without throttling."""
    granted: float | None
    """Sum of all gateways' shares; null: the dimension is not shared out."""
    throttled: float
    """Share of time throttled, summed over gateways."""


class GatewayShareView(View):
    gateway: str
    dimension: str
    share: float
    limit: float
    """Where the gateway throttles: its share, plus the unused quota while there is plenty of it."""
    used: float
    throttled: float


class QuotaView(View):
    cluster: str
    name: str
    units: int
    dimensions: list[DimensionView]
    gateways: list[GatewayShareView]
    decided_ms: int | None
    """When a coordinator last decided on the shares; null: not recently."""
    version: int


class UsageView(View):
    cluster: str
    name: str
    used: dict[str, float]
    """By dimension: per second, or the current number."""
    quota_ratio: float
    """Highest use relative to its quota, of all dimensions."""
    quota_dimension: str
    """The dimension with that use."""
    throttled: dict[str, float]
    """By throttled dimension: share of time, summed over gateways."""


def dimensions_of(
    quota: dict[str, float], overrides: dict[str, float], shares: QuotaShares | None
) -> list[DimensionView]:
    return [_dimension(name, whole, name in overrides, shares) for name, whole in quota.items()]


def _dimension(name: str, whole: float, overridden: bool, shares: QuotaShares | None) -> DimensionView:
    shown = DimensionView(
        dimension=name,
        quota=whole,
        overridden=overridden,
        used=None,
        demand=None,
        granted=None,
        throttled=0.0,
    )
    if shares is None:
        return shown
    if name in shares.levels:
        shown.used = shown.demand = float(shares.levels[name])
    elif any(name in split for split in shares.used.values()):
        shown.used, shown.demand = total_over_gateways(shares.used, name), demand(shares, name)
        shown.throttled = total_over_gateways(shares.throttled, name)
    if name in shares.quota:
        shown.granted = total_over_gateways(shares.shares, name)
    return shown


def gateway_shares(shares: QuotaShares | None) -> list[GatewayShareView]:
    if shares is None:
        return []
    return [
        GatewayShareView(
            gateway=gateway,
            dimension=dimension,
            share=share,
            limit=shares.limits.get(gateway, {}).get(dimension, share),
            used=shares.used.get(gateway, {}).get(dimension, 0.0),
            throttled=shares.throttled.get(gateway, {}).get(dimension, 0.0),
        )
        for gateway, split in sorted(shares.shares.items())
        for dimension, share in split.items()
    ]


def usage_of(cluster: str, name: str, quota: dict[str, float], shares: QuotaShares) -> UsageView:
    used = {d: total_over_gateways(shares.used, d) for split in shares.used.values() for d in split}
    used |= {dimension: float(level) for dimension, level in shares.levels.items()}
    ratios = {d: amount / quota[d] for d, amount in used.items() if quota.get(d)}
    highest = max(ratios, key=lambda d: ratios[d], default="")
    throttled = {
        d: total_over_gateways(shares.throttled, d) for split in shares.throttled.values() for d in split
    }
    return UsageView(
        cluster=cluster,
        name=name,
        used=used,
        quota_ratio=ratios.get(highest, 0.0),
        quota_dimension=highest,
        throttled=throttled,
    )
