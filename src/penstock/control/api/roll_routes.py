"""The routes for rolls, and for what nodes run with."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Body, Path, Response

from penstock.control.api.app import Call, Caller, Change, CurrentPlane, Pages, Plane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.roll_schemas import (
    FeatureView,
    FinalizeAccepted,
    GenerationsView,
    GenerationView,
    NewRoll,
    RollAccepted,
    RollDeadline,
    RollPlanView,
    RollView,
    VersionsView,
)
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Page
from penstock.control.decisions import Decision
from penstock.control.rolling import rolls
from penstock.fleet.versions import require_all
from penstock.model.entities import OperatorRole, PhysicalCluster, Roll

router = APIRouter(prefix="/v1")

RollId = Annotated[str, Path(max_length=63)]
Deadline = Annotated[RollDeadline | None, Body()]


@router.get("/rolls", operation_id="listRolls", tags=["rolls"], response_model=Page[RollView])
async def list_rolls(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    """Rolls that run, and the last ones that ended."""
    require(token, OperatorRole.VIEWER)
    every = sorted(plane.registry.all(Roll), key=lambda roll: roll.id)
    return pages.page(lambda after: (r for r in every if r.id > after), RollView.of, lambda roll: roll.id)


@router.post("/rolls/plan", operation_id="planRoll", tags=["rolls"])
async def plan_roll(plane: CurrentPlane, token: Caller, body: NewRoll) -> RollPlanView:
    """What a roll would restart, in which order, for how long, and what is in its way. Changes nothing."""
    require(token, OperatorRole.VIEWER)
    return RollPlanView.of(await plane.roll_planner.plan(body.selection(_now_ms())))


@router.post("/rolls", operation_id="startRoll", tags=["rolls"], status_code=202)
async def start_roll(call: Change, body: NewRoll, response: Response) -> RollAccepted:
    """Restarts nodes so that they run what the fleet file describes, without interrupting clients."""
    call.may(None, OperatorRole.ADMIN)
    if call.request and (known := call.registry.operation_of(call.request)) is not None:
        request = rolls.RollRequest(call.registry.need(Roll, known.subject).cluster, ())
    else:
        request = (await call.plane.roll_planner.checked(body.selection(_now_ms()))).request
    decided = await call.decide(lambda r, c: rolls.start_roll(r, c, request), Roll)
    return _accepted(call, decided, response)


@router.get("/rolls/{roll}", operation_id="getRoll", tags=["rolls"])
async def get_roll(plane: CurrentPlane, token: Caller, roll: RollId) -> RollView:
    require(token, OperatorRole.VIEWER)
    return RollView.of(plane.registry.need(Roll, roll))


@router.post("/rolls/{roll}/pause", operation_id="pauseRoll", tags=["rolls"], status_code=202)
async def pause_roll(call: Change, roll: RollId, response: Response) -> RollAccepted:
    """Restarts no further node. Those that are down come back."""
    return await _changed(call, roll, "pause", response)


@router.post("/rolls/{roll}/resume", operation_id="resumeRoll", tags=["rolls"], status_code=202)
async def resume_roll(call: Change, roll: RollId, response: Response, body: Deadline = None) -> RollAccepted:
    return await _changed(call, roll, "resume", response, body)


@router.post("/rolls/{roll}/abort", operation_id="abortRoll", tags=["rolls"], status_code=202)
async def abort_roll(call: Change, roll: RollId, response: Response) -> RollAccepted:
    """Ends the roll once every node that was restarted is in sync. Nodes keep what they run with."""
    return await _changed(call, roll, "abort", response)


@router.post("/rolls/{roll}/back", operation_id="rollBack", tags=["rolls"], status_code=202)
async def roll_back(call: Change, roll: RollId, response: Response, body: Deadline = None) -> RollAccepted:
    """Restarts the nodes that were restarted with what they ran before, under the same rules."""
    return await _changed(call, roll, "back", response, body)


@router.get(
    "/physical-clusters/{physical}/generations", operation_id="listGenerations", tags=["physical clusters"]
)
async def list_generations(plane: CurrentPlane, token: Caller, physical: Id) -> GenerationsView:
    """What each node of a local cluster runs with, and what a restart would change."""
    require(token, OperatorRole.VIEWER)
    nodes = plane.roll_planner.generations(physical)
    return GenerationsView(nodes=[GenerationView.of(node) for node in nodes])


@router.get("/physical-clusters/{physical}/versions", operation_id="listVersions", tags=["physical clusters"])
async def list_versions(plane: CurrentPlane, token: Caller, physical: Id) -> VersionsView:
    """Versions that run, and the feature levels in force and possible."""
    require(token, OperatorRole.VIEWER)
    running = [each.running for each in plane.roll_planner.generations(physical)]
    versions = Counter(each.kafka for each in running if each is not None)
    return VersionsView(nodes=dict(sorted(versions.items())), features=await _features(plane, physical))


@router.post(
    "/physical-clusters/{physical}/finalize",
    operation_id="finalizeFeatures",
    tags=["physical clusters"],
    status_code=202,
)
async def finalize(call: Change, physical: Id, response: Response) -> FinalizeAccepted:
    """Raises features to what every registered node supports. Older versions cannot run any more."""
    call.may(None, OperatorRole.ADMIN)
    require_all(await call.plane.roll_planner.features(physical))
    decided = await call.decide(lambda r, c: rolls.finalize_features(r, c, physical), PhysicalCluster)
    features = await _features(call.plane, physical)
    return FinalizeAccepted(operation=operation_view(decided, response), features=features)


async def _features(plane: Plane, physical: str) -> list[FeatureView]:
    return [FeatureView.of_attributes(each) for each in await plane.roll_planner.features(physical)]


async def _changed(
    call: Call, roll: str, change: str, response: Response, body: RollDeadline | None = None
) -> RollAccepted:
    call.may(None, OperatorRole.ADMIN)
    seconds = None if body is None else body.deadline_seconds
    deadline = _now_ms() + int(seconds * 1000) if seconds else 0
    cluster = call.registry.need(Roll, roll).cluster
    decided = await call.decide(
        lambda r, c: rolls.change_roll(r, c, cluster, change, deadline_ms=deadline), Roll
    )
    return _accepted(call, decided, response)


def _accepted(call: Call, decided: Decision, response: Response) -> RollAccepted:
    operation = operation_view(decided, response)
    return RollAccepted(
        operation=operation, roll=RollView.of(call.registry.need(Roll, decided.operation.subject))
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
