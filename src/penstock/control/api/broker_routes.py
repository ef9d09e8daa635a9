"""The routes for brokers and their states."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from penstock.control.api.app import Call, Caller, Change, CurrentPlane, Pages, operation_view, set_etag
from penstock.control.api.auth import require
from penstock.control.api.broker_schemas import BrokerAccepted, BrokerView, NewStatus
from penstock.control.api.routes import Id
from penstock.control.api.schemas import Page
from penstock.control.decisions import Decision
from penstock.control.health import broker_states
from penstock.control.registry import Registry
from penstock.model.entities import BrokerState, BrokerStatus, OperatorRole, PhysicalCluster

router = APIRouter(prefix="/v1")

Number = Annotated[int, Path(ge=0, le=2**31 - 1)]


def _view(registry: Registry, physical: PhysicalCluster, broker: int) -> BrokerView:
    endpoint = broker_states.broker_of(physical, broker)
    cell = next((cell.id for cell in physical.cells if broker in cell.brokers), None)
    return BrokerView.of(endpoint, cell, broker_states.state_of(registry, physical.id, broker))


def _cursor_key(broker: int) -> str:
    """Cursors are compared as text."""
    return f"{broker:010d}"


@router.get(
    "/physical-clusters/{physical}/brokers",
    operation_id="listBrokers",
    tags=["physical clusters"],
    response_model=Page[BrokerView],
)
async def list_brokers(plane: CurrentPlane, token: Caller, pages: Pages, physical: Id) -> Response:
    """The brokers of a physical cluster, with their states."""
    require(token, OperatorRole.VIEWER)
    registry = plane.registry
    entity = registry.need(PhysicalCluster, physical)
    ids = sorted(endpoint.id for endpoint in entity.brokers)
    return pages.page(
        lambda after: (one for one in ids if _cursor_key(one) > after),
        lambda one: _view(registry, entity, one),
        _cursor_key,
    )


@router.get(
    "/physical-clusters/{physical}/brokers/{broker}", operation_id="getBroker", tags=["physical clusters"]
)
async def get_broker(
    plane: CurrentPlane, token: Caller, physical: Id, broker: Number, response: Response
) -> BrokerView:
    require(token, OperatorRole.VIEWER)
    entity = plane.registry.need(PhysicalCluster, physical)
    view = _view(plane.registry, entity, broker)
    set_etag(response, broker_states.state_of(plane.registry, physical, broker))
    return view


@router.put(
    "/physical-clusters/{physical}/brokers/{broker}/states/{status}",
    operation_id="setBrokerState",
    status_code=202,
    tags=["physical clusters"],
)
async def set_state(
    call: Change, physical: Id, broker: Number, status: BrokerStatus, body: NewStatus, response: Response
) -> BrokerAccepted:
    """Demotes or cordons a broker. States that others have set stay."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(
        lambda r, a: broker_states.set_status(r, a, physical, broker, status, body.reason), BrokerState
    )
    return _accepted(call, physical, broker, decided, response)


@router.delete(
    "/physical-clusters/{physical}/brokers/{broker}/states/{status}",
    operation_id="clearBrokerState",
    status_code=202,
    tags=["physical clusters"],
)
async def clear_state(
    call: Change, physical: Id, broker: Number, status: BrokerStatus, response: Response
) -> BrokerAccepted:
    """Clears a state that an operator has set. States that others have set stay."""
    call.may(None, OperatorRole.ADMIN)
    decided = await call.decide(
        lambda r, a: broker_states.clear_status(r, a, physical, broker, status), BrokerState
    )
    return _accepted(call, physical, broker, decided, response)


def _accepted(
    call: Call, physical: str, broker: int, decided: Decision, response: Response
) -> BrokerAccepted:
    entity = call.registry.need(PhysicalCluster, physical)
    shown = _view(call.registry, entity, broker)
    return BrokerAccepted(operation=operation_view(decided, response), broker=shown)
