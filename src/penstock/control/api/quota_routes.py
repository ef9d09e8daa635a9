"""The routes for quotas and usage."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from penstock.control import decisions
from penstock.control.api.app import Caller, Change, CurrentPlane, IfMatch, Plane, expected_version, set_etag
from penstock.control.api.auth import cluster_for, require_role
from penstock.control.api.quota_schemas import (
    QuotaChange,
    QuotaView,
    UsageView,
    dimensions_of,
    gateway_shares,
    usage_of,
)
from penstock.control.api.routes import Id, accepted
from penstock.control.api.schemas import ClusterAccepted, Page
from penstock.control.decisions import Decision
from penstock.control.desired_state import quota_for
from penstock.control.registry import Registry
from penstock.model.entities import LogicalCluster, OperatorRole
from penstock.model.events import Dimension, QuotaShares

TOP_DEFAULT: Final = 20
TOP_MAX: Final = 1_000

router = APIRouter(prefix="/v1")


@router.get("/clusters/{cluster}/quota", operation_id="getQuota", tags=["quotas"])
async def get_quota(plane: CurrentPlane, token: Caller, cluster: Id, response: Response) -> QuotaView:
    """A logical cluster's quota, its use, and how its gateways share it."""
    logical = cluster_for(plane.registry, token, OperatorRole.VIEWER, cluster)
    set_etag(response, logical)
    shares = _latest_shares(plane, logical)
    return QuotaView(
        cluster=logical.id,
        name=logical.name,
        units=logical.units,
        dimensions=dimensions_of(quota_for(plane.registry, logical), dict(logical.overrides), shares),
        gateways=gateway_shares(shares),
        decided_ms=None if shares is None else shares.time_ms,
        version=logical.version,
    )


@router.patch("/clusters/{cluster}/quota", operation_id="updateQuota", status_code=202, tags=["quotas"])
async def update_quota(
    call: Change, cluster: Id, body: QuotaChange, response: Response, if_match: IfMatch = None
) -> ClusterAccepted:
    """Gateways enforce it a second or two after the operation is done."""
    version = expected_version(if_match)
    call.cluster(cluster)
    call.may(None)  # a confined token cannot raise its own limits

    def decide(registry: Registry, context: decisions.DecisionContext) -> Decision:
        overrides = dict(registry.cluster(cluster).overrides)
        for dimension, limit in body.limits.items():
            overrides.pop(str(dimension), None)
            if limit is not None:
                overrides[str(dimension)] = limit
        return decisions.update_cluster(registry, context, cluster, version, {"overrides": overrides})

    return accepted(call, await call.decide(decide, LogicalCluster), response)


@router.get("/usage", operation_id="listUsage", tags=["quotas"])
async def list_usage(
    plane: CurrentPlane,
    token: Caller,
    by: Dimension | None = None,
    top: Annotated[int, Query(ge=1, le=TOP_MAX)] = TOP_DEFAULT,
) -> Page[UsageView]:
    """The logical clusters with the highest use of one dimension, or of their quota."""
    require_role(token, OperatorRole.VIEWER)
    registry, allowed = plane.registry, set(token.clusters)
    rows = [
        usage_of(cluster.id, cluster.name, quota_for(registry, cluster), shares)
        for cluster in registry.all(LogicalCluster)
        if (not allowed or cluster.id in allowed) and (shares := _latest_shares(plane, cluster)) is not None
    ]
    rows.sort(key=lambda row: (-(row.quota_ratio if by is None else row.used.get(by, 0.0)), row.name))
    return Page(items=rows[:top])


def _latest_shares(plane: Plane, cluster: LogicalCluster) -> QuotaShares | None:
    """The latest published shares, unless they have expired."""
    shares = plane.shares.get(cluster.tenant)
    if shares is None or shares.time_ms + shares.valid_ms < time.time() * 1000:
        return None
    return shares
