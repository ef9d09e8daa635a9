"""A full cell relieves itself: what `balance.relief` decides, carried out by the active control plane.

Each round starts at most one move on a physical cluster, as an operation like any other: it stands
in the registry, in the audit log under the actor `balance`, and is carried on by whoever takes over.
Where moves cannot help, the physical cluster gets the condition `needs-cell`, which says what is
missing and what its provider would do about it. What was moved when is read from the operations, so
a successor keeps the pace; it only counts anew how long a cell has been full.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.cells import Cell, CellId, LoadedCell, NewCell, TenantUse
from penstock.balance.relief import PACE, PastMove, Round, Seen, relieve
from penstock.control import decisions
from penstock.control.decisions import Decided, new_operation
from penstock.control.placing import load_key
from penstock.control.registry import Put
from penstock.control.units import TABLES
from penstock.model.entities import (
    ClusterState,
    Condition,
    ConditionKind,
    LogicalCluster,
    Operation,
    PhysicalCluster,
    Tenancy,
)
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.balance.relief import Pace
    from penstock.control.decisions import Ask
    from penstock.control.observing import Averages
    from penstock.control.reach import Provisioner
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity
    from penstock.model.ids import LogicalClusterId

ACTOR: Final = "balance"
MOVE: Final = "cluster.move"

log = structlog.get_logger("penstock.control")


class Decide(Protocol):
    """Has something decided and committed by the active control plane."""

    async def __call__(
        self, decision: Callable[[Registry, Ask], Decided], kind: type[Entity], *, actor: str
    ) -> Decided: ...


class Reliever:
    """The rounds of one stay in office."""

    def __init__(self, decide: Decide, provisioner: Provisioner | None, pace: Pace = PACE) -> None:
        self._decide = decide
        self._provisioner = provisioner
        self._pace = pace
        self._rounds: dict[str, Round] = {}

    def forget(self) -> None:
        """Somebody else is active, and counts for itself."""
        self._rounds.clear()

    async def look(self, registry: Registry, cluster: str, averages: Averages) -> None:
        """One round for one physical cluster. What cannot be done now is decided anew in the next."""
        physical = registry.get(PhysicalCluster, cluster)
        if physical is None or physical.tenancy is not Tenancy.SHARED:
            return
        seen = seen_of(registry, physical, averages)
        if seen is None:
            return
        before = self._rounds.get(cluster) or Round(new_cell=_wanted(physical))
        after = relieve(before, seen, time.time(), self._pace)
        self._rounds[cluster] = after
        try:
            await self._carry_out(physical, after)
        except PenstockError as refused:
            log.warning("cell not relieved", cluster=cluster, error=str(refused))

    async def _carry_out(self, physical: PhysicalCluster, after: Round) -> None:
        move = after.move
        if move is not None:
            log.info("cell relieved", cluster=physical.id, cell=move.source, tenant=move.tenant)
            await self._decide(
                lambda r, a: decisions.move_cluster(r, a, move.tenant, move.target),
                LogicalCluster,
                actor=ACTOR,
            )
        if _differs(_wanted(physical), after.new_cell):
            remedy = self._remedy(physical, after.new_cell)
            await self._decide(
                lambda r, a: needs_cell(r, a, physical.id, after.new_cell, remedy),
                PhysicalCluster,
                actor=ACTOR,
            )

    def _remedy(self, physical: PhysicalCluster, wanted: NewCell | None) -> str:
        if wanted is None:
            return ""
        said = self._provisioner.growth(physical, wanted.brokers) if self._provisioner is not None else ""
        return said or f"add {wanted.brokers} brokers to {physical.name}, evenly over its zones"


def seen_of(registry: Registry, physical: PhysicalCluster, averages: Averages) -> Seen | None:
    """None: a cell is not measured, and to take it for full or for idle would both be wrong."""
    keys = {cell.id: load_key(physical.id, cell.id) for cell in physical.cells}
    if not keys or any(key not in averages.cells for key in keys.values()):
        return None
    units_max = TABLES[physical.capacity].units_max
    cells = [
        LoadedCell(Cell(CellId(cell.id), cell.brokers), averages.cells[keys[cell.id]], units_max)
        for cell in physical.cells
    ]
    tenants: dict[CellId, list[TenantUse]] = {}
    busy: set[LogicalClusterId] = set()
    at_work = {operation.subject for operation in registry.running()}
    for cluster in registry.all(LogicalCluster):
        if cluster.cluster != physical.id or cluster.cell not in keys:
            continue
        load = averages.tenants.get(keys[cluster.cell], {}).get(cluster.tenant)
        if load is not None:
            use = TenantUse(cluster.tenant, cluster.units, load)
            tenants.setdefault(CellId(cluster.cell), []).append(use)
        if cluster.state is not ClusterState.READY or cluster.id in at_work:
            busy.add(cluster.tenant)
    return Seen(cells, tenants, past_moves(registry, physical), busy)


def past_moves(registry: Registry, physical: PhysicalCluster) -> tuple[PastMove, ...]:
    """Of tenants that are there still, whoever asked for them."""
    found = []
    for operation in registry.all(Operation):
        if operation.action != MOVE or operation.tenant is None:
            continue
        cluster = registry.get(LogicalCluster, operation.tenant)
        if cluster is not None and cluster.cluster == physical.id:
            ended = None if operation.ended_ms is None else operation.ended_ms / 1000
            found.append(PastMove(operation.tenant, operation.made_ms / 1000, ended))
    return tuple(found)


def needs_cell(
    registry: Registry, ask: Ask, physical_id: str, wanted: NewCell | None, remedy: str
) -> Decided:
    """The condition begins, changes or ends; since when it lasts stays."""
    before = registry.need(PhysicalCluster, physical_id)
    known = before.condition(ConditionKind.NEEDS_CELL)
    conditions = tuple(each for each in before.conditions if each is not known)
    if wanted is not None:
        since = ask.now_ms if known is None else known.since_ms
        kind = str(ConditionKind.NEEDS_CELL)
        conditions += (Condition(kind, since, wanted.reason, remedy, wanted.cells, wanted.brokers),)
    after = before.changed(ask.now_ms, conditions=conditions)
    operation = new_operation(registry, ask, "physical.condition", physical_id, None)
    operation = replace(operation, detail=wanted.reason if wanted is not None else "no new cell is needed")
    return Decided(operation, (Put(after), Put(operation)), after, before)


def _wanted(physical: PhysicalCluster) -> NewCell | None:
    known = physical.condition(ConditionKind.NEEDS_CELL)
    if known is None:
        return None
    return NewCell(known.brokers, known.detail, tuple(CellId(cell) for cell in known.cells))


def _differs(before: NewCell | None, after: NewCell | None) -> bool:
    if before is None or after is None:
        return before is not after
    return set(before.cells) != set(after.cells) or before.brokers != after.brokers
