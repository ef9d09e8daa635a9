"""What operators set about health: the mode, the target, and holds of brokers. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import Decision, new_operation
from penstock.control.health.broker_states import broker_of
from penstock.control.registry import Drop, Put
from penstock.health.mitigation import HealthMode, Step
from penstock.health.slo import check_target, target_of
from penstock.model.entities import BrokerHold, PhysicalCluster, broker_state_id
from penstock.model.errors.health import ActionUnknown, HoldInvalid, NotHeld
from penstock.model.ids import BrokerId, PhysicalClusterId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry

HOLD_SECONDS_MAX: Final = 24 * 3600.0
REASON_MAX: Final = 255


def mode_of(physical: PhysicalCluster) -> HealthMode:
    """Off, if a newer control plane has set a mode that this one does not know."""
    return next((mode for mode in HealthMode if mode == physical.health_mode), HealthMode.OFF)


def action_modes(physical: PhysicalCluster) -> dict[str, HealthMode]:
    known = {str(mode): mode for mode in HealthMode}
    return {action: known.get(mode, HealthMode.OFF) for action, mode in physical.health_actions.items()}


def target_for(physical: PhysicalCluster) -> float:
    return physical.health_target or target_of(len(physical.zones))


def set_health(
    registry: Registry,
    context: DecisionContext,
    physical_id: str,
    *,
    mode: HealthMode | None = None,
    actions: Mapping[str, HealthMode] | None = None,
    target: float | None = None,
) -> Decision:
    """Omitted values stay unchanged."""
    before = registry.need(PhysicalCluster, physical_id)
    for action in actions or {}:
        if action not in list(Step):
            raise ActionUnknown(action=action, known=", ".join(Step))
    if target:
        check_target(target)
    after = before.changed(
        context.now_ms,
        health_mode=before.health_mode if mode is None else str(mode),
        health_actions={**before.health_actions, **{a: str(m) for a, m in (actions or {}).items()}},
        health_target=before.health_target if target is None else target,
    )
    operation = new_operation(registry, context, "health.set", physical_id, None)
    operation = replace(operation, detail=f"health is {after.health_mode}")
    return Decision(operation, (Put(after), Put(operation)), after, before)


def held(registry: Registry, cluster: str, now_ms: int) -> dict[int, str]:
    """Brokers that an operator holds, with the reason."""
    holds = (each for each in registry.all(BrokerHold) if each.cluster == cluster)
    return {int(each.broker): each.reason or "no reason given" for each in holds if each.until_ms > now_ms}


def hold(
    registry: Registry, context: DecisionContext, physical_id: str, broker: int, seconds: float, reason: str
) -> Decision:
    """Health leaves the broker alone for so long. What it has done already stays."""
    physical = registry.need(PhysicalCluster, physical_id)
    broker_of(physical, broker)
    if not 0 < seconds <= HOLD_SECONDS_MAX:
        raise HoldInvalid(seconds=seconds)
    key = broker_state_id(physical_id, broker)
    before = registry.get(BrokerHold, key)
    base = before or BrokerHold(id=key, cluster=PhysicalClusterId(physical_id), broker=BrokerId(broker))
    after = base.changed(
        context.now_ms,
        reason=reason[:REASON_MAX],
        until_ms=context.now_ms + int(seconds * 1000),
        actor=context.actor,
    )
    operation = new_operation(registry, context, "health.hold", key, None)
    return Decision(operation, (Put(after), Put(operation)), after, before)


def unhold(registry: Registry, context: DecisionContext, physical_id: str, broker: int) -> Decision:
    broker_of(registry.need(PhysicalCluster, physical_id), broker)
    key = broker_state_id(physical_id, broker)
    before = registry.get(BrokerHold, key)
    if before is None:
        raise NotHeld(broker=broker)
    operation = new_operation(registry, context, "health.unhold", key, None)
    return Decision(operation, (Drop(before), Put(operation)), before, before)
