"""The routes for the controllers of physical clusters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field

from penstock.control.api.app import Caller, Change, CurrentPlane, operation_view
from penstock.control.api.auth import require
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.fleet.rolls.quorum_changes import CONTROLLERS_MAX
from penstock.model.entities import OperatorRole

router = APIRouter(prefix="/v1")

ControllerNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]
ControllerId = Annotated[int, Path(ge=0, le=2**31 - 1)]


class ControllerView(View):
    id: int
    zone: str
    """Empty: it runs elsewhere."""
    role: str
    """active, voter, observer, or absent."""
    caught_up: bool
    behind: int
    """Records of the metadata log that it lacks."""
    address: str
    directory_id: str


class ControllersView(View):
    controllers: list[ControllerView]


class ControllerGrowth(RequestBody):
    count: Annotated[int, Field(ge=1, le=CONTROLLERS_MAX)] = 2


class ControllerRemoval(RequestBody):
    controllers: Annotated[list[ControllerNumber], Field(min_length=1, max_length=CONTROLLERS_MAX)]


@router.get(
    "/physical-clusters/{physical}/controllers", operation_id="listControllers", tags=["physical clusters"]
)
async def list_controllers(plane: CurrentPlane, token: Caller, physical: Id) -> ControllersView:
    """The voters of the quorum, and controllers that are none."""
    require(token, OperatorRole.VIEWER)
    rows = await plane.controllers.rows(physical)
    return ControllersView(controllers=[ControllerView.of_attributes(row) for row in rows])


@router.post(
    "/physical-clusters/{physical}/controllers",
    operation_id="addControllers",
    status_code=202,
    tags=["physical clusters"],
)
async def add_controllers(call: Change, physical: Id, body: ControllerGrowth, response: Response) -> Accepted:
    """Starts further controllers of a local cluster, and makes them voters one after the other."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.plane.controllers.add(
        physical, body.count, actor=call.actor, request=call.request, fingerprint=call.fingerprint
    )
    return Accepted(operation=operation_view(decided, response))


@router.post(
    "/physical-clusters/{physical}/controllers/remove",
    operation_id="removeControllers",
    status_code=202,
    tags=["physical clusters"],
)
async def remove_controllers(
    call: Change, physical: Id, body: ControllerRemoval, response: Response
) -> Accepted:
    """Takes controllers out of the quorum, if a majority stays caught up, and deletes them."""
    call.may(None, OperatorRole.ADMIN)
    controllers = tuple(dict.fromkeys(body.controllers))
    decided = await call.plane.controllers.remove(
        physical, controllers, actor=call.actor, request=call.request, fingerprint=call.fingerprint
    )
    return Accepted(operation=operation_view(decided, response))


@router.post(
    "/physical-clusters/{physical}/controllers/{controller}/replace",
    operation_id="replaceController",
    status_code=202,
    tags=["physical clusters"],
)
async def replace_controller(
    call: Change, physical: Id, controller: ControllerId, response: Response
) -> Accepted:
    """Gives a controller an empty disk: it leaves the quorum, and joins it as a new voter."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.plane.controllers.replace(
        physical, controller, actor=call.actor, request=call.request, fingerprint=call.fingerprint
    )
    return Accepted(operation=operation_view(decided, response))
