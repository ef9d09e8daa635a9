"""Generates a week of tenants' traffic: how much each tenant sends, at which of its brokers, and when.

Each tenant lives on the six brokers of one cell. Assumptions:
- Quotas are heavy-tailed (Pareto). Most tenants use little of theirs, some a good part of it.
- Traffic follows the time of day with a phase for each tenant. It fluctuates from minute to minute, in
  total and at each broker, and occasionally spikes to a multiple for some minutes.
- A part of a tenant's traffic is on hot partitions of one broker; the rest is spread evenly. For most
  tenants that part is small, for some it is nearly everything. The hot broker changes at random times,
  for some tenants rarely, for others several times a day.
- Brokers occasionally fail for some minutes; their traffic goes to the other brokers of the cell.

`USE_MEDIAN` is the one fitted parameter: it was chosen, with static shares only, so that 99.0 ± 0.2 % of
tenants meet the objective (the paper's starting point) over `CALIBRATION_SEEDS`. All schemes run on the
same population. To repeat the fit: `python -m bench.quotas --only calibration`.
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
USE_MEDIAN: Final = 0.0095  # of the quota; fitted
CALIBRATION_SEEDS: Final = range(1, 21)
CELL_BROKERS: Final = 6  # brokers of a cell
QUOTA_MAX: Final = 50e6  # bytes a second
CHANGE_SECONDS: Final = 60.0  # between two changes of traffic, except for hot brokers, spikes and failures
CORRELATION_SECONDS: Final = 120.0  # of a tenant's fluctuations
NOISE_ROWS: Final = 65_521  # a prime
FAILURES_PER_WEEK: Final = 0.1  # of a broker


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
    """The parameters of a population."""

    size: Size
    quota: Floats
    brokers: Integers  # [tenant, position in its cell]
    mean: Floats
    swing: Floats
    phase: Floats
    skew: Floats  # share of the traffic on the hot broker
    moves_per_second: Floats  # changes of the hot broker
    spikes_per_second: Floats
    jitter: Floats  # how much the traffic at each broker fluctuates
    rng: np.random.Generator

    @classmethod
    def generate(cls, seed: int, size: Size, use_median: float = USE_MEDIAN) -> Tenants:
        rng = np.random.default_rng([seed, 20])
        count = size.tenants
        first = (np.arange(count) % (size.brokers // CELL_BROKERS)) * CELL_BROKERS
        return cls(
            size=size,
            quota=np.minimum((1 + rng.pareto(1.2, count)) * 1e6, QUOTA_MAX),
            brokers=first[:, None] + np.arange(CELL_BROKERS),
            mean=np.minimum(rng.lognormal(np.log(use_median), 1.0, count), 0.5),
            swing=rng.uniform(0.1, 0.7, count),
            phase=rng.uniform(0, DAY_SECONDS, count),
            skew=rng.beta(0.8, 3.0, count),
            moves_per_second=rng.lognormal(np.log(0.5), 1.0, count) / DAY_SECONDS,
            spikes_per_second=rng.lognormal(np.log(0.5), 1.0, count) / DAY_SECONDS,
            jitter=rng.uniform(0.05, 0.3, count),
            rng=rng,
        )


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """One step: each tenant's total traffic, and what determines its split over brokers."""

    total: Floats  # bytes per second, by tenant
    hot: Integers  # by tenant
    minute: int
    lost: Flags  # by broker


class Traffic:
    """A population's week, step by step."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        count, rng = tenants.size.tenants, tenants.rng
        self.now = -tenants.size.step_seconds
        self.minute = -1
        self.total = np.zeros(count)  # bytes per second, by tenant
        self.hot = rng.integers(0, CELL_BROKERS, count)
        self.broken_until = np.zeros(tenants.size.brokers)
        self._level = np.ones(count)
        self._spike = np.ones(count)
        self._spike_until = np.zeros(count)
        self._fluctuation = rng.standard_normal(count)
        self._noise = rng.standard_normal((NOISE_ROWS, CELL_BROKERS))
        self._before = self._current()

    def advance(self) -> None:
        """Advances to the next step."""
        t = self.tenants
        rng, dt, count = t.rng, t.size.step_seconds, t.size.tenants
        self._before = self._current()
        self.now += dt
        minute = int(self.now // CHANGE_SECONDS)
        if minute != self.minute:
            self.minute = minute
            stay = np.exp(-CHANGE_SECONDS / CORRELATION_SECONDS)
            self._fluctuation = stay * self._fluctuation + np.sqrt(1 - stay**2) * rng.standard_normal(count)
            day = 1 + t.swing * np.cos(2 * np.pi * (self.now - t.phase) / DAY_SECONDS)
            self._level = t.mean * t.quota * day * np.exp(0.15 * self._fluctuation)
        moved = np.flatnonzero(rng.random(count) < t.moves_per_second * dt)
        self.hot = self.hot.copy()  # the previous step keeps its array
        self.hot[moved] = rng.integers(0, CELL_BROKERS, moved.size)
        spiking = np.flatnonzero(rng.random(count) < t.spikes_per_second * dt)
        self._spike[spiking] = 1 + rng.exponential(1.5, spiking.size)
        self._spike_until[spiking] = self.now + rng.exponential(300.0, spiking.size)
        failing = np.flatnonzero(rng.random(t.size.brokers) < dt * FAILURES_PER_WEEK / (7 * DAY_SECONDS))
        self.broken_until[failing] = self.now + rng.uniform(120, 900, failing.size)
        self.total = np.where(self.now < self._spike_until, self._level * self._spike, self._level)

    def down(self, rows: Integers) -> Flags:
        """[tenant, broker]: which brokers of these tenants are down."""
        return np.asarray(self.broken_until[self.tenants.brokers[rows]] > self.now)

    def demand(self, rows: Integers) -> Floats:
        """[tenant, broker]: the traffic of these tenants."""
        return self._split(rows, self._current())

    def demand_before(self, rows: Integers) -> Floats:
        """[tenant, broker]: their traffic in the previous step."""
        return self._split(rows, self._before)

    def _current(self) -> StepTraffic:
        return StepTraffic(self.total, self.hot, self.minute, self.broken_until > self.now)

    def _split(self, rows: Integers, step_traffic: StepTraffic) -> Floats:
        t = self.tenants
        # Looked up by tenant and minute, so that it does not depend on the other queried tenants.
        row = (rows * 7_919 + step_traffic.minute * 104_729) % NOISE_ROWS
        weights = np.exp(t.jitter[rows, None] * self._noise[row])
        weights *= ((1 - t.skew[rows]) / CELL_BROKERS)[:, None]
        weights[np.arange(rows.size), step_traffic.hot[rows]] += t.skew[rows]
        if step_traffic.lost.any():
            weights[step_traffic.lost[t.brokers[rows]]] = 0.0
        weight, total = weights.sum(axis=1), step_traffic.total[rows]
        weights *= np.divide(total, weight, out=np.zeros_like(weight), where=weight > 0)[:, None]
        return np.asarray(weights)


class Populations:
    """The weeks of several seeds, one after the other in the same arrays; they share nothing else."""

    def __init__(self, seeds: Sequence[int], size: Size, use_median: float = USE_MEDIAN) -> None:
        self.seeds = tuple(seeds)
        self.size = size
        tenants = [Tenants.generate(seed, size, use_median) for seed in self.seeds]
        self.quota = np.concatenate([each.quota for each in tenants])
        self.brokers = np.concatenate([each.brokers + size.brokers * n for n, each in enumerate(tenants)])
        self.total = np.zeros(self.quota.size)
        self._traffic = [Traffic(each) for each in tenants]
        self._lost = np.zeros(size.brokers * len(tenants), dtype=bool)

    @property
    def broken(self) -> bool:
        return bool(self._lost.any())

    def advance(self) -> None:
        """Advances to the next step."""
        for each in self._traffic:
            each.advance()
        self.total = np.concatenate([each.total for each in self._traffic])
        self._lost = np.concatenate([each.broken_until > each.now for each in self._traffic])

    def down(self, rows: Integers) -> Flags:
        """[tenant, broker]: which brokers of these tenants are down."""
        return np.asarray(self._lost[self.brokers[rows]])

    def demand(self, rows: Integers) -> Floats:
        """[tenant, broker]: the traffic of these tenants, in order of rows."""
        return np.concatenate([each.demand(own_rows) for each, own_rows in self._owned(rows)])

    def demand_before(self, rows: Integers) -> Floats:
        """[tenant, broker]: their traffic in the previous step."""
        return np.concatenate([each.demand_before(own_rows) for each, own_rows in self._owned(rows)])

    def _owned(self, rows: Integers) -> Iterator[tuple[Traffic, Integers]]:
        """Each population, with the rows that belong to it."""
        first = np.arange(len(self.seeds) + 1) * self.size.tenants
        cuts = np.searchsorted(rows, first)
        for each, start, begin, end in zip(self._traffic, first, cuts, cuts[1:], strict=False):
            yield each, rows[begin:end] - start
