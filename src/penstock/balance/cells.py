"""Cells: subsets of a cluster's brokers, spread evenly over its zones (Kora §5.3).

A tenant lives in one cell. A cell is as large as the largest logical cluster that it may have to
carry needs, no larger: fewer brokers mean fewer connections, better batches and a smaller blast.

A new tenant goes to the less loaded of two cells taken at random: nobody knows its load yet, and
always taking the least loaded cell would send every newcomer there until its load shows. Who leaves
a full cell is known by its load, so there the best fit is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

from penstock.model.errors.balance import CellSizeUneven

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.balance.load import Load
    from penstock.model.ids import BrokerId, LogicalClusterId, Zone

    # So many of these at random, without repetition: `random.Random(seed).sample`.
    Choose = Callable[[Sequence["LoadedCell"], int], Sequence["LoadedCell"]]

CellId = NewType("CellId", str)

FULL: Final = 0.80  # of a cell's capacity: from here on nobody is placed there, and tenants leave
TARGET: Final = 0.70  # a full cell is brought down to this, and no other is filled beyond it
CANDIDATES: Final = 2  # cells looked at for a newcomer
MOVES_MAX: Final = 50  # of one round


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as far as cells care."""

    id: BrokerId
    zone: Zone


@dataclass(frozen=True, slots=True)
class Cell:
    id: CellId
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A cell with what was last measured of it."""

    cell: Cell
    load: Load
    units_max: int  # capacity units of the largest logical cluster that it can carry


@dataclass(frozen=True, slots=True)
class TenantUse:
    """A tenant, and the part of its cell's capacity that it uses."""

    tenant: LogicalClusterId
    units: int  # the size it was sold
    load: Load


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No cell may take anybody: the cluster has to grow by a cell first."""

    wanted: NewCell


@dataclass(frozen=True, slots=True)
class TooLarge:
    """More than any cell of this cluster can carry, however empty."""

    units: int
    fits: int  # the largest size that does


@dataclass(frozen=True, slots=True)
class Move:
    tenant: LogicalClusterId
    source: CellId
    target: CellId


@dataclass(frozen=True, slots=True)
class Relief:
    """What brings full cells below the target again; `new_cell` if moves alone cannot."""

    moves: tuple[Move, ...]
    new_cell: NewCell | None


@dataclass(frozen=True, slots=True)
class NewCell:
    """A request to expand the cluster: so many brokers more, evenly over the zones."""

    brokers: int
    reason: str
    cells: tuple[CellId, ...] = ()  # which are full


def plan_cells(
    brokers_by_zone: Mapping[Zone, Sequence[BrokerId]], size: int, existing: Sequence[Cell] = ()
) -> tuple[Cell, ...]:
    """The existing cells as they are, and new ones of `size` brokers from those that are in none.

    Every cell takes equally many brokers from each zone. Brokers that do not make up a whole cell
    are left over (`spare`); they join a cell when enough others have come.
    """
    zones = len(brokers_by_zone)
    if zones == 0 or size <= 0 or size % zones:
        fits = max(zones, round(size / zones) * zones) if zones else 0
        raise CellSizeUneven(size=size, zones=zones, fits=fits)
    taken = {broker for cell in existing for broker in cell.brokers}
    free = {
        zone: sorted(broker for broker in brokers if broker not in taken)
        for zone, brokers in brokers_by_zone.items()
    }
    each = size // zones
    count = min(len(brokers) // each for brokers in free.values())
    number = next_number(existing)
    made = [
        Cell(
            CellId(f"cell-{number + turn}"),
            tuple(sorted(b for brokers in free.values() for b in brokers[turn * each : (turn + 1) * each])),
        )
        for turn in range(count)
    ]
    return (*existing, *made)


def spare(
    brokers_by_zone: Mapping[Zone, Sequence[BrokerId]], cells: Sequence[Cell]
) -> dict[Zone, tuple[BrokerId, ...]]:
    """Brokers that are in no cell, by zone."""
    taken = {broker for cell in cells for broker in cell.brokers}
    return {zone: tuple(sorted(set(brokers) - taken)) for zone, brokers in brokers_by_zone.items()}


def next_number(cells: Sequence[Cell]) -> int:
    """One more than any cell has had: an id is not given twice while its cell exists."""
    numbers = [int(tail) for cell in cells if (tail := cell.id.rpartition("-")[2]).isdecimal()]
    return max(numbers, default=0) + 1


def place(
    units: int,
    cells: Sequence[LoadedCell],
    choose: Choose,
    *,
    full: float = FULL,
    candidates: int = CANDIDATES,
) -> Cell | NoRoom | TooLarge:
    """Where a new tenant of this size goes: the less loaded of two available cells taken at random.

    What the tenants of a cell were sold is not looked at, only what is measured: most use a small
    part of it. Of two that are equally loaded the one chosen first is taken, which is chance again.
    """
    fits = max((each.units_max for each in cells), default=0)
    if cells and units > fits:
        return TooLarge(units, fits)
    available = [each for each in cells if each.load.highest < full and each.units_max >= units]
    if not available:
        size = max((len(each.cell.brokers) for each in cells), default=0)
        return NoRoom(NewCell(size, f"no cell is below {full:.0%} of its capacity"))
    chosen = choose(available, min(candidates, len(available)))
    return min(chosen, key=lambda each: each.load.highest).cell


def moves(
    cells: Sequence[LoadedCell],
    tenants: Mapping[CellId, Sequence[TenantUse]],
    *,
    full: float = FULL,
    target: float = TARGET,
    resting: Collection[LogicalClusterId] = (),
    moves_max: int = MOVES_MAX,
) -> Relief:
    """Who leaves which full cell for which less loaded one.

    Full cells are taken hottest first. A move must leave its target at or below `target`, so that no
    cell is filled by what relieves another; `target` below `full` keeps tenants from going to and
    fro. Those who moved lately (`resting`) stay. The smallest tenant that is enough goes; if none
    is, the largest that fits somewhere, and so on.
    """
    assert target < full, "without a gap between them, tenants would go to and fro"
    state = {each.cell.id: each for each in cells}
    staying = set(resting)
    found: list[Move] = []
    stuck: list[CellId] = []
    for hot in sorted(cells, key=lambda each: (-each.load.highest, each.cell.id)):
        source = hot.cell.id
        if hot.load.highest < full:
            break
        while state[source].load.highest > target and len(found) < moves_max:
            step = _step(state, source, tenants.get(source, ()), target, staying)
            if step is None:
                stuck.append(source)
                break
            use, goal = step
            state[source] = _with(state[source], state[source].load.minus(use.load))
            state[goal] = _with(state[goal], state[goal].load.plus(_seen_in(state[goal], use, hot)))
            staying.add(use.tenant)
            found.append(Move(use.tenant, source, goal))
    return Relief(tuple(found), _wanted(stuck, state, full))


def _step(
    state: Mapping[CellId, LoadedCell],
    source: CellId,
    tenants: Sequence[TenantUse],
    target: float,
    staying: Collection[LogicalClusterId],
) -> tuple[TenantUse, CellId] | None:
    """The next tenant to leave, and for where; None if nobody can."""
    hot = state[source]
    others = sorted(
        (each for each in state.values() if each.cell.id != source),
        key=lambda each: (each.load.highest, each.cell.id),
    )
    leaving = [use for use in tenants if use.tenant not in staying and use.load.highest > 0]
    leaving.sort(key=lambda use: (use.load.highest, use.tenant))
    enough: list[TenantUse] = []
    less: list[TenantUse] = []
    for use in leaving:
        (enough if hot.load.minus(use.load).highest <= target else less).append(use)
    for use in (*enough, *reversed(less)):
        for goal in others:
            after = goal.load.plus(_seen_in(goal, use, hot))
            if after.highest <= target and goal.units_max >= use.units:
                return use, goal.cell.id
    return None


def _seen_in(goal: LoadedCell, use: TenantUse, source: LoadedCell) -> Load:
    """A tenant's load as part of another cell's capacity, which may have other many brokers."""
    return use.load.times(len(source.cell.brokers) / len(goal.cell.brokers))


def _with(cell: LoadedCell, load: Load) -> LoadedCell:
    return LoadedCell(cell.cell, load, cell.units_max)


def _wanted(stuck: Sequence[CellId], state: Mapping[CellId, LoadedCell], full: float) -> NewCell | None:
    # A cell that was brought below `full` but not to `target` can wait for the next round.
    still = [cell for cell in stuck if state[cell].load.highest >= full]
    if not still:
        return None
    size = max(len(state[cell].cell.brokers) for cell in still)
    reason = f"{', '.join(still)} full, and no other cell has room for those who could leave"
    return NewCell(size, reason, tuple(still))
