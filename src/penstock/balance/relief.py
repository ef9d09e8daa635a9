"""When a full cell is relieved: one round of looking at one physical cluster. Pure.

`cells.moves` says who would leave for where. Here is what keeps a controller that does so by itself
from doing harm: a cell has to stay full for a while, one tenant moves at a time, the averages are
given time to show what a move did before the next is judged by them, a tenant that moved stays for
an hour, and an hour sees a bounded number of moves. A new cell is asked for when moves cannot help,
and no longer when no cell is above the target: between the two marks the answer stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import FULL, TARGET, moves

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.balance.cells import CellId, LoadedCell, Move, NewCell, TenantUse
    from penstock.model.ids import LogicalClusterId

HOUR_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast full cells are relieved."""

    full_seconds: float = 30.0  # above the mark without a break, before anybody leaves
    settle_seconds: float = 120.0  # after a move, until averages show it
    rest_seconds: float = HOUR_SECONDS  # of a tenant that moved
    moves_hour_max: int = 10  # that begin on one physical cluster


PACE: Final = Pace()


@dataclass(frozen=True, slots=True)
class PastMove:
    tenant: LogicalClusterId
    began: float  # seconds, on the clock that `now` is of
    ended: float | None  # none: it is under way


@dataclass(frozen=True, slots=True)
class Seen:
    """A physical cluster: its cells as measured, their tenants, and the moves of the last hours."""

    cells: Sequence[LoadedCell]
    tenants: Mapping[CellId, Sequence[TenantUse]]
    past: Sequence[PastMove] = ()
    busy: Collection[LogicalClusterId] = ()  # something else is under way with them


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to, and what the next one has to know of it."""

    full_since: Mapping[CellId, float] = field(default_factory=dict)
    move: Move | None = None  # to be begun now
    new_cell: NewCell | None = None  # what is needed, as far as is known


def relieve(before: Round, seen: Seen, now: float, pace: Pace = PACE) -> Round:
    """At most one move, and whether a new cell is needed."""
    full_since = _full_since(before.full_since, seen.cells, now)
    if not full_since:
        return Round()
    if _waits(seen.past, now, pace):
        return Round(full_since, None, before.new_cell)
    ripe = {cell for cell, since in full_since.items() if now - since >= pace.full_seconds}
    found = moves(seen.cells, seen.tenants, resting=_resting(seen, now, pace)).moves
    move = next((each for each in found if each.source in ripe), None)
    # Whoever rests now can leave later: that they stay for the moment is no reason to buy brokers.
    wanted = moves(seen.cells, seen.tenants).new_cell
    if wanted is not None and ripe.intersection(wanted.cells):
        return Round(full_since, move, wanted)
    return Round(full_since, move, None if move is not None else before.new_cell)


def _full_since(
    before: Mapping[CellId, float], cells: Sequence[LoadedCell], now: float
) -> dict[CellId, float]:
    """Cells that reached the upper mark and have not been at the lower one since."""
    return {
        each.cell.id: before.get(each.cell.id, now)
        for each in cells
        if each.load.highest >= FULL or (each.cell.id in before and each.load.highest > TARGET)
    }


def _waits(past: Sequence[PastMove], now: float, pace: Pace) -> bool:
    if any(each.ended is None or now - each.ended < pace.settle_seconds for each in past):
        return True
    return sum(now - each.began < HOUR_SECONDS for each in past) >= pace.moves_hour_max


def _resting(seen: Seen, now: float, pace: Pace) -> set[LogicalClusterId]:
    moved = {each.tenant for each in seen.past if each.ended and now - each.ended < pace.rest_seconds}
    return moved | set(seen.busy)
