"""Bringing an export into an empty registry: whole, or not at all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.decisions import Ask, Decided, new_operation
from penstock.control.registry import Change, Put, Registry, read_export
from penstock.model.entities import ENTITIES, LogicalCluster, OperatorToken, PhysicalCluster
from penstock.model.errors.control import ImportRefused

if TYPE_CHECKING:
    from penstock.model.entities import Entity

_SKIPPED = frozenset({"holder", "operation"})


def import_records(registry: Registry, ask: Ask, text: str) -> Decided:
    """Entities keep their versions from here on: each is written one above what stands there now."""
    if registry.count(LogicalCluster):
        raise ImportRefused(reason=f"there are {registry.count(LogicalCluster)} logical clusters already")
    changes: list[Change] = []
    for record in read_export(text):
        kind = ENTITIES.get(record.entity)
        if kind is None or record.entity in _SKIPPED:
            continue
        entity: Entity = kind.from_record(record)
        present = registry.get(kind, entity.id)
        if isinstance(entity, PhysicalCluster | OperatorToken) and present is not None:
            continue  # what runs here is known better here
        changes.append(Put(entity.changed(ask.now_ms, version=1 if present is None else present.version + 1)))
    operation = new_operation(registry, ask, "registry.import", "registry", None)
    return Decided(operation, (*changes, Put(operation)), None)
