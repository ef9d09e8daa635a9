"""Broker states: what setting and clearing a claim changes in the registry. Pure.

The planner, placement, rolls and health read the states; each sets and clears only its own claims, under
its name as the actor. Setting a claim again changes its reason and keeps its start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, DecisionContext, new_operation
from penstock.control.registry import Drop, Put, Registry
from penstock.model.entities import (
    BrokerState,
    BrokerStatus,
    PhysicalCluster,
    StatusClaim,
    broker_state_id,
    owner_of,
)
from penstock.model.errors.balance import BrokerMissing, NoLeaderLeft, StatusNotClaimed, StatusNotSettable
from penstock.model.ids import BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from penstock.control.registry import Change
    from penstock.model.entities import BrokerEndpoint

OPERATOR: Final = "operator"
SETTABLE: Final = (BrokerStatus.DEMOTED, BrokerStatus.CORDONED)  # by operators
REASON_MAX: Final = 255  # characters


def broker_of(physical: PhysicalCluster, broker: int) -> BrokerEndpoint:
    for endpoint in physical.brokers:
        if endpoint.id == broker:
            return endpoint
    known = ", ".join(str(endpoint.id) for endpoint in physical.brokers[:20]) or "none"
    raise BrokerMissing(cluster=physical.id, broker=broker, known=known)


def state_of(registry: Registry, physical: str, broker: int) -> BrokerState:
    """The broker's state; one without claims, which was never written, if it is normal."""
    entity_id = broker_state_id(physical, broker)
    normal = BrokerState(id=entity_id, cluster=PhysicalClusterId(physical), broker=BrokerId(broker))
    return registry.get(BrokerState, entity_id) or normal


def set_status(
    registry: Registry,
    context: DecisionContext,
    physical_id: str,
    broker: int,
    status: BrokerStatus,
    reason: str,
) -> Decision:
    physical = registry.need(PhysicalCluster, physical_id)
    broker_of(physical, broker)
    owner = owner_of(context.actor)
    if status is BrokerStatus.NORMAL or (owner == OPERATOR and status not in SETTABLE):
        raise StatusNotSettable(status=str(status), settable=" or ".join(SETTABLE))
    before = state_of(registry, physical.id, broker)
    own = _claim(before, owner, status)
    claim = StatusClaim(status, context.actor, reason[:REASON_MAX], context.now_ms)
    if own is not None:
        claim = replace(claim, since_ms=own.since_ms)
    others = tuple(each for each in before.claims if each is not own)
    after = before.changed(context.now_ms, claims=(*others, claim))
    if owner == OPERATOR and before.leads and not after.leads:
        _check_leaders_left(registry, physical, broker)
    return _decision(registry, context, "broker.set", status, before, after)


def clear_status(
    registry: Registry, context: DecisionContext, physical_id: str, broker: int, status: BrokerStatus
) -> Decision:
    """Removes the actor's claim. Those of other components stay."""
    physical = registry.need(PhysicalCluster, physical_id)
    broker_of(physical, broker)
    before = state_of(registry, physical.id, broker)
    owner = owner_of(context.actor)
    own = _claim(before, owner, status)
    if own is None:
        holders = [claim.owner for claim in before.claims if claim.status is status]
        others = f"{', '.join(holders)} has" if holders else f"it is {', '.join(before.statuses)}"
        raise StatusNotClaimed(owner=owner, broker=broker, status=str(status), others=others)
    claims = tuple(each for each in before.claims if each is not own)
    after = before.changed(context.now_ms, claims=claims)
    return _decision(registry, context, "broker.clear", status, before, after)


def _decision(
    registry: Registry,
    context: DecisionContext,
    action: str,
    status: BrokerStatus,
    before: BrokerState,
    after: BrokerState,
) -> Decision:
    operation = new_operation(registry, context, action, after.id, None)
    operation = replace(operation, arguments={"status": str(status)})
    # A broker without claims is normal, and has no entity.
    change: Change = Put(after) if after.claims else Drop(before)
    return Decision(operation, (change, Put(operation)), after, before if before.version else None)


def _claim(state: BrokerState, owner: str, status: BrokerStatus) -> StatusClaim | None:
    matching = (claim for claim in state.claims if claim.owner == owner and claim.status is status)
    return next(matching, None)


def _check_leaders_left(registry: Registry, physical: PhysicalCluster, broker: int) -> None:
    """Leadership has to go somewhere within the cell."""
    states = registry.broker_states(physical.id)
    for cell in physical.cells:
        if broker not in cell.brokers:
            continue
        others = [other for other in cell.brokers if other != broker]
        if not any(other not in states or states[other].leads for other in others):
            shown = ", ".join(f"{other} is {', '.join(states[other].statuses)}" for other in others)
            raise NoLeaderLeft(cell=cell.id, others=shown or "it has no other broker", broker=broker)
