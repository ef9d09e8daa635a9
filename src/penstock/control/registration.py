"""What a probe of a physical cluster changes in the registry. Pure, but for the time of a condition."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.control.decisions import Decision
from penstock.control.effects import registered
from penstock.control.registry import Change, Put, Registry
from penstock.control.size.resizing import brokers_of, joined, under_way
from penstock.fleet.adopted.capabilities import Capability
from penstock.model.entities import ClusterState, Condition, ConditionKind, Operation, PhysicalCluster

if TYPE_CHECKING:
    from penstock.control.physical.cluster_access import ProvidedCluster
    from penstock.model.errors import PenstockError


def registration(registry: Registry, provided: ProvidedCluster, now_ms: int) -> tuple[Change, ...]:
    """The cluster as provided; nothing if the registry has it so.

    Brokers that a growth or a shrinking is about stay as they are: its steps change them. Others that are new
    in an adopted cluster are joining.
    """
    known = registry.get(PhysicalCluster, provided.id)
    before = known or PhysicalCluster(id=provided.id, name=provided.name, provider=provided.provider)
    after = registered(before, _without_resizing(registry, before, provided), now_ms)
    if before.version and before.changed(now_ms, state=ClusterState.READY) == after:
        return ()
    new = {broker.id for broker in after.brokers} - {broker.id for broker in before.brokers}
    if known is None or provided.selection is None:
        return (Put(after),)
    return (Put(after), *joined(registry, after, new, now_ms))


def _without_resizing(
    registry: Registry, before: PhysicalCluster, provided: ProvidedCluster
) -> ProvidedCluster:
    operation = under_way(registry, before.id)
    if operation is None:
        return provided
    changing = brokers_of(operation)
    others = [broker for broker in provided.brokers if broker.id not in changing]
    kept = [broker for broker in before.brokers if broker.id in changing]
    return replace(provided, brokers=tuple(sorted((*others, *kept), key=lambda broker: broker.id)))


def gains_access(before: ProvidedCluster, after: ProvidedCluster) -> bool:
    """Whether users can be granted something that the cluster did not allow before."""
    gained = {each.capability for each in before.missing} - {each.capability for each in after.missing}
    return bool(gained & {Capability.USERS, Capability.ACLS, Capability.CLIENT_QUOTAS})


def unusable(cluster: str, failure: PenstockError, registry: Registry) -> Decision:
    """Records why a cluster cannot be used, once."""
    now = int(time.time() * 1000)
    before = registry.need(PhysicalCluster, cluster)
    known = before.condition(ConditionKind.UNUSABLE)
    same = known is not None and known.detail == failure.message
    others = tuple(each for each in before.conditions if each is not known)
    condition = Condition(ConditionKind.UNUSABLE, now, failure.message, failure.advice)
    changes = () if same else (Put(before.changed(now, conditions=(*others, condition))),)
    return Decision(Operation(id="op-", action="", subject=""), changes, None)
