"""A month of tenants arriving, growing and leaving: how evenly do cells fill, and how many tenants move?

The seed fixes every tenant's traffic; policies differ only in placement. All use
`penstock.balance.cells.place`, with one candidate cell (random), two (the platform's policy) or all of
them (least loaded). Assumptions:
- Sizes are log-normal, so that the largest tenth carries most of the load, and fit on one cell.
- A tenant's load starts at zero and grows to its size within days, so it is unknown at placement. It
  follows the time of day with a phase for each tenant, fluctuates, and spikes occasionally.
- Tenants arrive in waves, mostly in working hours; some leave for good.
- Placement uses the measurements of the last hour; all arrivals of one hour see the same ones.
- A move takes effect in the hour it is decided, and the tenant then rests for a day. A new cell is ready
  a few hours after it was requested.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.cell_load import Load
from penstock.balance.cells import FULL, TARGET, Cell, CellId, LoadedCell, TenantLoad, place, plan_moves
from penstock.model.ids import BrokerId, LogicalClusterId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

HOURS_OF_A_DAY: Final = 24
NOWHERE: Final = -1  # not placed yet, or left
UNITS_MAX: Final = 100
REST_HOURS: Final = 24
NEW_CELL_HOURS: Final = 6
WARM_HOURS: Final = 7 * HOURS_OF_A_DAY  # before that, cells are too empty for meaningful ratios
ANY_LOAD: Final = 1e9  # as `full`: placement always succeeds


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of the simulation."""

    tenants: int = 10_000
    days: int = 30
    cells: int = 40
    brokers_per_cell: int = 6
    mean_load: float = 0.45  # of all cells at the end, if no tenant left

    @property
    def hours(self) -> int:
        return self.days * HOURS_OF_A_DAY


@dataclass(frozen=True, slots=True)
class Population:
    """By tenant; loads are shares of one cell's capacity."""

    arrives: Integers  # hour
    leaves: Integers
    size: Floats
    ramp_hours: Floats
    phase: Floats
    swing: Floats  # amplitude over the day, relative to the mean
    shape: Floats  # [tenant, 3]: broker, replicas and bandwidth load for one unit of size
    spikes: Mapping[int, Integers]  # hour → tenants


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    candidates: int  # cells compared; 0: all of them
    moving: bool  # whether full cells are relieved and new ones added


POLICIES: Final = (
    Policy("random", 1, moving=False),
    Policy("two choices", 2, moving=False),
    Policy("least loaded", 0, moving=False),
    Policy("random, moves", 1, moving=True),
    Policy("two choices, moves", 2, moving=True),
    Policy("least loaded, moves", 0, moving=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    policy: Policy
    hottest_to_mean: float  # median over the hours
    hottest_to_mean_p99: float
    hottest: float  # highest load of any cell in any hour
    hours_full: float  # share of all cell-hours at or above `FULL`
    moves: int
    cells: int  # at the end


def generate_population(seed: int, scale: Scale) -> Population:
    rng = np.random.default_rng([seed, 1])
    count, hours = scale.tenants, scale.hours
    last = int(hours * 0.8)
    # Waves: some days have many times the arrivals of others; nights have few.
    day_weight = rng.lognormal(0.0, 0.8, scale.days)
    hour_of_day = np.arange(hours) % HOURS_OF_A_DAY
    weight = day_weight[np.arange(hours) // HOURS_OF_A_DAY] * np.where(abs(hour_of_day - 13) <= 5, 1.0, 0.15)
    weight[last:] = 0
    arrives = np.sort(rng.choice(hours, size=count, p=weight / weight.sum()))
    stays = rng.exponential(60 * HOURS_OF_A_DAY, count)
    size = rng.lognormal(0.0, 1.8, count)
    size *= scale.mean_load * scale.cells / size.sum()
    size = np.minimum(size, 0.5)
    shape = rng.lognormal(-0.15, 0.5, (count, 3))
    spiking = {hour: rng.integers(0, count, rng.poisson(count * 0.002)) for hour in range(hours)}
    return Population(
        arrives=arrives,
        leaves=arrives + np.maximum(1, stays).astype(np.int64),
        size=size,
        ramp_hours=rng.lognormal(3.6, 0.7, count),  # about a day and a half
        phase=rng.choice([6.0, 14.0, 21.0], count) + rng.normal(0, 2, count),
        swing=rng.uniform(0.1, 0.9, count),
        shape=shape,
        spikes=spiking,
    )


def loads_at(population: Population, hour: int, rng: np.random.Generator) -> Floats:
    """[tenant, 3] in this hour; zero for absent tenants."""
    age = hour - population.arrives
    present = (age >= 0) & (hour < population.leaves)
    grown = np.clip(age / population.ramp_hours, 0.0, 1.0)
    day = 1 + population.swing * np.cos(2 * np.pi * (hour - population.phase) / HOURS_OF_A_DAY)
    now = population.size * grown * day * rng.lognormal(-0.02, 0.2, population.size.size)
    now[population.spikes[hour]] *= 4
    use = np.minimum(now, 0.6)[:, None] * population.shape
    created = np.clip(age / population.ramp_hours, 0.1, 1.0)  # partitions stay
    use[:, 1] = population.size * created * population.shape[:, 1]
    return np.where(present[:, None], use, 0.0)


class Cluster:
    """Where every tenant is, under one policy."""

    def __init__(self, policy: Policy, population: Population, scale: Scale, seed: int) -> None:
        self.policy = policy
        self.population = population
        self.scale = scale
        self.cell_of = np.full(scale.tenants, NOWHERE, dtype=np.int64)
        self.cells = [self._cell(number) for number in range(scale.cells)]
        self.measured = [Load()] * scale.cells
        self.rest_until: dict[int, int] = {}
        self.ordered: list[int] = []  # hours at which new cells will be ready
        self.moves = 0
        self._rng = random.Random(f"{seed} {policy.name}")

    def admit(self, hour: int) -> None:
        """Places the arrivals of this hour; all see the same measurements."""
        cells = self._loaded()
        full = FULL if self.policy.moving else ANY_LOAD
        candidates = self.policy.candidates or len(cells)
        for tenant in np.flatnonzero(self.population.arrives == hour):
            result = place(1, cells, self._rng.sample, full=full, candidates=candidates)
            if not isinstance(result, Cell):  # every cell is full: like an operator, take the least loaded
                self._order(hour)
                result = min(cells, key=lambda each: each.load.highest).cell
            self.cell_of[tenant] = _number(result.id)

    def measure(self, use: Floats, hour: int) -> Floats:
        """The load of each cell in this hour."""
        self.cell_of[self.population.leaves <= hour] = NOWHERE
        placed = self.cell_of >= 0
        cells, count = self.cell_of[placed], len(self.cells)
        sums = np.stack([np.bincount(cells, use[placed, resource], count) for resource in range(3)], axis=1)
        self.measured = [Load(*map(float, row)) for row in sums]
        return np.asarray(sums.max(axis=1))

    def relieve(self, use: Floats, hour: int) -> None:
        """Carries out the moves of `plan_moves`, and orders a new cell if it requests one."""
        while self.ordered and self.ordered[0] <= hour:
            self.ordered.pop(0)
            self.cells.append(self._cell(len(self.cells)))
            self.measured.append(Load())
        full = [number for number, load in enumerate(self.measured) if load.highest >= FULL]
        if not full:
            return
        tenants = {self.cells[number].id: self._uses(number, use) for number in full}
        resting = {_name(tenant) for tenant, until in self.rest_until.items() if until > hour}
        relief = plan_moves(self._loaded(), tenants, full=FULL, target=TARGET, resting=resting)
        for move in relief.moves:
            tenant = int(move.tenant)
            self.cell_of[tenant] = _number(move.target)
            self.rest_until[tenant] = hour + REST_HOURS
        self.moves += len(relief.moves)
        if relief.new_cell is not None:
            self._order(hour)

    def _order(self, hour: int) -> None:
        if not self.ordered:  # one at a time: the next round checks whether it was enough
            self.ordered.append(hour + NEW_CELL_HOURS)

    def _uses(self, number: int, use: Floats) -> list[TenantLoad]:
        return [
            TenantLoad(_name(tenant), 1, Load(*map(float, use[tenant])))
            for tenant in np.flatnonzero(self.cell_of == number).tolist()
        ]

    def _loaded(self) -> list[LoadedCell]:
        return [LoadedCell(cell, load, UNITS_MAX) for cell, load in zip(self.cells, self.measured)]

    def _cell(self, number: int) -> Cell:
        each = self.scale.brokers_per_cell
        return Cell(CellId(f"cell-{number}"), tuple(BrokerId(number * each + b) for b in range(each)))


def simulate(seed: int, policy: Policy, scale: Scale) -> Outcome:
    """A month under one policy."""
    population = generate_population(seed, scale)
    rng = np.random.default_rng([seed, 2])
    cluster = Cluster(policy, population, scale, seed)
    ratios, hottest, full, cell_hours = [], 0.0, 0, 0
    for hour in range(scale.hours):
        cluster.admit(hour)
        use = loads_at(population, hour, rng)
        loads = cluster.measure(use, hour)
        hottest = max(hottest, float(loads.max()))
        full += int((loads >= FULL).sum())
        cell_hours += len(loads)
        if hour >= min(WARM_HOURS, scale.hours // 2):
            ratios.append(float(loads.max() / loads.mean()))
        if policy.moving:
            cluster.relieve(use, hour)
    return Outcome(
        policy=policy,
        hottest_to_mean=float(np.median(ratios)),
        hottest_to_mean_p99=float(np.percentile(ratios, 99)),
        hottest=hottest,
        hours_full=full / cell_hours,
        moves=cluster.moves,
        cells=len(cluster.cells),
    )


def _name(tenant: int) -> LogicalClusterId:
    return LogicalClusterId(str(tenant))


def _number(cell: CellId) -> int:
    return int(cell.rpartition("-")[2])
