"""The routes for health: states of brokers, error budgets, incidents, holds and modes."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import Field

from penstock.control.api.app import Caller, Change, CurrentPlane, Pages, Plane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, Page, RequestBody, View
from penstock.control.health import health_settings
from penstock.control.health.broker_states import broker_of, state_of
from penstock.control.health.health_service import ClusterHealth
from penstock.control.health.incidents import change_incident
from penstock.control.health.mitigations import of_cluster
from penstock.health.detector import BrokerHealth, HealthState
from penstock.health.evidence import Sample
from penstock.health.mitigation import HealthMode
from penstock.health.slo import RULES, breakdown
from penstock.model.entities import BrokerHold, Incident, IncidentState, OperatorRole, PhysicalCluster

router = APIRouter(prefix="/v1")
Number = Annotated[int, Path(ge=0, le=2**31 - 1)]
IncidentId = Annotated[str, Path(pattern=r"^inc-[0-9a-z]{1,20}$")]
STALE_SECONDS = 60.0  # without a judgement, nothing is known


class BrokerHealthView(View):
    broker: int
    zone: str
    health: str
    """`healthy`, `suspect`, `unknown`, `recovering`, or what is wrong: `cut-off`, `slow`, …"""
    since_ms: int
    reason: str
    states: list[str]
    """What the platform does with the broker."""
    flapping: bool
    held: str
    """Why an operator holds it; empty: not held."""
    steps: list[str]
    """Of the mitigation under way."""
    blocked: str
    """What automation does not do, and why."""


class ClusterHealthView(View):
    physical_cluster: str
    mode: str
    actions: dict[str, str]
    """Modes of single actions."""
    target: float
    cluster_fault: str
    """Why the fault is the whole cluster's; empty: it is not."""
    checkers: list[str]
    """Checkers whose probes counted in the last tick."""
    judged_ms: int
    budget_left: float
    incidents: int
    """That are not resolved."""
    brokers: list[BrokerHealthView]


class SampleView(View):
    sent: int
    succeeded: int
    median_us: float | None


class ExplanationView(View):
    """One broker's evidence in the last tick, and what was ruled out."""

    broker: BrokerHealthView
    symptoms: list[str]
    """Of the last minute, newest last."""
    evidence: dict[str, SampleView]
    fenced: bool | None
    load: float | None
    """As the next ones, null: unknown."""
    handlers_busy: float | None
    """0 to 1, in the last seconds."""
    wait_us: float | None
    """Of a request in the broker's queues."""
    local_us: float | None
    """In which the broker itself worked on a produce request."""
    flush_us: float | None
    """Of a flush of a log."""
    ruled_out: list[str]
    connection_us: dict[str, int]
    """Stages of the last fresh connection through its gateway."""


class WindowView(View):
    minutes: int
    """With probes."""
    availability: float | None
    latency_p99_us: int | None
    unavailable_p99: float | None


class BurnView(View):
    short_minutes: int
    long_minutes: int
    limit: float
    short: float
    long: float
    alert: bool
    severity: str


class SloView(View):
    physical_cluster: str
    target: float
    budget_left: float
    windows: dict[str, WindowView]
    burn: list[BurnView]
    failures: dict[str, dict[str, int]]
    """Failed probes by broker and by error."""


class EntryView(View):
    time_ms: int
    what: str
    text: str


class IncidentView(View):
    id: str
    physical_cluster: str
    broker: int
    health: str
    state: IncidentState
    opened_ms: int
    resolved_ms: int | None
    evidence: str
    ruled_out: list[str]
    probes_failed: int
    probes_sent: int
    entries: list[EntryView]

    @classmethod
    def of(cls, incident: Incident) -> IncidentView:
        return cls(
            id=incident.id,
            physical_cluster=incident.cluster,
            broker=int(incident.broker),
            health=incident.health,
            state=incident.state,
            opened_ms=incident.opened_ms,
            resolved_ms=incident.resolved_ms,
            evidence=incident.evidence,
            ruled_out=list(incident.ruled_out),
            probes_failed=incident.probes_failed,
            probes_sent=incident.probes_sent,
            entries=[EntryView(time_ms=e.time_ms, what=e.what, text=e.text) for e in incident.entries],
        )


class HealthSettings(RequestBody):
    """Omitted values stay unchanged."""

    mode: HealthMode | None = None
    """`advise` only reports what it would do, `auto` does it."""
    actions: dict[str, HealthMode] = {}
    """Modes of single actions: `demote`, `exclude`, `hold`, `restart`."""
    target: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Availability; 0: by the number of zones."""


class NewHold(RequestBody):
    seconds: Annotated[float, Field(allow_inf_nan=False)] = 3600.0
    reason: Annotated[str, Field(max_length=255)] = ""


class IncidentChange(RequestBody):
    state: IncidentState
    note: Annotated[str, Field(max_length=500)] = ""


@router.get("/health", operation_id="listHealth", tags=["health"])
async def list_health(plane: CurrentPlane, token: Caller) -> list[ClusterHealthView]:
    """Every broker of every physical cluster."""
    require(token, OperatorRole.VIEWER)
    return [_cluster(plane, each) for each in plane.registry.all(PhysicalCluster)]


@router.get("/physical-clusters/{physical}/health", operation_id="getHealth", tags=["health"])
async def get_health(plane: CurrentPlane, token: Caller, physical: Id) -> ClusterHealthView:
    require(token, OperatorRole.VIEWER)
    return _cluster(plane, plane.registry.need(PhysicalCluster, physical))


@router.get(
    "/physical-clusters/{physical}/brokers/{broker}/health", operation_id="explainHealth", tags=["health"]
)
async def explain(plane: CurrentPlane, token: Caller, physical: Id, broker: Number) -> ExplanationView:
    """Why a broker is considered as it is."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    broker_of(entity, broker)
    health = plane.health.known.get(entity.id)
    known = _known(health, broker)
    evidence = None if health is None else health.evidence.get(broker)
    samples: dict[str, Sample] = {}
    if evidence is not None:
        kinds = ("alone", "path", "pair", "followed", "reach", "inner", "directory")
        samples = {kind: getattr(evidence, kind) for kind in kinds}
    findings = () if health is None else health.verdict.findings
    return ExplanationView(
        broker=_broker(plane, entity, health, broker),
        symptoms=[str(each) for each in known.symptoms],
        evidence={
            kind: SampleView(sent=s.sent, succeeded=s.succeeded, median_us=s.median_us)
            for kind, s in samples.items()
            if s.sent
        },
        fenced=None if evidence is None else evidence.fenced,
        load=None if evidence is None else evidence.load,
        handlers_busy=None if evidence is None else evidence.busy,
        wait_us=None if evidence is None else evidence.wait_us,
        local_us=None if evidence is None else evidence.local_us,
        flush_us=None if evidence is None else evidence.flush_us,
        ruled_out=[each for finding in findings if finding.broker == broker for each in finding.ruled_out],
        connection_us=dict(health.stages.get(broker, {})) if health is not None else {},
    )


@router.get("/slo", operation_id="listSlo", tags=["health"])
async def list_slo(plane: CurrentPlane, token: Caller) -> list[SloView]:
    """Error budgets, burn rates and what failed."""
    require(token, OperatorRole.VIEWER)
    return [_slo(plane, each) for each in plane.registry.all(PhysicalCluster)]


@router.get("/incidents", operation_id="listIncidents", tags=["health"], response_model=Page[IncidentView])
async def list_incidents(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    require(token, OperatorRole.VIEWER)
    return pages.entities(plane.registry, Incident, IncidentView.of)


@router.get("/incidents/{incident}", operation_id="getIncident", tags=["health"])
async def get_incident(plane: CurrentPlane, token: Caller, incident: IncidentId) -> IncidentView:
    require(token, OperatorRole.VIEWER)
    return IncidentView.of(plane.registry.need(Incident, incident))


@router.put("/incidents/{incident}", operation_id="changeIncident", tags=["health"], status_code=202)
async def put_incident(
    call: Change, incident: IncidentId, body: IncidentChange, response: Response
) -> Accepted:
    """Acknowledges or resolves it."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, c: change_incident(r, c, incident, body.state, body.note), Incident)
    return Accepted(operation=operation_view(decided, response))


@router.put(
    "/physical-clusters/{physical}/health", operation_id="setHealth", tags=["health"], status_code=202
)
async def put_health(call: Change, physical: Id, body: HealthSettings, response: Response) -> Accepted:
    """What a sick broker leads to, and the availability that is promised."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(
        lambda r, c: health_settings.set_health(
            r, c, physical, mode=body.mode, actions=body.actions, target=body.target
        ),
        PhysicalCluster,
    )
    return Accepted(operation=operation_view(decided, response))


@router.put(
    "/physical-clusters/{physical}/brokers/{broker}/hold",
    operation_id="holdBroker",
    tags=["health"],
    status_code=202,
)
async def put_hold(call: Change, physical: Id, broker: Number, body: NewHold, response: Response) -> Accepted:
    """Health leaves the broker alone for so long."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(
        lambda r, c: health_settings.hold(r, c, physical, broker, body.seconds, body.reason), BrokerHold
    )
    return Accepted(operation=operation_view(decided, response))


@router.delete(
    "/physical-clusters/{physical}/brokers/{broker}/hold",
    operation_id="releaseBroker",
    tags=["health"],
    status_code=202,
)
async def delete_hold(call: Change, physical: Id, broker: Number, response: Response) -> Accepted:
    """Ends a hold."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, c: health_settings.unhold(r, c, physical, broker), BrokerHold)
    return Accepted(operation=operation_view(decided, response))


# Views


def _known(health: ClusterHealth | None, broker: int) -> BrokerHealth:
    if health is None or abs(time.time() - health.judged_ms / 1000) > STALE_SECONDS:
        return BrokerHealth(HealthState.UNKNOWN, reason="nothing has been judged lately")
    return health.verdict.brokers.get(broker, BrokerHealth())


def _broker(
    plane: Plane, physical: PhysicalCluster, health: ClusterHealth | None, broker: int
) -> BrokerHealthView:
    known = _known(health, broker)
    registry = plane.registry
    mitigation = of_cluster(registry, physical.id).get(broker)
    return BrokerHealthView(
        broker=broker,
        zone=str(broker_of(physical, broker).zone),
        health=str(known.state),
        since_ms=int(known.since * 1000),
        reason=known.reason,
        states=[str(each) for each in state_of(registry, physical.id, broker).statuses],
        flapping=known.flapping,
        held=health_settings.held(registry, physical.id, int(time.time() * 1000)).get(broker, ""),
        steps=[] if mitigation is None else list(mitigation.steps),
        blocked="" if health is None else health.blocked.get(broker, ""),
    )


def _cluster(plane: Plane, physical: PhysicalCluster) -> ClusterHealthView:
    health = plane.health.known.get(physical.id)
    every = plane.registry.all(Incident)
    return ClusterHealthView(
        physical_cluster=physical.id,
        mode=str(health_settings.mode_of(physical)),
        actions=dict(physical.health_actions),
        target=health_settings.target_for(physical),
        cluster_fault="" if health is None else health.verdict.cluster,
        checkers=[] if health is None else sorted(health.checkers),
        judged_ms=0 if health is None else health.judged_ms,
        budget_left=1.0 if health is None else health.ledger.budget_left(_now_ms()),
        incidents=sum(each.cluster == physical.id and each.resolved_ms is None for each in every),
        brokers=[_broker(plane, physical, health, int(each.id)) for each in physical.brokers],
    )


def _slo(plane: Plane, physical: PhysicalCluster) -> SloView:
    health = plane.health.known.get(physical.id)
    now = _now_ms()
    burns: list[BurnView] = []
    windows: dict[str, Any] = {}
    for rule in RULES if health is not None else ():
        assert health is not None
        short, long = health.ledger.burn(now, rule.short_minutes), health.ledger.burn(now, rule.long_minutes)
        burns.append(
            BurnView(
                short_minutes=rule.short_minutes, long_minutes=rule.long_minutes, limit=rule.burn,
                short=short, long=long, alert=min(short, long) >= rule.burn, severity=rule.severity,
            )
        )  # fmt: skip
        for minutes in (rule.short_minutes, rule.long_minutes):
            windows[f"{minutes}m"] = WindowView.of_attributes(health.ledger.window(now, minutes))
    return SloView(
        physical_cluster=physical.id,
        target=health_settings.target_for(physical),
        budget_left=1.0 if health is None else health.ledger.budget_left(now),
        windows=windows,
        burn=burns,
        failures={} if health is None else breakdown(health.ledger.failures),
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
