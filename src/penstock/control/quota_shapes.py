"""Quotas and use as they travel over the HTTP API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.control.shapes import Shape, Shown
from penstock.model.events import Dimension, QuotaShares
from penstock.quota.summary import demand, summed

Amount = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]


class QuotaChange(Shape):
    limits: dict[Dimension, Amount | None]
    """By dimension; none: back to what the cluster's size gives. What is left out stays."""


class DimensionShown(Shown):
    dimension: str
    quota: float
    overridden: bool
    """Set for this cluster, rather than given by its size."""
    used: float | None
    """A second, or how many there are now; none: nothing was heard of it lately."""
    demand: float | None
    """What would be used if nobody had to wait, as far as anybody can tell."""
    granted: float | None
    """Shares of all gateways; none: every gateway enforces the whole quota, or nobody does."""
    throttled: float
    """Part of the time throttled, summed over gateways."""


class PointShown(Shown):
    gateway: str
    dimension: str
    share: float
    limit: float
    """At which it throttles: its share, and while much of the quota is unused, that on top."""
    used: float
    throttled: float


class QuotaShown(Shown):
    cluster: str
    name: str
    units: int
    dimensions: list[DimensionShown]
    gateways: list[PointShown]
    decided_ms: int | None
    """When a coordinator last decided on the shares; none: not lately."""
    version: int


class UseShown(Shown):
    cluster: str
    name: str
    used: dict[str, float]
    """By dimension: a second, or how many there are now."""
    of_quota: float
    """The largest part of any quota of it that is used."""
    most: str
    """Of which dimension that is."""
    throttled: dict[str, float]
    """By dimension that was too much: part of the time, summed over gateways."""


def dimensions_of(
    quota: dict[str, float], overrides: dict[str, float], told: QuotaShares | None
) -> list[DimensionShown]:
    return [_dimension(name, whole, name in overrides, told) for name, whole in quota.items()]


def _dimension(name: str, whole: float, overridden: bool, told: QuotaShares | None) -> DimensionShown:
    shown = DimensionShown(
        dimension=name,
        quota=whole,
        overridden=overridden,
        used=None,
        demand=None,
        granted=None,
        throttled=0.0,
    )
    if told is None:
        return shown
    if name in told.levels:
        shown.used = shown.demand = float(told.levels[name])
    elif any(name in split for split in told.used.values()):
        shown.used, shown.demand = summed(told.used, name), demand(told, name)
        shown.throttled = summed(told.throttled, name)
    if name in told.quota:
        shown.granted = summed(told.shares, name)
    return shown


def points_of(told: QuotaShares | None) -> list[PointShown]:
    if told is None:
        return []
    return [
        PointShown(
            gateway=gateway,
            dimension=dimension,
            share=share,
            limit=told.limits.get(gateway, {}).get(dimension, share),
            used=told.used.get(gateway, {}).get(dimension, 0.0),
            throttled=told.throttled.get(gateway, {}).get(dimension, 0.0),
        )
        for gateway, split in sorted(told.shares.items())
        for dimension, share in split.items()
    ]


def use_of(cluster: str, name: str, quota: dict[str, float], told: QuotaShares) -> UseShown:
    used = {d: summed(told.used, d) for split in told.used.values() for d in split}
    used |= {dimension: float(level) for dimension, level in told.levels.items()}
    parts = {d: amount / quota[d] for d, amount in used.items() if quota.get(d)}
    most = max(parts, key=lambda d: parts[d], default="")
    waits = {d: summed(told.throttled, d) for split in told.throttled.values() for d in split}
    return UseShown(
        cluster=cluster,
        name=name,
        used=used,
        of_quota=parts.get(most, 0.0),
        most=most,
        throttled=waits,
    )
