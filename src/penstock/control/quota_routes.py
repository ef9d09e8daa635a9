"""The routes of quotas and use."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from penstock.control import decisions
from penstock.control.access import require
from penstock.control.api import Caller, Change, IfMatch, Plane, Served, expected_version, tag
from penstock.control.decisions import Decided
from penstock.control.quota_shapes import (
    QuotaChange,
    QuotaShown,
    UseShown,
    dimensions_of,
    points_of,
    use_of,
)
from penstock.control.registry import Registry
from penstock.control.routes import Id, accepted
from penstock.control.shapes import ClusterAccepted, Page
from penstock.control.wanted import quota_for
from penstock.model.entities import LogicalCluster, OperatorRole
from penstock.model.events import Dimension, QuotaShares

TOP_DEFAULT: Final = 20
TOP_MAX: Final = 1_000

router = APIRouter(prefix="/v1")


@router.get("/clusters/{cluster}/quota", operation_id="getQuota", tags=["quotas"])
async def get_quota(plane: Served, token: Caller, cluster: Id, response: Response) -> QuotaShown:
    """What a logical cluster may use, what it does, and how its gateways share it."""
    found = plane.registry.cluster(cluster)
    require(token, OperatorRole.VIEWER, found.id)
    tag(response, found)
    told = _told(plane, found)
    return QuotaShown(
        cluster=found.id,
        name=found.name,
        units=found.units,
        dimensions=dimensions_of(quota_for(plane.registry, found), dict(found.overrides), told),
        gateways=points_of(told),
        decided_ms=None if told is None else told.time_ms,
        version=found.version,
    )


@router.patch("/clusters/{cluster}/quota", operation_id="updateQuota", status_code=202, tags=["quotas"])
async def update_quota(
    call: Change, cluster: Id, given: QuotaChange, response: Response, if_match: IfMatch = None
) -> ClusterAccepted:
    """Gateways hold to it a second or two after the operation is done."""
    version = expected_version(if_match)
    call.may(call.registry.cluster(cluster).id)

    def decide(registry: Registry, ask: decisions.Ask) -> Decided:
        overrides = dict(registry.cluster(cluster).overrides)
        for dimension, limit in given.limits.items():
            overrides.pop(str(dimension), None)
            if limit is not None:
                overrides[str(dimension)] = limit
        return decisions.update_cluster(registry, ask, cluster, version, {"overrides": overrides})

    return accepted(call, await call.decide(decide, LogicalCluster), response)


@router.get("/usage", operation_id="listUsage", tags=["quotas"])
async def list_usage(
    plane: Served,
    token: Caller,
    by: Dimension | None = None,
    top: Annotated[int, Query(ge=1, le=TOP_MAX)] = TOP_DEFAULT,
) -> Page[UseShown]:
    """Who uses most: of one dimension, or of whatever it has least left of."""
    require(token, OperatorRole.VIEWER)
    registry, held = plane.registry, set(token.clusters)
    rows = [
        use_of(cluster.id, cluster.name, quota_for(registry, cluster), told)
        for cluster in registry.all(LogicalCluster)
        if (not held or cluster.id in held) and (told := _told(plane, cluster)) is not None
    ]
    rows.sort(key=lambda row: (-(row.of_quota if by is None else row.used.get(by, 0.0)), row.name))
    return Page(items=rows[:top])


def _told(plane: Plane, cluster: LogicalCluster) -> QuotaShares | None:
    """The last decision about it, unless that is too old to say anything of now."""
    told = plane.shares.get(cluster.tenant)
    if told is None or told.time_ms + told.valid_ms < time.time() * 1000:
        return None
    return told
