"""Imports an export into an empty registry: completely, or not at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.decisions import Decision, DecisionContext, new_operation
from penstock.control.registry import Change, Put, Registry, read_export
from penstock.model.entities import ENTITIES, LogicalCluster, OperatorToken, PhysicalCluster
from penstock.model.errors.control import ImportRefused

if TYPE_CHECKING:
    from penstock.model.entities import Entity

_SKIPPED = frozenset({"active-control-plane", "operation"})


def import_records(registry: Registry, context: DecisionContext, text: str) -> Decision:
    """Each entity gets the version after the one that the registry has now."""
    if registry.count(LogicalCluster):
        raise ImportRefused(
            reason=f"the registry has {registry.count(LogicalCluster)} logical clusters already"
        )
    changes: list[Change] = []
    for record in read_export(text):
        kind = ENTITIES.get(record.entity)
        if kind is None or record.entity in _SKIPPED:
            continue
        entity: Entity = kind.from_record(record)
        present = registry.get(kind, entity.id)
        if isinstance(entity, PhysicalCluster | OperatorToken) and present is not None:
            continue  # this control plane knows its own clusters and tokens better
        changes.append(
            Put(entity.changed(context.now_ms, version=1 if present is None else present.version + 1))
        )
    operation = new_operation(registry, context, "registry.import", "registry", None)
    return Decision(operation, (*changes, Put(operation)), None)
