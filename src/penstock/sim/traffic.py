"""A week of tenants' traffic, for quotas: who asks for how much, at which of its brokers, and when.

Each tenant lives on the six brokers of one cell. Assumed:
- Quotas are heavy-tailed (Pareto). Most tenants use little of theirs, some a good part of it.
- Traffic follows the day, each tenant by its own clock, wavers from minute to minute, in all and at
  each broker by itself, and spikes now and then to a multiple for some minutes.
- A part of a tenant's traffic is on hot partitions on one of its brokers, the rest is spread evenly.
  For most tenants that part is small, for some it is nearly everything. The hot broker wanders: it
  changes at random times, for some tenants rarely, for others several times a day.
- Brokers fail now and then for some minutes; what was asked of one goes to the others of its cell.

`USE_MEDIAN` is the one figure that was fitted: such that static shares, which alone were run for it, give
99.0 ± 0.2 % of tenants the objective (the paper's starting point) over `CALIBRATION_SEEDS`. All schemes
run on the population so fitted, unchanged. How it was fitted: `python -m bench.quotas --only calibration`.

How a tenant's traffic is split over its brokers is worked out only for those whom anybody asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating]
    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

DAY_SECONDS: Final = 86_400.0
USE_MEDIAN: Final = 0.0095  # of the quota: calibrated
CALIBRATION_SEEDS: Final = range(1, 21)
POINTS: Final = 6  # brokers of a cell
QUOTA_MAX: Final = 50e6  # bytes a second
CHANGE_SECONDS: Final = 60.0  # how often traffic changes, except for wandering, spikes and failures
WAVER_SECONDS: Final = 120.0  # how long a tenant's wavering remembers
NOISE_ROWS: Final = 65_521  # a prime
FAILURES_A_WEEK: Final = 0.1  # of a broker


@dataclass(frozen=True, slots=True)
class Size:
    tenants: int = 2_000
    brokers: int = 120
    days: float = 7.0
    step_seconds: float = 30.0

    @property
    def steps(self) -> int:
        return round(self.days * DAY_SECONDS / self.step_seconds)


@dataclass(slots=True)
class Tenants:
    """A population, and how it goes on from step to step."""

    size: Size
    quota: Floats
    brokers: Integers  # [tenant, point]
    mean: Floats
    swing: Floats
    phase: Floats
    skew: Floats  # part of the traffic on the hot broker
    wander: Floats  # changes of the hot broker, a second
    spiky: Floats  # spikes a second
    flutter: Floats  # how much each point wavers on its own
    chance: np.random.Generator

    @classmethod
    def born(cls, seed: int, size: Size, use_median: float = USE_MEDIAN) -> Tenants:
        chance = np.random.default_rng([seed, 20])
        count = size.tenants
        first = (np.arange(count) % (size.brokers // POINTS)) * POINTS
        return cls(
            size=size,
            quota=np.minimum((1 + chance.pareto(1.2, count)) * 1e6, QUOTA_MAX),
            brokers=first[:, None] + np.arange(POINTS),
            mean=np.minimum(chance.lognormal(np.log(use_median), 1.0, count), 0.5),
            swing=chance.uniform(0.1, 0.7, count),
            phase=chance.uniform(0, DAY_SECONDS, count),
            skew=chance.beta(0.8, 3.0, count),
            wander=chance.lognormal(np.log(0.5), 1.0, count) / DAY_SECONDS,
            spiky=chance.lognormal(np.log(0.5), 1.0, count) / DAY_SECONDS,
            flutter=chance.uniform(0.05, 0.3, count),
            chance=chance,
        )


@dataclass(frozen=True, slots=True)
class Asking:
    """One step: how much each tenant asks for, and all that says where."""

    total: Floats  # bytes a second, by tenant
    hot: Integers  # by tenant
    minute: int
    lost: Flags  # by broker


class Traffic:
    """A population's week, as it goes by."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        count, chance = tenants.size.tenants, tenants.chance
        self.now = -tenants.size.step_seconds
        self.minute = -1
        self.total = np.zeros(count)  # bytes a second that each tenant asks for now
        self.hot = chance.integers(0, POINTS, count)
        self.broken_until = np.zeros(tenants.size.brokers)
        self._level = np.ones(count)
        self._spike = np.ones(count)
        self._spike_until = np.zeros(count)
        self._waver = chance.standard_normal(count)
        self._noise = chance.standard_normal((NOISE_ROWS, POINTS))
        self._before = self._asking()

    def advance(self) -> None:
        """To the next step."""
        t = self.tenants
        chance, dt, count = t.chance, t.size.step_seconds, t.size.tenants
        self._before = self._asking()
        self.now += dt
        minute = int(self.now // CHANGE_SECONDS)
        if minute != self.minute:
            self.minute = minute
            stay = np.exp(-CHANGE_SECONDS / WAVER_SECONDS)
            self._waver = stay * self._waver + np.sqrt(1 - stay**2) * chance.standard_normal(count)
            day = 1 + t.swing * np.cos(2 * np.pi * (self.now - t.phase) / DAY_SECONDS)
            self._level = t.mean * t.quota * day * np.exp(0.15 * self._waver)
        jumps = np.flatnonzero(chance.random(count) < t.wander * dt)
        self.hot = self.hot.copy()  # the last step keeps its own
        self.hot[jumps] = chance.integers(0, POINTS, jumps.size)
        begins = np.flatnonzero(chance.random(count) < t.spiky * dt)
        self._spike[begins] = 1 + chance.exponential(1.5, begins.size)
        self._spike_until[begins] = self.now + chance.exponential(300.0, begins.size)
        fails = np.flatnonzero(chance.random(t.size.brokers) < dt * FAILURES_A_WEEK / (7 * DAY_SECONDS))
        self.broken_until[fails] = self.now + chance.uniform(120, 900, fails.size)
        self.total = np.where(self.now < self._spike_until, self._level * self._spike, self._level)

    def down(self, rows: Integers) -> Flags:
        """Which points of these tenants have lost their broker."""
        return np.asarray(self.broken_until[self.tenants.brokers[rows]] > self.now)

    def demand(self, rows: Integers) -> Floats:
        """What these tenants ask for at each point."""
        return self._split(rows, self._asking())

    def demand_before(self, rows: Integers) -> Floats:
        """What they asked for in the last step, where they asked for it then."""
        return self._split(rows, self._before)

    def _asking(self) -> Asking:
        return Asking(self.total, self.hot, self.minute, self.broken_until > self.now)

    def _split(self, rows: Integers, asking: Asking) -> Floats:
        t = self.tenants
        # Looked up by tenant and minute, so that it does not depend on who else is asked for.
        row = (rows * 7_919 + asking.minute * 104_729) % NOISE_ROWS
        part = np.exp(t.flutter[rows, None] * self._noise[row]) * ((1 - t.skew[rows]) / POINTS)[:, None]
        part[np.arange(rows.size), asking.hot[rows]] += t.skew[rows]
        if asking.lost.any():
            part[asking.lost[t.brokers[rows]]] = 0.0
        whole, total = part.sum(axis=1), asking.total[rows]
        part *= np.divide(total, whole, out=np.zeros_like(whole), where=whole > 0)[:, None]
        return np.asarray(part)


class Populations:
    """The weeks of several seeds side by side. They share nothing; worked out at once they take less time.

    Tenants of the second come after those of the first, and so do its brokers.
    """

    def __init__(self, seeds: Sequence[int], size: Size, use_median: float = USE_MEDIAN) -> None:
        self.seeds = tuple(seeds)
        self.size = size
        tenants = [Tenants.born(seed, size, use_median) for seed in self.seeds]
        self.quota = np.concatenate([each.quota for each in tenants])
        self.brokers = np.concatenate([each.brokers + size.brokers * n for n, each in enumerate(tenants)])
        self.total = np.zeros(self.quota.size)
        self._traffic = [Traffic(each) for each in tenants]
        self._lost = np.zeros(size.brokers * len(tenants), dtype=bool)

    @property
    def broken(self) -> bool:
        return bool(self._lost.any())

    def advance(self) -> None:
        """To the next step."""
        for each in self._traffic:
            each.advance()
        self.total = np.concatenate([each.total for each in self._traffic])
        self._lost = np.concatenate([each.broken_until > each.now for each in self._traffic])

    def down(self, rows: Integers) -> Flags:
        """Which points of these tenants have lost their broker."""
        return np.asarray(self._lost[self.brokers[rows]])

    def demand(self, rows: Integers) -> Floats:
        """What these tenants, in order, ask for at each point."""
        return np.concatenate([each.demand(own) for each, own in self._owned(rows)])

    def demand_before(self, rows: Integers) -> Floats:
        """What they asked for in the last step, where they asked for it then."""
        return np.concatenate([each.demand_before(own) for each, own in self._owned(rows)])

    def _owned(self, rows: Integers) -> Iterator[tuple[Traffic, Integers]]:
        """Each population, and which of its tenants these are."""
        first = np.arange(len(self.seeds) + 1) * self.size.tenants
        cuts = np.searchsorted(rows, first)
        for each, start, begin, end in zip(self._traffic, first, cuts, cuts[1:], strict=False):
            yield each, rows[begin:end] - start
