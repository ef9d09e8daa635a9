"""Relief as rounds: given what was seen round after round, who moves when, and when a cell is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cells import FULL, TARGET, Cell, CellId, LoadedCell, Move, TenantUse
from penstock.balance.load import Load
from penstock.balance.relief import HOUR_SECONDS, Pace, PastMove, Round, Seen, relieve
from penstock.model.ids import BrokerId, LogicalClusterId

PACE = Pace()
ROUND_SECONDS = 10.0
HOT, COLD = CellId("cell-0"), CellId("cell-1")


@dataclass
class Cluster:
    """Tenants in cells of three brokers; a cell's load is the sum of theirs."""

    tenants: dict[CellId, dict[str, float]]
    pace: Pace = PACE
    now: float = 1_000_000.0
    copying_seconds: float = 40.0
    round_seconds: float = ROUND_SECONDS
    past: list[PastMove] = field(default_factory=list)
    last: Round = field(default_factory=Round)

    def seen(self, loads: dict[CellId, float] | None = None) -> Seen:
        cells = []
        for number, (cell, inside) in enumerate(self.tenants.items()):
            brokers = tuple(BrokerId(number * 3 + n) for n in range(3))
            load = (loads or {}).get(cell, sum(inside.values()))
            cells.append(LoadedCell(Cell(cell, brokers), Load(load), 100))
        uses = {
            cell: [TenantUse(LogicalClusterId(name), 1, Load(load)) for name, load in inside.items()]
            for cell, inside in self.tenants.items()
        }
        return Seen(cells, uses, tuple(self.past))

    def round(self, loads: dict[CellId, float] | None = None) -> Round:
        """A while later. What is decided is carried out, and takes its time."""
        self.now += self.round_seconds
        self.past = [
            PastMove(each.tenant, each.began, each.began + self.copying_seconds)
            if each.ended is None and self.now - each.began >= self.copying_seconds
            else each
            for each in self.past
        ]
        self.last = relieve(self.last, self.seen(loads), self.now, self.pace)
        if (move := self.last.move) is not None:
            self.tenants[move.target][move.tenant] = self.tenants[move.source].pop(move.tenant)
            self.past.append(PastMove(move.tenant, self.now, None))
        return self.last

    def rounds(self, seconds: float) -> list[Move]:
        found = [self.round().move for _ in range(int(seconds / self.round_seconds))]
        return [move for move in found if move is not None]


def test_a_cell_that_stays_full_is_relieved_once() -> None:
    cluster = Cluster({HOT: {"large": 0.5, "small": 0.2, "tiny": 0.15}, COLD: {"other": 0.1}})

    begun = cluster.rounds(1800)

    assert [(move.tenant, move.source, move.target) for move in begun] == [("tiny", HOT, COLD)]
    assert cluster.last == Round()


def test_a_moment_above_the_mark_moves_nobody() -> None:
    cluster = Cluster({HOT: {"a": 0.4, "b": 0.2}, COLD: {}})

    begun = [cluster.round({HOT: load}).move for load in (0.9, 0.85, 0.6, 0.9, 0.9, 0.65)]

    assert begun == [None] * 6


def test_between_the_marks_a_full_cell_counts_as_full_still() -> None:
    cluster = Cluster({HOT: {"a": 0.4, "b": 0.2}, COLD: {}})

    begun = [cluster.round({HOT: load}).move for load in (0.85, 0.75, 0.78, 0.85)]

    assert begun[:3] == [None] * 3
    assert begun[3] is not None


def test_nothing_begins_while_a_move_is_under_way_nor_until_averages_show_it() -> None:
    cluster = Cluster({HOT: {f"t{n}": 0.2 for n in range(7)}, COLD: {}, CellId("cell-2"): {}})

    begins = []
    for _ in range(120):
        if cluster.round().move is not None:
            begins.append(cluster.now)

    assert len(begins) > 2
    between = [after - before for before, after in pairwise(begins)]
    assert min(between) >= cluster.copying_seconds + PACE.settle_seconds


def test_an_hour_sees_a_bounded_number_of_moves() -> None:
    quick = Pace(full_seconds=0, settle_seconds=0, rest_seconds=0, moves_hour_max=3)
    cluster = Cluster({HOT: {f"t{n}": 0.1 for n in range(30)}, COLD: {}, CellId("cell-2"): {}}, quick)

    assert len(cluster.rounds(HOUR_SECONDS - ROUND_SECONDS)) == 3
    assert len(cluster.rounds(HOUR_SECONDS)) == 3


def test_a_tenant_that_moved_stays_for_an_hour() -> None:
    cluster = Cluster({HOT: {"heavy": 0.3, "light": 0.2}, COLD: {}})
    cluster.past = [PastMove(LogicalClusterId("light"), cluster.now - 600, cluster.now - 500)]

    begun = [cluster.round({HOT: 0.85}).move for _ in range(5)]

    assert [move.tenant for move in begun if move is not None] == ["heavy"]


def test_one_with_something_else_under_way_stays() -> None:
    cluster = Cluster({HOT: {"busy": 0.3}, COLD: {}})
    seen = cluster.seen({HOT: 0.9})
    waiting = Round({HOT: cluster.now - 60})

    free = relieve(waiting, seen, cluster.now)
    held = relieve(waiting, Seen(seen.cells, seen.tenants, (), {LogicalClusterId("busy")}), cluster.now)

    assert free.move is not None
    assert held.move is None
    assert held.new_cell is None  # it can leave later


def test_when_no_cell_has_room_a_new_one_is_needed_until_there_is() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})

    cluster.rounds(60)
    needed = cluster.last.new_cell
    cluster.tenants[CellId("cell-2")] = {}
    begun = cluster.rounds(600)

    assert needed is not None
    assert (needed.cells, needed.brokers) == ((HOT,), 3)
    assert [move.target for move in begun] == ["cell-2"]
    assert cluster.last == Round()


def test_a_load_that_wavers_about_the_mark_does_not_take_the_need_back() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})

    needs = [cluster.round({HOT: 0.81 if n % 2 else 0.79}).new_cell is not None for n in range(20)]
    cluster.round({HOT: TARGET})

    assert needs[6:] == [True] * 14
    assert cluster.last.new_cell is None


def test_a_single_cell_that_is_full_needs_another() -> None:
    cluster = Cluster({HOT: {"a": 0.9}})

    cluster.rounds(60)

    assert cluster.last.new_cell is not None


def test_what_is_needed_stays_while_a_move_settles() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})
    cluster.rounds(60)
    needed = cluster.last.new_cell
    cluster.past.append(PastMove(LogicalClusterId("c"), cluster.now, None))

    assert cluster.round().new_cell == needed


@given(
    loads=st.lists(st.lists(st.floats(0.01, 0.4), max_size=8), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
)
def test_rounds_come_to_rest_and_fill_no_cell(loads: list[list[float]], seed: int) -> None:
    chance = random.Random(seed)
    tenants = {
        CellId(f"cell-{n}"): {f"lkc-{n}-{t}": load for t, load in enumerate(members)}
        for n, members in enumerate(loads)
    }
    before = {cell: sum(inside.values()) for cell, inside in tenants.items()}
    cluster = Cluster(tenants, copying_seconds=chance.uniform(1, 300), round_seconds=400.0)

    begun = cluster.rounds(HOUR_SECONDS * 4)
    quiet = cluster.rounds(HOUR_SECONDS)

    after = {cell: sum(inside.values()) for cell, inside in cluster.tenants.items()}
    assert all(before[move.source] >= FULL for move in begun)
    assert all(after[move.target] <= TARGET + 1e-9 for move in begun)
    assert quiet == [] or len(begun) >= PACE.moves_hour_max
    if cluster.last.new_cell is None and not quiet:
        assert all(load < FULL for load in after.values())
