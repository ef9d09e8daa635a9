"""The routes for balancing plans."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Body, Path, Response

from penstock.balance.actions import Purpose
from penstock.balance.executing import Budget, Memory, Standing, Status, Work, decide
from penstock.balance.plan_document import PlanState, changes_since, require_current
from penstock.control import decisions
from penstock.control.api.app import Call, Caller, Change, CurrentPlane, Pages, Plane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.plan_schemas import (
    MoveView,
    NewPlan,
    PlanAccepted,
    PlanCancel,
    PlanPace,
    PlanRun,
    PlanView,
)
from penstock.control.api.schemas import Page
from penstock.control.load.planning import PlanRequest
from penstock.model.entities import Operation, OperatorRole
from penstock.model.errors.control import RequestInvalid

router = APIRouter(prefix="/v1")

Plan = Annotated[str, Path(max_length=63)]


@router.get("/plans", operation_id="listPlans", tags=["plans"], response_model=Page[PlanView])
async def list_plans(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    """Plans that were proposed, run or ended within the last week."""
    require(token, OperatorRole.VIEWER)
    headers = sorted(plane.plans.documents.headers.values(), key=lambda header: header.id)
    return pages.page(
        lambda after: (h for h in headers if h.id > after), PlanView.of, lambda header: header.id
    )


@router.post("/plans", operation_id="makePlan", tags=["plans"], status_code=201)
async def make_plan(call: Change, body: NewPlan, response: Response) -> PlanView:
    """Makes a plan of what would move, and why. Nothing moves until it is run."""
    call.may(None, OperatorRole.ADMIN)
    if body.purpose in (Purpose.RELIEVE, Purpose.RESTORE) and body.broker is None:
        raise RequestInvalid(where="broker", reason=f"the purpose `{body.purpose}` needs a broker")
    if body.purpose is Purpose.BALANCE and body.broker is not None:
        raise RequestInvalid(where="broker", reason="the purpose `balance` concerns all brokers")
    request = PlanRequest(
        cluster=body.physical_cluster,
        purpose=body.purpose,
        broker=body.broker,
        cell=body.cell,
        goals=tuple(body.goals),
        topics_excluded=frozenset(body.exclude_topics),
        tenants_excluded=frozenset(call.cluster(tenant).id for tenant in body.exclude_tenants),
        moves_max=body.moves_max,
        bytes_max=body.bytes_max,
    )
    made = await call.plane.plan_maker.propose(request, call.actor)
    response.headers["Location"] = f"/v1/plans/{made.id}"
    return PlanView.of(made.header)


@router.get("/plans/{plan}", operation_id="getPlan", tags=["plans"])
async def get_plan(plane: CurrentPlane, token: Caller, plan: Plan) -> PlanView:
    require(token, OperatorRole.VIEWER)
    return PlanView.of(plane.plans.need(plan).header)


@router.get(
    "/plans/{plan}/moves", operation_id="listPlanMoves", tags=["plans"], response_model=Page[MoveView]
)
async def list_moves(plane: CurrentPlane, token: Caller, plan: Plan, pages: Pages) -> Response:
    """The moves of a plan, with the reason for each and its state on the cluster."""
    require(token, OperatorRole.VIEWER)
    document = plane.plans.need(plan)
    first = int(pages.after) + 1 if pages.after.isdecimal() else 0
    numbers = range(first, min(first + pages.limit, len(document.moves)))
    standings = await _standings(plane, plan, numbers)

    def row(number: int) -> MoveView:
        standing = standings[number]
        return MoveView.of(number, document.moves[number], standing.status, standing.reason)

    more = [numbers.stop] if numbers.stop < len(document.moves) else []  # for the page's cursor
    return pages.page(lambda _: [*numbers, *more], row, lambda number: f"{number:09}")


@router.post("/plans/{plan}/run", operation_id="runPlan", tags=["plans"], status_code=202)
async def run_plan(
    call: Change, plan: Plan, response: Response, body: Annotated[PlanRun | None, Body()] = None
) -> PlanAccepted:
    """Runs exactly this plan, if the cluster is still as it was when the plan was made."""
    call.may(None, OperatorRole.ADMIN)
    document, body = call.plane.plans.need(plan), body or PlanRun()
    if not _repeated(call):
        document.header.started(_now_ms(), cluster=body.cluster)
        topics = {move.topic for move in document.moves}
        seen = await call.plane.observe_topics(document.header.cluster, topics)
        require_current(document, seen, seen.alive)
    return await _changed(call, plan, "plan.run", {"take_over": body.take_over}, response)


@router.post("/plans/{plan}/cancel", operation_id="cancelPlan", tags=["plans"], status_code=202)
async def cancel_plan(
    call: Change, plan: Plan, response: Response, body: Annotated[PlanCancel | None, Body()] = None
) -> PlanAccepted:
    """Cancels the reassignments that are under way; moves that were made stay, or are undone."""
    call.may(None, OperatorRole.ADMIN)
    header, body = call.plane.plans.need(plan).header, body or PlanCancel()
    if not _repeated(call):
        header.cancelled(_now_ms(), roll_back=body.roll_back)
    return await _changed(call, plan, "plan.cancel", {"roll_back": body.roll_back}, response)


@router.post("/plans/{plan}/pace", operation_id="pacePlan", tags=["plans"], status_code=202)
async def pace_plan(call: Change, plan: Plan, body: PlanPace, response: Response) -> PlanAccepted:
    """Changes how fast the plan copies."""
    call.may(None, OperatorRole.ADMIN)
    header = call.plane.plans.need(plan).header
    if not _repeated(call):
        header.paced(_now_ms(), body.rate)
    return await _changed(call, plan, "plan.pace", {"rate": body.rate}, response)


async def _changed(
    call: Call, plan: str, action: str, arguments: dict[str, object], response: Response
) -> PlanAccepted:
    decided = await call.decide(
        lambda registry, context: decisions.change_plan(registry, context, plan, action, arguments), Operation
    )
    operation = operation_view(decided, response)
    return PlanAccepted(operation=operation, plan=PlanView.of(call.plane.plans.need(plan).header))


def _repeated(call: Call) -> bool:
    """Whether this request was accepted before; it gets the same response then."""
    return bool(call.request) and call.registry.operation_of(call.request) is not None


async def _standings(plane: Plane, plan: str, numbers: range) -> dict[int, Standing]:
    """How these moves stand on the cluster now."""
    document = plane.plans.need(plan)
    dropped = document.header.dropped_moves
    standings = {number: Standing(Status.DROPPED, why) for number, why in dropped.items()}
    moves = {number: document.moves[number] for number in numbers if number not in dropped}
    if not moves:
        return standings
    seen = await plane.observe_topics(document.header.cluster, {move.topic for move in moves.values()})
    rows = decide([Work(list(moves.values()))], seen, Budget(), Memory(), time.monotonic()).standings[0]
    for (number, move), standing in zip(moves.items(), rows, strict=True):
        changes = changes_since([move], seen, seen.alive)
        proposed = document.header.state is PlanState.PROPOSED
        standings[number] = Standing(Status.WAITING, "; ".join(changes)) if proposed else standing
    return standings


def _now_ms() -> int:
    return int(time.time() * 1000)
