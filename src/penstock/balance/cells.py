"""Cells: subsets of a cluster's brokers, spread evenly over its zones (Kora §5.3).

A tenant lives in one cell. A cell is just large enough for the largest logical cluster that it may
have to carry: fewer brokers mean fewer connections, better batches and a smaller blast radius.

A new tenant goes to the less loaded of two cells drawn at random. Its load is not known yet, and the
least loaded cell would receive every newcomer until their load shows. The load of a tenant that
leaves a full cell is known, so it moves to where it fits best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NewType

from penstock.model.errors.balance import CellSizeUneven

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.balance.cell_load import Load
    from penstock.model.ids import BrokerId, LogicalClusterId, Zone

    # Draws so many cells at random, without repetition: `random.Random(seed).sample`.
    Choose = Callable[[Sequence["LoadedCell"], int], Sequence["LoadedCell"]]

CellId = NewType("CellId", str)

FULL: Final = 0.80  # of a cell's capacity: from here on no tenant is placed there, and tenants leave
TARGET: Final = 0.70  # a full cell is brought down to this; no move fills another beyond it
CANDIDATES: Final = 2  # cells compared for a new tenant
MOVES_MAX: Final = 50  # planned in one round


@dataclass(frozen=True, slots=True)
class Broker:
    id: BrokerId
    zone: Zone


@dataclass(frozen=True, slots=True)
class Cell:
    id: CellId
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A cell and its measured load."""

    cell: Cell
    load: Load
    units_max: int  # size of the largest logical cluster that it can carry, in capacity units
    takes_tenants: bool = True  # not while too few of its brokers take new replicas


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """A tenant, and the share of its cell's capacity that it uses."""

    tenant: LogicalClusterId
    units: int  # its size in capacity units
    load: Load


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Every cell is full: the cluster has to grow by a cell first."""

    new_cell: NewCell


@dataclass(frozen=True, slots=True)
class TooLarge:
    """No cell of this cluster can carry the tenant, even if empty."""

    units: int
    units_max: int  # the largest size that fits


@dataclass(frozen=True, slots=True)
class Move:
    tenant: LogicalClusterId
    source: CellId
    target: CellId


@dataclass(frozen=True, slots=True)
class Relief:
    """The moves that bring full cells below the target; `new_cell` if moves alone cannot."""

    moves: tuple[Move, ...]
    new_cell: NewCell | None


@dataclass(frozen=True, slots=True)
class NewCell:
    """A request to expand the cluster by so many brokers, evenly over the zones."""

    brokers: int
    reason: str
    cells: tuple[CellId, ...] = ()  # the full ones


def plan_cells(
    brokers_by_zone: Mapping[Zone, Sequence[BrokerId]], size: int, existing: Sequence[Cell] = ()
) -> tuple[Cell, ...]:
    """The existing cells unchanged, plus new cells of `size` brokers formed from brokers in no cell.

    Every new cell takes equally many brokers from each zone. Brokers that do not fill a whole cell stay
    unassigned until enough others join.
    """
    zones = len(brokers_by_zone)
    if zones == 0 or size <= 0 or size % zones:
        fits = max(zones, round(size / zones) * zones) if zones else 0
        raise CellSizeUneven(size=size, zones=zones, fits=fits)
    assigned = {broker for cell in existing for broker in cell.brokers}
    free = {
        zone: sorted(broker for broker in brokers if broker not in assigned)
        for zone, brokers in brokers_by_zone.items()
    }
    per_zone = size // zones
    count = min(len(brokers) // per_zone for brokers in free.values())
    number = next_number(existing)
    new_cells = []
    for index in range(count):
        members = [b for brokers in free.values() for b in brokers[index * per_zone : (index + 1) * per_zone]]
        new_cells.append(Cell(CellId(f"cell-{number + index}"), tuple(sorted(members))))
    return (*existing, *new_cells)


def next_number(cells: Sequence[Cell]) -> int:
    """One more than the highest number in use, so that ids of existing cells stay unique."""
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
    """Where a new tenant of this size goes: the less loaded of two available cells drawn at random.

    Only measured load counts, not the quotas sold: most tenants use a small part of theirs. Of two
    equally loaded cells the one drawn first wins.
    """
    units_max = max((each.units_max for each in cells), default=0)
    if cells and units > units_max:
        return TooLarge(units, units_max)
    taking = [each for each in cells if each.takes_tenants]
    available = [each for each in taking if each.load.highest < full and each.units_max >= units]
    if not available:
        size = max((len(each.cell.brokers) for each in cells), default=0)
        reason = f"no cell is below {full:.0%} of its capacity"
        if closed := [each.cell.id for each in cells if not each.takes_tenants]:
            reason += f", except cells whose brokers take no new replicas: {', '.join(closed)}"
        return NoRoom(NewCell(size, reason))
    chosen = choose(available, min(candidates, len(available)))
    return min(chosen, key=lambda each: each.load.highest).cell


def plan_moves(
    cells: Sequence[LoadedCell],
    tenants: Mapping[CellId, Sequence[TenantLoad]],
    *,
    full: float = FULL,
    target: float = TARGET,
    resting: Collection[LogicalClusterId] = (),
    moves_max: int = MOVES_MAX,
) -> Relief:
    """Which tenants leave which full cells for which less loaded ones.

    The fullest cell comes first. A move must leave its target cell at or below `target`, so that
    relieving one cell fills no other; `target` below `full` keeps tenants from moving back and forth.
    `resting` tenants stay. The smallest tenant that brings the cell below the target leaves; if none
    does, the largest that fits elsewhere leaves, and the search continues.
    """
    assert target < full, "without a gap between them, tenants would move back and forth"
    state = {each.cell.id: each for each in cells}
    staying = set(resting)
    planned: list[Move] = []
    stuck: list[CellId] = []
    for full_cell in sorted(cells, key=lambda each: (-each.load.highest, each.cell.id)):
        source = full_cell.cell.id
        if full_cell.load.highest < full:
            break
        while state[source].load.highest > target and len(planned) < moves_max:
            choice = _next_move(state, source, tenants.get(source, ()), target, staying)
            if choice is None:
                stuck.append(source)
                break
            tenant, destination = choice
            added = _scaled_load(state[destination], tenant, full_cell)
            state[source] = replace(state[source], load=state[source].load.minus(tenant.load))
            state[destination] = replace(state[destination], load=state[destination].load.plus(added))
            staying.add(tenant.tenant)
            planned.append(Move(tenant.tenant, source, destination))
    return Relief(tuple(planned), _new_cell(stuck, state, full))


def _next_move(
    state: Mapping[CellId, LoadedCell],
    source: CellId,
    tenants: Sequence[TenantLoad],
    target: float,
    staying: Collection[LogicalClusterId],
) -> tuple[TenantLoad, CellId] | None:
    """The next tenant to leave and its destination; None if no tenant can leave."""
    full_cell = state[source]
    others = sorted(
        (each for each in state.values() if each.cell.id != source),
        key=lambda each: (each.load.highest, each.cell.id),
    )
    leaving = [each for each in tenants if each.tenant not in staying and each.load.highest > 0]
    leaving.sort(key=lambda each: (each.load.highest, each.tenant))
    enough: list[TenantLoad] = []
    less: list[TenantLoad] = []
    for tenant in leaving:
        (enough if full_cell.load.minus(tenant.load).highest <= target else less).append(tenant)
    for tenant in (*enough, *reversed(less)):
        for destination in others:
            after = destination.load.plus(_scaled_load(destination, tenant, full_cell))
            fits = destination.takes_tenants and destination.units_max >= tenant.units
            if fits and after.highest <= target:
                return tenant, destination.cell.id
    return None


def _scaled_load(destination: LoadedCell, tenant: TenantLoad, source: LoadedCell) -> Load:
    """A tenant's load as a share of another cell's capacity; cells may differ in size."""
    return tenant.load.times(len(source.cell.brokers) / len(destination.cell.brokers))


def _new_cell(stuck: Sequence[CellId], state: Mapping[CellId, LoadedCell], full: float) -> NewCell | None:
    # A cell that was brought below `full` but not to `target` can wait for the next round.
    still_full = [cell for cell in stuck if state[cell].load.highest >= full]
    if not still_full:
        return None
    size = max(len(state[cell].cell.brokers) for cell in still_full)
    reason = f"{', '.join(still_full)} full, and no other cell has room for a tenant that could leave"
    return NewCell(size, reason, tuple(still_full))
