"""Relief of full cells, round by round: which tenant moves when, and when a new cell is requested."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.balance.cell_load import Load
from penstock.balance.cell_relief import (
    HOUR_SECONDS,
    ClusterSnapshot,
    Pace,
    RecentMove,
    ReliefDecision,
    relieve,
)
from penstock.balance.cells import FULL, TARGET, Cell, CellId, LoadedCell, Move, TenantLoad
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
    recent_moves: list[RecentMove] = field(default_factory=list)
    last: ReliefDecision = field(default_factory=ReliefDecision)

    def snapshot(self, loads: dict[CellId, float] | None = None) -> ClusterSnapshot:
        cells = []
        for number, (cell, inside) in enumerate(self.tenants.items()):
            brokers = tuple(BrokerId(number * 3 + n) for n in range(3))
            load = (loads or {}).get(cell, sum(inside.values()))
            cells.append(LoadedCell(Cell(cell, brokers), Load(load), 100))
        loads_by_cell = {
            cell: [TenantLoad(LogicalClusterId(name), 1, Load(load)) for name, load in inside.items()]
            for cell, inside in self.tenants.items()
        }
        return ClusterSnapshot(cells, loads_by_cell, tuple(self.recent_moves))

    def round(self, loads: dict[CellId, float] | None = None) -> ReliefDecision:
        """One round later. Moves are carried out, and take `copying_seconds`."""
        self.now += self.round_seconds
        self.recent_moves = [
            RecentMove(each.tenant, each.started, each.started + self.copying_seconds)
            if each.ended is None and self.now - each.started >= self.copying_seconds
            else each
            for each in self.recent_moves
        ]
        self.last = relieve(self.last, self.snapshot(loads), self.now, self.pace)
        if (move := self.last.move) is not None:
            self.tenants[move.target][move.tenant] = self.tenants[move.source].pop(move.tenant)
            self.recent_moves.append(RecentMove(move.tenant, self.now, None))
        return self.last

    def rounds(self, seconds: float) -> list[Move]:
        decided = [self.round().move for _ in range(int(seconds / self.round_seconds))]
        return [move for move in decided if move is not None]


def test_a_cell_that_stays_full_is_relieved_once() -> None:
    cluster = Cluster({HOT: {"large": 0.5, "small": 0.2, "tiny": 0.15}, COLD: {"other": 0.1}})

    started = cluster.rounds(1800)

    assert [(move.tenant, move.source, move.target) for move in started] == [("tiny", HOT, COLD)]
    assert cluster.last == ReliefDecision()


def test_a_brief_load_peak_moves_no_tenant() -> None:
    cluster = Cluster({HOT: {"a": 0.4, "b": 0.2}, COLD: {}})

    started = [cluster.round({HOT: load}).move for load in (0.9, 0.85, 0.6, 0.9, 0.9, 0.65)]

    assert started == [None] * 6


def test_a_full_cell_counts_as_full_until_its_load_falls_to_the_target() -> None:
    cluster = Cluster({HOT: {"a": 0.4, "b": 0.2}, COLD: {}})

    started = [cluster.round({HOT: load}).move for load in (0.85, 0.75, 0.78, 0.85)]

    assert started[:3] == [None] * 3
    assert started[3] is not None


def test_no_move_starts_while_another_runs_or_before_the_averages_settle() -> None:
    cluster = Cluster({HOT: {f"t{n}": 0.2 for n in range(7)}, COLD: {}, CellId("cell-2"): {}})

    starts = []
    for _ in range(120):
        if cluster.round().move is not None:
            starts.append(cluster.now)

    assert len(starts) > 2
    between = [after - before for before, after in pairwise(starts)]
    assert min(between) >= cluster.copying_seconds + PACE.settle_seconds


def test_the_number_of_moves_per_hour_is_bounded() -> None:
    quick = Pace(full_seconds=0, settle_seconds=0, rest_seconds=0, moves_hour_max=3)
    cluster = Cluster({HOT: {f"t{n}": 0.1 for n in range(30)}, COLD: {}, CellId("cell-2"): {}}, quick)

    assert len(cluster.rounds(HOUR_SECONDS - ROUND_SECONDS)) == 3
    assert len(cluster.rounds(HOUR_SECONDS)) == 3


def test_a_tenant_that_moved_stays_for_an_hour() -> None:
    cluster = Cluster({HOT: {"heavy": 0.3, "light": 0.2}, COLD: {}})
    cluster.recent_moves = [RecentMove(LogicalClusterId("light"), cluster.now - 600, cluster.now - 500)]

    started = [cluster.round({HOT: 0.85}).move for _ in range(5)]

    assert [move.tenant for move in started if move is not None] == ["heavy"]


def test_a_tenant_with_another_operation_running_stays() -> None:
    cluster = Cluster({HOT: {"busy": 0.3}, COLD: {}})
    snapshot = cluster.snapshot({HOT: 0.9})
    waiting = ReliefDecision({HOT: cluster.now - 60})

    free = relieve(waiting, snapshot, cluster.now)
    blocked = relieve(
        waiting,
        ClusterSnapshot(snapshot.cells, snapshot.tenants, (), {LogicalClusterId("busy")}),
        cluster.now,
    )

    assert free.move is not None
    assert blocked.move is None
    assert blocked.new_cell is None  # it can leave later


def test_a_new_cell_is_requested_until_one_has_room() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})

    cluster.rounds(60)
    needed = cluster.last.new_cell
    cluster.tenants[CellId("cell-2")] = {}
    started = cluster.rounds(600)

    assert needed is not None
    assert (needed.cells, needed.brokers) == ((HOT,), 3)
    assert [move.target for move in started] == ["cell-2"]
    assert cluster.last == ReliefDecision()


def test_a_load_that_oscillates_around_full_does_not_withdraw_the_request() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})

    needs = [cluster.round({HOT: 0.81 if n % 2 else 0.79}).new_cell is not None for n in range(20)]
    cluster.round({HOT: TARGET})

    assert needs[6:] == [True] * 14
    assert cluster.last.new_cell is None


def test_a_cluster_with_one_full_cell_needs_another() -> None:
    cluster = Cluster({HOT: {"a": 0.9}})

    cluster.rounds(60)

    assert cluster.last.new_cell is not None


def test_the_request_for_a_cell_stays_while_a_move_settles() -> None:
    cluster = Cluster({HOT: {"a": 0.5, "b": 0.4}, COLD: {"c": 0.6}})
    cluster.rounds(60)
    needed = cluster.last.new_cell
    cluster.recent_moves.append(RecentMove(LogicalClusterId("c"), cluster.now, None))

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

    started = cluster.rounds(HOUR_SECONDS * 4)
    quiet = cluster.rounds(HOUR_SECONDS)

    after = {cell: sum(inside.values()) for cell, inside in cluster.tenants.items()}
    assert all(before[move.source] >= FULL for move in started)
    assert all(after[move.target] <= TARGET + 1e-9 for move in started)
    assert quiet == [] or len(started) >= PACE.moves_hour_max
    if cluster.last.new_cell is None and not quiet:
        assert all(load < FULL for load in after.values())
