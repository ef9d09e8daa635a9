"""A month of tenants coming, growing and leaving: how evenly do cells fill, and how many must move?

Every tenant's traffic is fixed by the seed; only where it is put differs between the policies. All
are `penstock.balance.cells.place`, looking at one cell (random), at two (ours) or at all of them
(least loaded). Assumed:
- Sizes are log-normal, spread so that the largest tenth carries most of the load; none is larger
  than the largest logical cluster allowed on a cell.
- A tenant's load is nothing at first and grows to its size within days: nobody knows it when the
  tenant is placed. It follows the day, each tenant by its own clock, wavers, and spikes now and then.
- Tenants come in waves, most of them in working hours; some leave for good.
- Placement sees what was measured over the last hour; those who come within one hour all see the same.
- A move is done within the hour in which it is decided, and a tenant that moved rests for a day. A
  new cell is there a few hours after it was asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.cells import FULL, TARGET, Cell, CellId, LoadedCell, TenantUse, moves, place
from penstock.balance.load import Load
from penstock.model.ids import BrokerId, LogicalClusterId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

HOURS_OF_A_DAY: Final = 24
NOWHERE: Final = -1  # not placed yet, or gone
UNITS_MAX: Final = 100
REST_HOURS: Final = 24
NEW_CELL_HOURS: Final = 6
WARM_HOURS: Final = 7 * HOURS_OF_A_DAY  # before, cells are too empty for ratios to mean much
ANY_LOAD: Final = 1e9  # as `full`: placement never refuses


@dataclass(frozen=True, slots=True)
class Setting:
    """The size of the matter."""

    tenants: int = 10_000
    days: int = 30
    cells: int = 40
    brokers_per_cell: int = 6
    mean_load: float = 0.45  # of all cells at the end, if nobody left

    @property
    def hours(self) -> int:
        return self.days * HOURS_OF_A_DAY


@dataclass(frozen=True, slots=True)
class Population:
    """By tenant; loads are parts of one cell's capacity."""

    arrives: Integers  # hour
    leaves: Integers
    size: Floats
    ramp_hours: Floats
    phase: Floats
    swing: Floats  # of the day, as a part of the mean
    shape: Floats  # [tenant, 3]: broker, replicas and bandwidth load for one unit of size
    spikes: Mapping[int, Integers]  # hour → who


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    candidates: int  # cells looked at; 0: all of them
    moving: bool  # whether full cells are relieved, and new ones made


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
    hours_full: float  # part of all cell-hours at or above `FULL`
    moves: int
    cells: int  # at the end


def population(seed: int, setting: Setting) -> Population:
    chance = np.random.default_rng([seed, 1])
    count, hours = setting.tenants, setting.hours
    last = int(hours * 0.8)
    # Waves: some days bring many times what others do; nights bring little.
    day_weight = chance.lognormal(0.0, 0.8, setting.days)
    hour_of_day = np.arange(hours) % HOURS_OF_A_DAY
    weight = day_weight[np.arange(hours) // HOURS_OF_A_DAY] * np.where(abs(hour_of_day - 13) <= 5, 1.0, 0.15)
    weight[last:] = 0
    arrives = np.sort(chance.choice(hours, size=count, p=weight / weight.sum()))
    stays = chance.exponential(60 * HOURS_OF_A_DAY, count)
    size = chance.lognormal(0.0, 1.8, count)
    size *= setting.mean_load * setting.cells / size.sum()
    size = np.minimum(size, 0.5)
    shape = chance.lognormal(-0.15, 0.5, (count, 3))
    spiking = {hour: chance.integers(0, count, chance.poisson(count * 0.002)) for hour in range(hours)}
    return Population(
        arrives=arrives,
        leaves=arrives + np.maximum(1, stays).astype(np.int64),
        size=size,
        ramp_hours=chance.lognormal(3.6, 0.7, count),  # a day and a half, give or take
        phase=chance.choice([6.0, 14.0, 21.0], count) + chance.normal(0, 2, count),
        swing=chance.uniform(0.1, 0.9, count),
        shape=shape,
        spikes=spiking,
    )


def loads_at(people: Population, hour: int, chance: np.random.Generator) -> Floats:
    """[tenant, 3] in this hour; nothing for those who are not there."""
    age = hour - people.arrives
    there = (age >= 0) & (hour < people.leaves)
    grown = np.clip(age / people.ramp_hours, 0.0, 1.0)
    day = 1 + people.swing * np.cos(2 * np.pi * (hour - people.phase) / HOURS_OF_A_DAY)
    now = people.size * grown * day * chance.lognormal(-0.02, 0.2, people.size.size)
    now[people.spikes[hour]] *= 4
    use = np.minimum(now, 0.6)[:, None] * people.shape
    use[:, 1] = (
        people.size * np.clip(age / people.ramp_hours, 0.1, 1.0) * people.shape[:, 1]
    )  # partitions stay
    return np.where(there[:, None], use, 0.0)


class Cluster:
    """Where everybody is, under one policy."""

    def __init__(self, policy: Policy, people: Population, setting: Setting, seed: int) -> None:
        self.policy = policy
        self.people = people
        self.setting = setting
        self.home = np.full(setting.tenants, NOWHERE, dtype=np.int64)
        self.cells = [self._cell(number) for number in range(setting.cells)]
        self.measured = [Load()] * setting.cells
        self.rest_until: dict[int, int] = {}
        self.ordered: list[int] = []  # hours at which new cells will be there
        self.moves = 0
        self._chance = random.Random(f"{seed} {policy.name}")

    def admit(self, hour: int) -> None:
        """Place those who come in this hour; all see the same measurement."""
        cells = self._loaded()
        full = FULL if self.policy.moving else ANY_LOAD
        candidates = self.policy.candidates or len(cells)
        for tenant in np.flatnonzero(self.people.arrives == hour):
            found = place(1, cells, self._chance.sample, full=full, candidates=candidates)
            if not isinstance(found, Cell):  # nothing is below `full`: as the operator would, take the best
                self._order(hour)
                found = min(cells, key=lambda each: each.load.highest).cell
            self.home[tenant] = _number(found.id)

    def measure(self, use: Floats, hour: int) -> Floats:
        """Highest part of each cell's load, in this hour."""
        self.home[self.people.leaves <= hour] = NOWHERE
        there = self.home >= 0
        sums = np.stack(
            [np.bincount(self.home[there], use[there, part], len(self.cells)) for part in range(3)], axis=1
        )
        self.measured = [Load(*map(float, row)) for row in sums]
        return np.asarray(sums.max(axis=1))

    def relieve(self, use: Floats, hour: int) -> None:
        """Let those leave whom `moves` names; order a cell when it asks for one."""
        while self.ordered and self.ordered[0] <= hour:
            self.ordered.pop(0)
            self.cells.append(self._cell(len(self.cells)))
            self.measured.append(Load())
        full = [number for number, load in enumerate(self.measured) if load.highest >= FULL]
        if not full:
            return
        tenants = {self.cells[number].id: self._uses(number, use) for number in full}
        resting = {_name(tenant) for tenant, until in self.rest_until.items() if until > hour}
        relief = moves(self._loaded(), tenants, full=FULL, target=TARGET, resting=resting)
        for move in relief.moves:
            tenant = int(move.tenant)
            self.home[tenant] = _number(move.target)
            self.rest_until[tenant] = hour + REST_HOURS
        self.moves += len(relief.moves)
        if relief.new_cell is not None:
            self._order(hour)

    def _order(self, hour: int) -> None:
        if not self.ordered:  # one at a time: the next round sees whether it was enough
            self.ordered.append(hour + NEW_CELL_HOURS)

    def _uses(self, number: int, use: Floats) -> list[TenantUse]:
        return [
            TenantUse(_name(tenant), 1, Load(*map(float, use[tenant])))
            for tenant in np.flatnonzero(self.home == number).tolist()
        ]

    def _loaded(self) -> list[LoadedCell]:
        return [LoadedCell(cell, load, UNITS_MAX) for cell, load in zip(self.cells, self.measured)]

    def _cell(self, number: int) -> Cell:
        each = self.setting.brokers_per_cell
        return Cell(CellId(f"cell-{number}"), tuple(BrokerId(number * each + b) for b in range(each)))


def simulate(seed: int, policy: Policy, setting: Setting) -> Outcome:
    """One policy's month."""
    people = population(seed, setting)
    chance = np.random.default_rng([seed, 2])
    cluster = Cluster(policy, people, setting, seed)
    ratios, hottest, full, cell_hours = [], 0.0, 0, 0
    for hour in range(setting.hours):
        cluster.admit(hour)
        use = loads_at(people, hour, chance)
        loads = cluster.measure(use, hour)
        hottest = max(hottest, float(loads.max()))
        full += int((loads >= FULL).sum())
        cell_hours += len(loads)
        if hour >= min(WARM_HOURS, setting.hours // 2):
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
