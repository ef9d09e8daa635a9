"""What operators set about healing, and what the registry has of it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.audit.healing import HealingMode
from penstock.control.decisions import Decision, new_operation
from penstock.control.health.interventions import open_interventions
from penstock.control.registry import Put
from penstock.model.entities import Actor, BrokerStatus, Operation, PhysicalCluster, broker_state_id

if TYPE_CHECKING:
    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry

ACTOR: Final = "audit"
MOVING: Final = frozenset((Actor.BALANCE, Actor.RESTORE, Actor.LINK))


def mode_of(physical: PhysicalCluster) -> HealingMode:
    """Off, if a newer control plane has set a mode that this one does not know."""
    return next((mode for mode in HealingMode if mode == physical.healing_mode), HealingMode.OFF)


def set_healing(
    registry: Registry, context: DecisionContext, physical_id: str, mode: HealingMode
) -> Decision:
    before = registry.need(PhysicalCluster, physical_id)
    after = before.changed(context.now_ms, healing_mode=str(mode))
    operation = new_operation(registry, context, "healing.set", physical_id, None)
    operation = replace(operation, detail=f"healing is {mode}")
    return Decision(operation, (Put(after), Put(operation)), after, before)


def demoted_by_healing(registry: Registry, cluster: str) -> frozenset[int]:
    return frozenset(
        int(broker)
        for broker, state in registry.broker_states(cluster).items()
        if any(c.owner == ACTOR and c.status is BrokerStatus.DEMOTED for c in state.claims)
    )


def acted_ms(registry: Registry, cluster: str) -> tuple[int, ...]:
    """When healing has demoted brokers of a cluster, as far as operations are kept."""
    prefix = broker_state_id(cluster, 0)[:-1]
    return tuple(
        each.created_ms
        for each in registry.all(Operation)
        if each.actor == ACTOR and each.action == "broker.set" and each.subject.startswith(prefix)
    )


def other_work(registry: Registry, cluster: str, partition: str, broker: int, now_ms: int) -> str:
    """Which other intervention has the partition (as `topic-3`) or the broker, in words; empty: none."""
    for each in open_interventions(registry, cluster, now_ms):
        if each.actor is Actor.ROLL:
            return f"a roll is under way ({each.reason or each.key})"
        if each.actor is Actor.HEALTH and broker in each.brokers:
            return f"health has taken broker {broker}"
        names_it = partition in each.partitions or (not each.partitions and broker in each.brokers)
        if each.actor in MOVING and names_it:
            return f"{each.actor} works on {partition}"
    return ""
