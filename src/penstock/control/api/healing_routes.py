"""The routes for healing: its mode, what it proposes, and what it does not do and why."""

from __future__ import annotations

from fastapi import APIRouter, Response

from penstock.audit.healing import HealingMode
from penstock.control.api.app import Caller, Change, CurrentPlane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.control.health.healing import demoted_by_healing, mode_of, set_healing
from penstock.control.health.healing_service import ClusterHealing
from penstock.model.entities import OperatorRole, PhysicalCluster

router = APIRouter(prefix="/v1")


class ProposalView(View):
    broker: int
    findings: list[str]
    commands: list[str]
    """What an operator runs; with `act`, healing has done it."""


class HealingView(View):
    physical_cluster: str
    mode: HealingMode
    demoted: list[int]
    """Brokers that healing has demoted."""
    proposal: ProposalView | None
    withheld: dict[str, str]
    """By finding: why nothing is done about it."""
    failure: str
    """Why the last round failed; empty: it did not."""


class HealingSettings(RequestBody):
    mode: HealingMode
    """`off`; `ask` shows the commands; `act` demotes the broker."""


@router.get("/physical-clusters/{physical}/healing", operation_id="getHealing", tags=["findings"])
async def get_healing(plane: CurrentPlane, token: Caller, physical: Id) -> HealingView:
    """What is done about findings that a broker's replica lost the beginning of its log."""
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    healing = plane.healing.known.get(entity.id, ClusterHealing())
    chosen = healing.verdict.demotion
    return HealingView(
        physical_cluster=entity.id,
        mode=mode_of(entity),
        demoted=sorted(demoted_by_healing(plane.registry, entity.id)),
        proposal=None
        if chosen is None
        else ProposalView(
            broker=chosen.broker,
            findings=[each.id for each in chosen.findings],
            commands=list(chosen.commands),
        ),
        withheld=dict(healing.verdict.withheld),
        failure=healing.failure,
    )


@router.put(
    "/physical-clusters/{physical}/healing", operation_id="setHealing", tags=["findings"], status_code=202
)
async def put_healing(call: Change, physical: Id, body: HealingSettings, response: Response) -> Accepted:
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(lambda r, c: set_healing(r, c, physical, body.mode), PhysicalCluster)
    return Accepted(operation=operation_view(decided, response))
