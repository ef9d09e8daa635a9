"""The routes for broker load: what is measured, and the profile that it is computed with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from penstock.balance.broker_load import DEFAULT, Profile, Unknown, cluster_load, imbalance
from penstock.balance.rounds import BalancerMode
from penstock.control.api.app import Caller, Change, CurrentPlane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.control.load.balancing import set_balance_mode
from penstock.control.load.load_profile import set_load_profile
from penstock.model.entities import OperatorRole, PhysicalCluster
from penstock.model.errors.control import RequestInvalid
from penstock.model.events import BrokerLoad

Positive = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]

router = APIRouter(prefix="/v1")


class BrokerLoadView(View):
    broker: int
    load: float | None
    """0 is idle, 1 is saturated; null: unknown, for the reasons in `missing`."""
    missing: list[str]
    wait_ms: float
    """Mean time of a request in the broker's queues. As all values here, averaged over a minute."""
    service_ms: float
    """Time of the handler pool that a request takes."""
    handlers_busy: float
    network_busy: float
    requests: float
    bytes_in: float
    bytes_out: float
    replication_bytes_in: float
    replication_bytes_out: float
    replicas: int
    leaders: int
    disk_used_bytes: int | None
    disk_total_bytes: int | None
    recent_wait_ms: float | None
    """As `wait_ms`, between the last two scrapes alone. As the next ones, null: unknown."""
    recent_handlers_busy: float | None
    recent_local_ms: float | None
    """Time in which the broker itself worked on a produce request."""
    recent_flush_ms: float | None
    """Time of a flush of a log."""
    scrape_age_ms: int | None
    """Age of the last measurement; null: there never was one."""
    time_ms: int


class LoadProfile(RequestBody):
    """What load depends on besides measurements; omitted values are the default."""

    wait_factor: Positive = DEFAULT.wait_factor
    blend_from: Positive = DEFAULT.blend_from
    blend_to: Positive = DEFAULT.blend_to
    handlers_full: Positive = DEFAULT.handlers_full
    network_full: Positive = DEFAULT.network_full


class ClusterLoadView(View):
    physical_cluster: str
    load: float | None
    """The most loaded broker's; null: unknown."""
    imbalance: float | None
    """The highest broker load ÷ the mean; null: unknown."""
    unknown: list[str]
    """What is missing, by broker."""
    profile: LoadProfile
    brokers: list[BrokerLoadView]


class BalanceMode(RequestBody):
    mode: BalancerMode
    """`advise` proposes plans, `auto` also runs them."""


def loads_of(brokers: tuple[BrokerLoad, ...]) -> dict[int, float | Unknown]:
    return {int(b.broker): Unknown(b.missing) if b.load is None else b.load for b in brokers}


@router.get("/physical-clusters/{physical}/load", operation_id="getLoad", tags=["physical clusters"])
async def get_load(plane: CurrentPlane, token: Caller, physical: Id) -> ClusterLoadView:
    """The load of each broker, and what it is made of."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    brokers = plane.broker_loads.get(entity.id, ())
    loads = loads_of(brokers)
    load, ratio = cluster_load(loads), imbalance(loads)
    return ClusterLoadView(
        physical_cluster=entity.id,
        load=None if isinstance(load, Unknown) else load,
        imbalance=None if isinstance(ratio, Unknown) else ratio,
        unknown=list(load.reasons) if isinstance(load, Unknown) else [],
        profile=LoadProfile(**asdict(Profile.of(entity.load_profile))),
        brokers=[BrokerLoadView.of_attributes(each, missing=list(each.missing)) for each in brokers],
    )


@router.put(
    "/physical-clusters/{physical}/load-profile", operation_id="setLoadProfile", tags=["physical clusters"]
)
async def put_load_profile(call: Change, physical: Id, body: LoadProfile, response: Response) -> Accepted:
    """Loads follow it from the next measurement on."""
    call.may(None, OperatorRole.ADMIN)
    try:
        profile = Profile(**body.model_dump())
    except ValueError as reason:
        raise RequestInvalid(where="body", reason=str(reason)) from None
    decided = await call.decide(lambda r, c: set_load_profile(r, c, physical, profile), PhysicalCluster)
    return Accepted(operation=operation_view(decided, response))


@router.put("/physical-clusters/{physical}/balance", operation_id="setBalance", tags=["physical clusters"])
async def put_balance(call: Change, physical: Id, body: BalanceMode, response: Response) -> Accepted:
    """Whether the cluster is balanced automatically. Plans that are running continue."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, c: set_balance_mode(r, c, physical, body.mode), PhysicalCluster)
    return Accepted(operation=operation_view(decided, response))
