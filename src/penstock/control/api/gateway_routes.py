"""The routes about gateways: their list for operators, and the calls that gateways make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from penstock.control.api.app import Caller, CurrentPlane, Pages
from penstock.control.api.auth import require
from penstock.control.api.schemas import GatewayCall, GatewayCallResult, GatewayView, Page
from penstock.control.gateways.gateway_directory import RegisteredGateway
from penstock.model.entities import OperatorRole

router = APIRouter(prefix="/v1")


@router.get("/gateways", operation_id="listGateways", tags=["gateways"], response_model=Page[GatewayView])
async def list_gateways(plane: CurrentPlane, token: Caller, pages: Pages) -> Response:
    """The gateways that have registered themselves, and whether they live."""
    require(token, OperatorRole.VIEWER)
    gateways = {_key(each): each for each in plane.gateways.all()}
    return pages.page(
        lambda after: (gateways[key] for key in sorted(gateways) if key > after), GatewayView.of, _key
    )


@router.post("/gateway-calls", operation_id="gatewayCall", tags=["gateways"])
async def gateway_call(request: Request, plane: CurrentPlane, body: GatewayCall) -> GatewayCallResult:
    """A call of a gateway without the platform key, for a tenant of its cluster. Needs a gateway's token."""
    _, _, token = request.headers.get("Authorization", "").partition(" ")
    arguments: Mapping[str, Any] = body.arguments
    result = await plane.gateway_calls.execute(
        plane.registry, token.strip(), body.tenant, body.call, arguments
    )
    return GatewayCallResult(result=result)


def _key(gateway: RegisteredGateway) -> str:
    return f"{gateway.heartbeat.cluster}/{gateway.heartbeat.gateway}"
