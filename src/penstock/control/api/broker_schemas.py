"""Requests and responses about brokers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.control.api.schemas import Accepted, RequestBody, View
from penstock.control.health.broker_states import REASON_MAX
from penstock.model.entities import BrokerEndpoint, BrokerState, BrokerStatus


class NewStatus(RequestBody):
    reason: Annotated[str, Field(max_length=REASON_MAX)] = ""
    """Shown to other operators."""


class ClaimView(View):
    status: BrokerStatus
    actor: str
    """The component that has set it: only it can clear it. All operators are one."""
    reason: str
    since_ms: int


class BrokerView(View):
    id: int
    zone: str
    cell: str | None
    """None: it waits for others to form a cell."""
    host: str
    port: int
    states: list[BrokerStatus]
    """`normal` if none is set."""
    claims: list[ClaimView]

    @classmethod
    def of(cls, endpoint: BrokerEndpoint, cell: str | None, state: BrokerState) -> BrokerView:
        claims = [ClaimView.of_attributes(claim) for claim in state.claims]
        return cls.of_attributes(endpoint, cell=cell, states=list(state.statuses), claims=claims)


class BrokerAccepted(Accepted):
    broker: BrokerView
