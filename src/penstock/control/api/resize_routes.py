"""The routes that grow and shrink physical clusters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from penstock.control.api.app import Change, operation_view
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Accepted, RequestBody
from penstock.control.size.resizing import BROKERS_MAX, GrowRequest
from penstock.model.entities import OperatorRole

router = APIRouter(prefix="/v1")

BrokerNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Growth(RequestBody):
    brokers: Annotated[int, Field(ge=0, le=BROKERS_MAX)] = 0
    """As many in every zone; 0: one in every zone, or as many as a cell has."""
    cell: Annotated[str | None, Field(max_length=63)] = None
    """The cell that grows; null: the only one, or new cells."""
    new_cell: bool = False
    """The brokers become new cells."""


class Shrinking(RequestBody):
    brokers: Annotated[list[BrokerNumber], Field(min_length=1, max_length=BROKERS_MAX)]


@router.post(
    "/physical-clusters/{physical}/grow",
    operation_id="growPhysicalCluster",
    status_code=202,
    tags=["physical clusters"],
)
async def grow(call: Change, physical: Id, body: Growth, response: Response) -> Accepted:
    """Adds brokers, as many in every zone, and fills them. On an adopted cluster, fills new ones."""
    call.may(None, OperatorRole.ADMIN)
    requested = GrowRequest(body.brokers, body.cell, body.new_cell)
    decided = await call.plane.resizer.grow(
        physical, requested, actor=call.actor, request=call.request, fingerprint=call.fingerprint
    )
    return Accepted(operation=operation_view(decided, response))


@router.post(
    "/physical-clusters/{physical}/shrink",
    operation_id="shrinkPhysicalCluster",
    status_code=202,
    tags=["physical clusters"],
)
async def shrink(call: Change, physical: Id, body: Shrinking, response: Response) -> Accepted:
    """Empties these brokers, stops them and removes them, if the others can carry everything."""
    call.may(None, OperatorRole.ADMIN)
    brokers = tuple(dict.fromkeys(body.brokers))
    decided = await call.plane.resizer.shrink(
        physical, brokers, actor=call.actor, request=call.request, fingerprint=call.fingerprint
    )
    return Accepted(operation=operation_view(decided, response))
