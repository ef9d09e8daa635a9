"""When full cells are relieved: one decision round for one physical cluster.

`cells.plan_moves` chooses which tenant would leave for which cell. This module bounds how fast an
automatic controller may act on that:

- A cell must stay full for a while before anything moves.
- One tenant moves at a time, and the load averages must settle before the next decision.
- A tenant that moved stays where it is for an hour, and the moves per hour are bounded.

A new cell is requested when moves cannot help. The request is withdrawn once no cell is above the
target; between the two thresholds the previous decision stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import FULL, TARGET, plan_moves

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.balance.cells import CellId, LoadedCell, Move, NewCell, TenantLoad
    from penstock.model.ids import LogicalClusterId

HOUR_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast full cells are relieved."""

    full_seconds: float = 30.0  # continuously full before a tenant leaves
    settle_seconds: float = 120.0  # after a move, until the averages reflect it
    rest_seconds: float = HOUR_SECONDS  # before a tenant that moved may move again
    moves_hour_max: int = 10  # started per hour on one physical cluster


PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class RecentMove:
    tenant: LogicalClusterId
    started: float  # seconds, on the same clock as `now`
    ended: float | None  # none: still running


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A physical cluster: its measured cells, their tenants, and the moves of the last hours."""

    cells: Sequence[LoadedCell]
    tenants: Mapping[CellId, Sequence[TenantLoad]]
    recent_moves: Sequence[RecentMove] = ()
    busy: Collection[LogicalClusterId] = ()  # tenants with another operation running


@dataclass(frozen=True, slots=True)
class ReliefDecision:
    """The outcome of a round, and the state that the next round continues from."""

    full_since: Mapping[CellId, float] = field(default_factory=dict)
    move: Move | None = None  # start it now
    new_cell: NewCell | None = None  # the cluster needs it


def relieve(
    before: ReliefDecision, snapshot: ClusterSnapshot, now: float, pace: Pace = PACE
) -> ReliefDecision:
    """At most one move, and whether a new cell is needed."""
    full_since = _full_since(before.full_since, snapshot.cells, now)
    if not full_since:
        return ReliefDecision()
    if _must_wait(snapshot.recent_moves, now, pace):
        return ReliefDecision(full_since, None, before.new_cell)
    due = {cell for cell, since in full_since.items() if now - since >= pace.full_seconds}
    planned = plan_moves(snapshot.cells, snapshot.tenants, resting=_ineligible(snapshot, now, pace)).moves
    move = next((each for each in planned if each.source in due), None)
    # Resting tenants can leave later, so they are no reason to buy brokers.
    new_cell = plan_moves(snapshot.cells, snapshot.tenants).new_cell
    if new_cell is not None and due.intersection(new_cell.cells):
        return ReliefDecision(full_since, move, new_cell)
    return ReliefDecision(full_since, move, None if move is not None else before.new_cell)


def _full_since(
    before: Mapping[CellId, float], cells: Sequence[LoadedCell], now: float
) -> dict[CellId, float]:
    """Cells that reached `FULL` and have not fallen to `TARGET` since."""
    return {
        each.cell.id: before.get(each.cell.id, now)
        for each in cells
        if each.load.highest >= FULL or (each.cell.id in before and each.load.highest > TARGET)
    }


def _must_wait(recent_moves: Sequence[RecentMove], now: float, pace: Pace) -> bool:
    if any(each.ended is None or now - each.ended < pace.settle_seconds for each in recent_moves):
        return True
    return sum(now - each.started < HOUR_SECONDS for each in recent_moves) >= pace.moves_hour_max


def _ineligible(snapshot: ClusterSnapshot, now: float, pace: Pace) -> set[LogicalClusterId]:
    moved = {
        each.tenant for each in snapshot.recent_moves if each.ended and now - each.ended < pace.rest_seconds
    }
    return moved | set(snapshot.busy)
