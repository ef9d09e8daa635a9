"""Relieves full cells: carries out the decisions of `balance.cell_relief` in the active control plane.

Each round starts at most one move on a physical cluster. A move is an ordinary operation: it is in the
registry and, under the actor `balance`, in the audit log, and a successor continues it. Where moves cannot
help, the physical cluster gets the condition `needs-cell`: what is missing, and how its provider would add
it. Recent moves are read from the operations, so a successor keeps the pace; only how long a cell has been
full is measured again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.cell_relief import PACE, ClusterSnapshot, RecentMove, ReliefDecision, relieve
from penstock.balance.cells import Cell, CellId, LoadedCell, NewCell, TenantLoad
from penstock.control import decisions
from penstock.control.capacity_units import TABLES
from penstock.control.cluster_placement import load_key, takes_tenants
from penstock.control.decisions import Decision, new_operation
from penstock.control.registry import Put
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
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.balance.cell_relief import Pace
    from penstock.control.decisions import DecisionContext
    from penstock.control.load.load_observation import Observation
    from penstock.control.physical.cluster_access import Provisioner
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity
    from penstock.model.ids import LogicalClusterId

ACTOR: Final = "balance"
MOVE: Final = "cluster.move"

log = structlog.get_logger("penstock.control")


class Decide(Protocol):
    """Commits a decision through the active control plane."""

    async def __call__(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision: ...


class CellReliefService:
    """The relief rounds of one leadership term."""

    def __init__(self, decide: Decide, provisioner: Provisioner | None, pace: Pace = PACE) -> None:
        self._decide = decide
        self._provisioner = provisioner
        self._pace = pace
        self._rounds: dict[str, ReliefDecision] = {}

    def forget(self) -> None:
        """Another control plane is active, and counts for itself."""
        self._rounds.clear()

    async def run_round(self, registry: Registry, cluster: str, observed: Observation) -> None:
        """One round for one physical cluster. What fails is decided again in the next round."""
        physical = registry.get(PhysicalCluster, cluster)
        if physical is None or physical.tenancy is not Tenancy.SHARED:
            return
        snapshot = cluster_snapshot(registry, physical, observed)
        if snapshot is None:
            return
        before = self._rounds.get(cluster) or ReliefDecision(new_cell=_requested_cell(physical))
        after = relieve(before, snapshot, time.time(), self._pace)
        self._rounds[cluster] = after
        try:
            await self._carry_out(physical, after)
        except PenstockError as refused:
            log.warning("cell not relieved", cluster=cluster, error=str(refused))

    async def _carry_out(self, physical: PhysicalCluster, after: ReliefDecision) -> None:
        move = after.move
        if move is not None:
            log.info("cell relieved", cluster=physical.id, cell=move.source, tenant=move.tenant)
            moved = partial(decisions.move_cluster, cluster_id=move.tenant, cell=move.target)
            await self._decide(moved, LogicalCluster, actor=ACTOR)
        if _differs(_requested_cell(physical), after.new_cell):
            remedy = self._remedy(physical, after.new_cell)
            noted = partial(needs_cell, physical_id=physical.id, new_cell=after.new_cell, remedy=remedy)
            await self._decide(noted, PhysicalCluster, actor=ACTOR)

    def _remedy(self, physical: PhysicalCluster, new_cell: NewCell | None) -> str:
        if new_cell is None:
            return ""
        remedy = self._provisioner.growth(physical, new_cell.brokers) if self._provisioner is not None else ""
        return (
            remedy or f"add {counted(new_cell.brokers, 'broker')} to {physical.name}, evenly over its zones"
        )


def cluster_snapshot(
    registry: Registry, physical: PhysicalCluster, observed: Observation
) -> ClusterSnapshot | None:
    """None if a cell has no measurement: assuming it full or idle would both be wrong."""
    keys = {cell.id: load_key(physical.id, cell.id) for cell in physical.cells}
    if not keys or any(key not in observed.cells for key in keys.values()):
        return None
    units_max = TABLES[physical.capacity].units_max
    states = registry.broker_states(physical.id)
    cells = [
        LoadedCell(
            Cell(CellId(cell.id), cell.brokers),
            observed.cells[keys[cell.id]],
            units_max,
            takes_tenants(cell, states),
        )
        for cell in physical.cells
    ]
    tenants: dict[CellId, list[TenantLoad]] = {}
    busy: set[LogicalClusterId] = set()
    with_operation = {operation.subject for operation in registry.running()}
    for cluster in registry.all(LogicalCluster):
        if cluster.cluster != physical.id or cluster.cell not in keys:
            continue
        load = observed.tenants.get(keys[cluster.cell], {}).get(cluster.tenant)
        if load is not None:
            tenant = TenantLoad(cluster.tenant, cluster.units, load)
            tenants.setdefault(CellId(cluster.cell), []).append(tenant)
        if cluster.state is not ClusterState.READY or cluster.id in with_operation:
            busy.add(cluster.tenant)
    return ClusterSnapshot(cells, tenants, recent_moves(registry, physical), busy)


def recent_moves(registry: Registry, physical: PhysicalCluster) -> tuple[RecentMove, ...]:
    """The moves of existing tenants, automatic or requested by an operator."""
    moves = []
    for operation in registry.all(Operation):
        if operation.action != MOVE or operation.tenant is None:
            continue
        cluster = registry.get(LogicalCluster, operation.tenant)
        if cluster is not None and cluster.cluster == physical.id:
            ended = None if operation.ended_ms is None else operation.ended_ms / 1000
            moves.append(RecentMove(operation.tenant, operation.created_ms / 1000, ended))
    return tuple(moves)


def needs_cell(
    registry: Registry, context: DecisionContext, physical_id: str, new_cell: NewCell | None, remedy: str
) -> Decision:
    """Sets, changes or removes the condition; its start time stays."""
    before = registry.need(PhysicalCluster, physical_id)
    known = before.condition(ConditionKind.NEEDS_CELL)
    conditions = tuple(each for each in before.conditions if each is not known)
    if new_cell is not None:
        since = context.now_ms if known is None else known.since_ms
        kind = str(ConditionKind.NEEDS_CELL)
        conditions += (Condition(kind, since, new_cell.reason, remedy, new_cell.cells, new_cell.brokers),)
    after = before.changed(context.now_ms, conditions=conditions)
    operation = new_operation(registry, context, "physical.condition", physical_id, None)
    operation = replace(
        operation, detail=new_cell.reason if new_cell is not None else "no new cell is needed"
    )
    return Decision(operation, (Put(after), Put(operation)), after, before)


def _requested_cell(physical: PhysicalCluster) -> NewCell | None:
    known = physical.condition(ConditionKind.NEEDS_CELL)
    if known is None:
        return None
    return NewCell(known.brokers, known.detail, tuple(CellId(cell) for cell in known.cells))


def _differs(before: NewCell | None, after: NewCell | None) -> bool:
    if before is None or after is None:
        return before is not after
    return set(before.cells) != set(after.cells) or before.brokers != after.brokers
