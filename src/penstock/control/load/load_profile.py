"""Stores the profile of a physical cluster's brokers, which their load is computed with."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Put
from penstock.model.entities import PhysicalCluster

if TYPE_CHECKING:
    from penstock.balance.broker_load import Profile
    from penstock.control.decisions import DecisionContext
    from penstock.control.registry import Registry


def set_load_profile(
    registry: Registry, context: DecisionContext, physical_id: str, profile: Profile
) -> Decision:
    before = registry.need(PhysicalCluster, physical_id)
    after = before.changed(context.now_ms, load_profile=asdict(profile))
    values = ", ".join(f"{name} {value:g}" for name, value in asdict(profile).items())
    operation = new_operation(registry, context, "physical.load-profile", physical_id, None)
    operation = replace(operation, detail=values)
    return Decision(operation, (Put(after), Put(operation)), after, before)
