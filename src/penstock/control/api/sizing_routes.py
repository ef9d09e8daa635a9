"""The routes for sizing: hardware profiles, advice, cost, and the bounds of a cluster's size."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response
from pydantic import Field

from penstock.balance.advice import WEEK_HOURS
from penstock.balance.cost import savings, tenant_costs, transfer_month
from penstock.balance.load_hours import hours_of_week, recent
from penstock.balance.profiles import profile_document
from penstock.balance.sizing import shortfalls, sized
from penstock.control.api.app import Caller, Change, CurrentPlane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.control.load.load_hours import hour_now
from penstock.control.size.sizing import BOUND_KEYS, demand_of, members_of, set_sizing
from penstock.model.entities import OperatorRole, PhysicalCluster

Profile = Annotated[str, Path(max_length=63)]
Brokers = Annotated[int, Field(ge=1, le=1_000)]
Budget = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]

router = APIRouter(prefix="/v1")


class ProfileView(View):
    name: str
    measured: bool
    """Whether its file has measured values."""
    document: dict[str, Any]
    """The profile as its file has it."""


class ProfilesView(View):
    items: list[ProfileView]


class ShortfallView(View):
    bound: str
    needed: float
    available: float


class ProfileCheckView(View):
    profile: str
    physical_cluster: str
    measured: bool
    brokers: int
    """The smallest fleet of this profile that carries the cluster's four weeks."""
    fits: bool
    """Whether so many brokers, in the cluster's zones, are possible."""
    current: int
    shortfalls: list[ShortfallView]
    """What as many brokers as now would lack, for one broker after a loss."""


class AdviceView(View):
    physical_cluster: str
    verdict: str
    brokers: int
    target: int
    number: str
    """What decides."""
    changes: str
    """What would change the verdict."""
    due_days: float | None
    """Until the cluster is too small; null: not in sight."""
    month: float | None
    """Cost of the machines now; null: without prices or a hardware profile."""
    month_after: float | None
    profile: str
    bounded: str
    """The bound that cuts the target, if one does."""
    mode: str
    hours_of_week: dict[str, list[float | None]]
    """Work by hour of the week (UTC, from Monday): p50, p90 and max; null: not observed."""


class ZoneCostView(View):
    broker_zone: str
    client_zone: str
    bytes_in: float
    """A second, from clients."""
    bytes_out: float
    """A second, to clients."""
    month: float


class CostView(View):
    physical_cluster: str
    currency: str
    price_date: str
    total: float
    """A month."""
    drivers: dict[str, float]
    tenants: dict[str, dict[str, float]]
    """The part of each logical cluster, by driver, by what it uses now."""
    zones: list[ZoneCostView]
    """What crosses zones between brokers and clients now, by the zones of both."""
    savings: dict[str, float]
    """By a cluster in a single zone, and by consumers that fetch from followers in their zone."""


class SizeSettings(RequestBody):
    """What is omitted stays; null removes a bound."""

    mode: Literal["advise", "auto"] | None = None
    hardware: Annotated[str, Field(max_length=63)] | None = None
    brokers_min: Brokers | None = None
    brokers_max: Brokers | None = None
    budget_month: Budget | None = None


@router.get("/profiles", operation_id="listProfiles", tags=["sizing"])
async def list_profiles(plane: CurrentPlane, token: Caller) -> ProfilesView:
    """The hardware profiles on the control plane's host."""
    require(token, OperatorRole.VIEWER)
    known = plane.sizing.files.profiles().values()
    views = [
        ProfileView(name=each.name, measured=each.measured is not None, document=profile_document(each))
        for each in known
    ]
    return ProfilesView(items=views)


@router.get("/profiles/{profile}", operation_id="getProfile", tags=["sizing"])
async def get_profile(plane: CurrentPlane, token: Caller, profile: Profile) -> ProfileView:
    require(token, OperatorRole.VIEWER)
    known = plane.sizing.files.profile(profile)
    return ProfileView(name=known.name, measured=known.measured is not None, document=profile_document(known))


@router.get("/physical-clusters/{physical}/profiles/{profile}", operation_id="checkProfile", tags=["sizing"])
async def check_profile(
    plane: CurrentPlane, token: Caller, physical: Id, profile: Profile
) -> ProfileCheckView:
    """Whether brokers on a profile would carry the cluster, and what they would lack."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    known = plane.sizing.files.profile(profile)
    hours = recent(await plane.sizing.history.hours(entity.id), hour_now(), 4 * WEEK_HOURS)
    demand = demand_of(hours, max(len(entity.zones), 1))
    sizes = sized([demand], [known])
    short = shortfalls(demand, known, len(entity.brokers))
    return ProfileCheckView(
        profile=known.name,
        physical_cluster=entity.id,
        measured=known.measured is not None,
        brokers=int(sizes.brokers[0, 0]),
        fits=bool(sizes.fits[0, 0]),
        current=len(entity.brokers),
        shortfalls=[
            ShortfallView(bound=str(each.bound), needed=each.needed, available=each.available)
            for each in short
        ],
    )


@router.get("/physical-clusters/{physical}/advice", operation_id="getAdvice", tags=["sizing"])
async def get_advice(plane: CurrentPlane, token: Caller, physical: Id) -> AdviceView:
    """Whether the cluster is too small, too large or on the wrong hardware. Takes a day of history."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    advice = await plane.sizing.advice(entity.id)
    return AdviceView.of_attributes(
        advice,
        physical_cluster=entity.id,
        verdict=str(advice.verdict),
        mode=entity.size_mode,
        hours_of_week=hours_of_week(await plane.sizing.history.hours(entity.id), hour_now()),
    )


@router.get("/physical-clusters/{physical}/cost", operation_id="getCost", tags=["sizing"])
async def get_cost(plane: CurrentPlane, token: Caller, physical: Id) -> CostView:
    """What the cluster costs a month at the traffic of the last week, by driver and by tenant."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    cost, traffic, prices = await plane.sizing.cost(entity.id)
    members = members_of(plane.registry, entity.id)
    saved = savings(cost, traffic, prices)
    parts = tenant_costs(cost, plane.sizing.tenants(entity.id, members))
    return CostView(
        physical_cluster=entity.id,
        currency=prices.currency,
        price_date=prices.date.isoformat(),
        total=cost.total,
        drivers=cost.drivers(),
        tenants={tenant: part.drivers() for tenant, part in parts.items()},
        zones=[
            ZoneCostView(
                broker_zone=broker,
                client_zone=client,
                bytes_in=each.cross_zone_ingress,
                bytes_out=each.cross_zone_egress,
                month=transfer_month(each.crossing, prices),
            )
            for (broker, client), each in plane.sizing.zones(entity.id, members).items()
        ],
        savings={"single_zone": saved.single_zone, "follower_fetching": saved.follower_fetching},
    )


@router.put("/physical-clusters/{physical}/sizing", operation_id="setSizing", tags=["sizing"])
async def put_sizing(call: Change, physical: Id, body: SizeSettings, response: Response) -> Accepted:
    """Hardware profile, mode and bounds of a cluster's size."""
    call.may(None, OperatorRole.ADMIN)
    given = body.model_dump(exclude_unset=True)
    changes: dict[str, str | float | None] = {
        key: given[key] for key in ("mode", "hardware", *BOUND_KEYS) if key in given
    }
    files = call.plane.sizing.files
    decided = await call.decide(lambda r, c: set_sizing(r, c, physical, changes, files), PhysicalCluster)
    return Accepted(operation=operation_view(decided, response))
