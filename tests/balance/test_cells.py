"""Cells: formed from brokers, filled with tenants, relieved when full."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cell_load import BrokerCapacity, BrokerSample, Load, cell_load
from penstock.balance.cells import (
    FULL,
    TARGET,
    Cell,
    CellId,
    LoadedCell,
    Move,
    NoRoom,
    TenantLoad,
    TooLarge,
    place,
    plan_cells,
    plan_moves,
)
from penstock.model.errors.balance import CellSizeUneven
from penstock.model.ids import BrokerId, LogicalClusterId, Zone

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPACITY = BrokerCapacity(replicas_max=1000, ingress_max=100e6, egress_max=300e6)


def zones(*counts: int) -> dict[Zone, list[BrokerId]]:
    """Brokers numbered round-robin over the zones."""
    return {
        Zone("abcdef"[zone]): [BrokerId(1 + zone + n * len(counts)) for n in range(count)]
        for zone, count in enumerate(counts)
    }


def unassigned(
    brokers: dict[Zone, list[BrokerId]], cells: tuple[Cell, ...]
) -> dict[Zone, tuple[BrokerId, ...]]:
    assigned = {broker for cell in cells for broker in cell.brokers}
    return {zone: tuple(sorted(set(members) - assigned)) for zone, members in brokers.items()}


def loaded(*loads: float, units_max: int = 100) -> list[LoadedCell]:
    return [
        LoadedCell(
            Cell(CellId(f"cell-{n}"), tuple(BrokerId(6 * n + b) for b in range(6))), Load(load), units_max
        )
        for n, load in enumerate(loads)
    ]


def tenant(name: str, load: float, units: int = 1) -> TenantLoad:
    return TenantLoad(LogicalClusterId(name), units, Load(load))


def first(cells: Sequence[LoadedCell], count: int) -> Sequence[LoadedCell]:
    return cells[:count]


def test_cells_take_equally_many_brokers_from_each_zone() -> None:
    brokers = zones(8, 8, 8)

    cells = plan_cells(brokers, 6)

    zone_of = {broker: zone for zone, members in brokers.items() for broker in members}
    assert len(cells) == 4
    assert all(Counter(zone_of[b] for b in cell.brokers) == {"a": 2, "b": 2, "c": 2} for cell in cells)
    assert len({broker for cell in cells for broker in cell.brokers}) == 24


def test_existing_cells_stay_and_new_brokers_form_new_ones() -> None:
    before = plan_cells(zones(2, 2, 2), 3)

    after = plan_cells(zones(3, 3, 3), 3, before)

    assert after[:2] == before
    assert [cell.id for cell in after] == ["cell-1", "cell-2", "cell-3"]


def test_brokers_that_do_not_fill_a_cell_stay_unassigned() -> None:
    brokers = zones(3, 2, 2)

    cells = plan_cells(brokers, 3)

    assert len(cells) == 2
    assert unassigned(brokers, cells) == {"a": (7,), "b": (), "c": ()}


@pytest.mark.parametrize("size", [0, 4, -3])
def test_a_size_that_cannot_be_spread_evenly_is_rejected_with_one_that_can(size: int) -> None:
    with pytest.raises(CellSizeUneven) as refused:
        plan_cells(zones(4, 4, 4), size)

    assert refused.value.facts["fits"] == 3


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    each=st.integers(1, 4),
    earlier=st.integers(0, 3),
)
def test_no_broker_is_ever_in_two_cells(counts: list[int], each: int, earlier: int) -> None:
    brokers = zones(*counts)
    size = each * len(counts)
    before = plan_cells({zone: members[: earlier * each] for zone, members in brokers.items()}, size)

    cells = plan_cells(brokers, size, before)

    members = [broker for cell in cells for broker in cell.brokers]
    assert len(set(members)) == len(members)
    assert len({cell.id for cell in cells}) == len(cells)
    assert min(len(left) for left in unassigned(brokers, cells).values()) < each


def test_the_load_of_a_cell_is_the_largest_of_its_three_parts() -> None:
    samples = [BrokerSample(0.2, 100, 10e6, 240e6), BrokerSample(0.4, 300, 30e6, 120e6)]

    load = cell_load(samples, CAPACITY)

    assert load.broker == pytest.approx(0.3)
    assert (load.replicas, load.bandwidth) == (0.2, 0.6)
    assert load.highest == 0.6


def test_the_less_loaded_of_two_random_cells_gets_the_tenant() -> None:
    cells = loaded(0.5, 0.2, 0.1)

    assert place(1, cells, first) == cells[1].cell


def test_equally_loaded_cells_get_equally_many_tenants() -> None:
    chance = random.Random(7)
    cells = loaded(0.0, 0.0, 0.0, 0.0)

    chosen = [place(1, cells, chance.sample) for _ in range(4000)]
    placed = Counter(cell.id for cell in chosen if isinstance(cell, Cell))

    assert all(900 < count < 1100 for count in placed.values())


def test_a_tenant_too_large_for_any_cell_is_rejected_with_the_size_that_fits() -> None:
    assert place(120, loaded(0.1, 0.1, units_max=100), first) == TooLarge(units=120, units_max=100)


def test_a_large_tenant_goes_where_it_fits_even_if_that_cell_is_fuller() -> None:
    small, large = loaded(0.1, units_max=10)[0], loaded(0.0, 0.7, units_max=100)[1]

    assert place(50, [small, large], first) == large.cell


def test_a_new_cell_is_requested_when_every_cell_is_full() -> None:
    result = place(1, loaded(FULL, 0.9), first)

    assert isinstance(result, NoRoom)
    assert result.new_cell.brokers == 6


def test_cells_may_be_oversubscribed_fivefold_while_measured_load_is_low() -> None:
    chance = random.Random(3)
    cells = loaded(0.1, 0.1, 0.1, units_max=10)  # three cells of ten units each

    sold = [place(10, cells, chance.sample) for _ in range(15)]

    assert all(isinstance(each, Cell) for each in sold)  # 150 units on 30


def test_the_smallest_tenant_that_brings_a_full_cell_below_the_target_leaves() -> None:
    cells = loaded(0.85, 0.3)
    tenants = {CellId("cell-0"): [tenant("big", 0.5), tenant("middle", 0.2), tenant("small", 0.1)]}

    relief = plan_moves(cells, tenants)

    assert relief.moves == (Move(LogicalClusterId("middle"), CellId("cell-0"), CellId("cell-1")),)
    assert relief.new_cell is None


def test_several_tenants_leave_when_no_single_one_is_large_enough() -> None:
    cells = loaded(0.9, 0.2, 0.1)
    tenants = {CellId("cell-0"): [tenant(f"t{n}", 0.09) for n in range(10)]}

    relief = plan_moves(cells, tenants)

    assert len(relief.moves) == 3
    assert {move.target for move in relief.moves} == {"cell-1", "cell-2"}


def test_no_tenant_leaves_a_cell_below_full() -> None:
    cells = loaded(FULL - 0.01, 0.1)

    assert plan_moves(cells, {CellId("cell-0"): [tenant("t", 0.3)]}).moves == ()


def test_a_tenant_that_moved_recently_stays() -> None:
    cells = loaded(0.9, 0.1)
    tenants = {CellId("cell-0"): [tenant("fresh", 0.3), tenant("old", 0.4)]}

    relief = plan_moves(cells, tenants, resting={LogicalClusterId("fresh")})

    assert [move.tenant for move in relief.moves] == ["old"]


def test_a_new_cell_is_requested_when_no_other_has_room() -> None:
    cells = loaded(0.95, 0.69, 0.65)
    tenants = {CellId("cell-0"): [tenant("t", 0.3), tenant("u", 0.2)]}

    relief = plan_moves(cells, tenants)

    assert relief.moves == ()
    assert relief.new_cell is not None
    assert relief.new_cell.brokers == 6


def test_a_tenant_is_not_moved_to_a_cell_too_small_for_its_size() -> None:
    full_cell = loaded(0.9, units_max=100)[0]
    small = loaded(0.0, 0.1, units_max=10)[1]

    relief = plan_moves([full_cell, small], {CellId("cell-0"): [tenant("large", 0.3, units=50)]})

    assert relief.moves == ()


def test_a_tenant_is_a_larger_share_of_a_smaller_cell() -> None:
    full_cell = loaded(0.9)[0]
    half = LoadedCell(Cell(CellId("cell-9"), (BrokerId(1), BrokerId(2), BrokerId(3))), Load(0.2), 100)

    relief = plan_moves([full_cell, half], {CellId("cell-0"): [tenant("t", 0.3)]})  # 0.6 of the smaller one

    assert relief.moves == ()


@given(
    loads=st.lists(st.lists(st.floats(0.001, 0.4), max_size=12), min_size=1, max_size=8),
    chance=st.randoms(use_true_random=False),
)
def test_moves_never_fill_a_cell_and_never_move_a_tenant_twice(
    loads: list[list[float]], chance: random.Random
) -> None:
    tenants = {
        CellId(f"cell-{n}"): [tenant(f"lkc-{n}-{t}", load) for t, load in enumerate(members)]
        for n, members in enumerate(loads)
    }
    cells = loaded(*(sum(members) for members in loads))
    chance.shuffle(cells)

    relief = plan_moves(cells, tenants)

    load_of = {each.tenant: each.load.highest for members in tenants.values() for each in members}
    after = {each.cell.id: each.load.highest for each in cells}
    before = dict(after)
    for move in relief.moves:
        after[move.source] -= load_of[move.tenant]
        after[move.target] += load_of[move.tenant]
    assert len({move.tenant for move in relief.moves}) == len(relief.moves)
    assert all(before[move.source] >= FULL for move in relief.moves)
    assert all(after[move.target] <= TARGET + 1e-9 for move in relief.moves)
    assert relief.new_cell is not None or all(load < FULL + 1e-9 for load in after.values())
