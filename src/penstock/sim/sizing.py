"""A quarter of sizing: what do policies cost, and how often are clusters overloaded?

Each hour a policy sees the work of all clusters so far and sets their sizes. `ours` is the control plane's
`balance.advice.decide`, with its pacing. The others:
- `static peak`: sized once, by the peak of the four weeks before and a factor that covers the growth of nine
  clusters in ten within the quarter. Which of them will grow is not known before.
- `reactive`: a step up if the mean of the last hours is above 70 % of the brokers, a step down below 40 %.
- `oracle`: knows the future. The cheapest sizes that carry every hour, with at most two changes a month.

All must carry the work after the loss of a zone, except `reactive`, which knows no losses. Assumptions:
- Work is mean broker load × brokers. It follows the day and the week, with noise. Half of the clusters are
  steady; others grow, decline or step. Short surges come once in two months on average.
- New brokers carry work `JOIN_HOURS` after they were ordered, and cost from the start. Brokers that leave
  cost until their data has moved, as many hours later.
- A zone is lost for some hours, once a year on average. A cluster is overloaded in an hour in which the
  brokers left are busier than `LOAD_FULL`.
- A broker costs the same for every cluster, so cost is broker-hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.advice import DAY_HOURS, HISTORY_HOURS, PACING, WEEK_HOURS, Sized, brokers_for, decide
from penstock.balance.goals import LOAD_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.balance.advice import Pacing

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Policy = Callable[["Quarter", int, Ints, Floats], Ints]

ZONES: Final = 3
CLUSTERS_MAX: Final = 5_000
DAYS_MAX: Final = 365
JOIN_HOURS: Final = 8
STATIC_PERCENTILE: Final = 90  # of the growth within the quarter, over all clusters
REACTIVE_UP, REACTIVE_DOWN = 0.70, 0.40  # of mean load
REACTIVE_HOURS: Final = 3  # that a mean covers
REACTIVE_REST_HOURS: Final = 24
CHANGE_DAYS_MIN: Final = 15  # between the oracle's changes: two a month
MONTH_DAYS: Final = 30.0
SURGES_PER_DAY: Final = 1 / 60
LOSSES_PER_DAY: Final = 1 / 365
SHARES: Final = {"steady": 0.5, "grow": 0.25, "decline": 0.1, "step": 0.15}


@dataclass(frozen=True, slots=True)
class Scale:
    clusters: int = 300
    days: int = 90

    @property
    def hours(self) -> int:
        """With the four weeks before."""
        return HISTORY_HOURS + self.days * DAY_HOURS


@dataclass(frozen=True, slots=True)
class Quarter:
    """The same for every policy."""

    work: Floats  # clusters × hours
    lost: NDArray[np.bool_]  # a zone is down
    zones: Ints

    @property
    def start(self) -> int:
        return HISTORY_HOURS

    @property
    def hours(self) -> int:
        return int(self.work.shape[1])


@dataclass(frozen=True, slots=True)
class Outcome:
    policy: str
    broker_hours: float
    overloaded_hours: int
    changes_month: float  # of a cluster
    changes_month_max: float  # of the cluster with the most


def quarter(seed: int, scale: Scale) -> Quarter:
    """Work and losses from a seed."""
    random = np.random.default_rng(seed)
    clusters, hours = scale.clusters, scale.hours
    at = np.arange(hours)
    base = np.exp(random.normal(1.8, 0.8, clusters))[:, None]  # brokers' work, 6 in the middle
    swing = random.uniform(0.15, 0.5, clusters)[:, None]
    phase = random.uniform(0, 2 * np.pi, clusters)[:, None]
    day = 1 + swing * np.sin(2 * np.pi * at / DAY_HOURS + phase)
    weekend = np.where(at % WEEK_HOURS >= 5 * DAY_HOURS, random.uniform(0.6, 1.0, clusters)[:, None], 1.0)
    noise = np.exp(random.normal(0, 0.04, (clusters, hours)))
    level = _levels(random, clusters, hours)
    work = base * day * weekend * noise * level * _surges(random, clusters, hours)
    lost = _windows(random, clusters, hours, LOSSES_PER_DAY, (2, 8))
    return Quarter(work, lost, np.full(clusters, ZONES))


def _levels(random: np.random.Generator, clusters: int, hours: int) -> Floats:
    """How the work of each cluster develops."""
    kinds = random.choice(list(SHARES), clusters, p=list(SHARES.values()))
    at = np.linspace(0, 1, hours)[None, :]
    end = np.ones(clusters)
    end[kinds == "grow"] = random.uniform(1.3, 3.0, int((kinds == "grow").sum()))
    end[kinds == "decline"] = random.uniform(0.3, 0.8, int((kinds == "decline").sum()))
    level = end[:, None] ** at
    when = random.uniform(0.3, 0.9, clusters)[:, None]
    ramp = np.clip((at - when) * hours / (3 * DAY_HOURS), 0, 1)  # a launch takes some days
    to = np.where(random.random(clusters) < 0.7, random.uniform(1.2, 2.0, clusters), 0.6)[:, None]
    return np.asarray(np.where((kinds == "step")[:, None], 1 + (to - 1) * ramp, level))


def _surges(random: np.random.Generator, clusters: int, hours: int) -> Floats:
    active = _windows(random, clusters, hours, SURGES_PER_DAY, (1, 4))
    height = random.uniform(1.1, 1.6, (clusters, 1))
    return np.asarray(np.where(active, height, 1.0))


def _windows(
    random: np.random.Generator, clusters: int, hours: int, per_day: float, length: tuple[int, int]
) -> NDArray[np.bool_]:
    active = np.zeros((clusters, hours), np.bool_)
    rows, starts = np.nonzero(random.random((clusters, hours)) < per_day / DAY_HOURS)
    for row, start, span in zip(
        rows, starts, random.integers(*length, len(rows), endpoint=True), strict=True
    ):
        active[row, start : start + span] = True
    return active


def static_peak(known: Quarter, hour: int, brokers: Ints, changed: Floats) -> Ints:
    """Sized once."""
    if hour > known.start:
        return brokers
    before, after = known.work[:, : known.start].max(axis=1), known.work[:, known.start :].max(axis=1)
    return brokers_for(before * np.percentile(after / before, STATIC_PERCENTILE), known.zones)


def reactive(known: Quarter, hour: int, brokers: Ints, changed: Floats) -> Ints:
    """Thresholds on the mean load of the last hours."""
    load = known.work[:, hour - REACTIVE_HOURS : hour].mean(axis=1) / brokers
    rested = changed * DAY_HOURS >= REACTIVE_REST_HOURS
    step = np.where(load > REACTIVE_UP, 1, np.where(load < REACTIVE_DOWN, -1, 0)) * known.zones
    return np.asarray(np.where(rested, np.maximum(brokers + step, known.zones), brokers), np.int64)


def ours(pacing: Pacing = PACING) -> Policy:
    def policy(known: Quarter, hour: int, brokers: Ints, changed: Floats) -> Ints:
        bounds = np.full(len(brokers), ZONES), np.full(len(brokers), 10_000)
        sized = Sized(brokers, known.zones, changed, *bounds)
        return decide(known.work[:, hour - HISTORY_HOURS : hour], sized, pacing).target

    return policy


def oracle(known: Quarter) -> Ints:
    """The cheapest sizes, clusters × days, by dynamic programming over the days of change."""
    peaks = known.work[:, known.start :].reshape(len(known.work), -1, DAY_HOURS).max(axis=2)
    clusters, days = peaks.shape
    cost = np.full((clusters, days + 1), np.inf)
    cost[:, 0] = 0.0
    came_from = np.zeros((clusters, days + 1), np.int64)
    for end in range(1, days + 1):
        highest = np.zeros(clusters)
        for start in range(end - 1, -1, -1):
            highest = np.maximum(highest, peaks[:, start])
            if end - start < CHANGE_DAYS_MIN and not (start == 0 or end == days):
                continue
            total = cost[:, start] + brokers_for(highest, known.zones) * (end - start)
            better = total < cost[:, end]
            cost[better, end] = total[better]
            came_from[better, end] = start
    sizes = np.zeros((clusters, days), np.int64)
    for row in range(clusters):
        end = days
        while end > 0:
            start = int(came_from[row, end])
            sizes[row, start:end] = brokers_for(peaks[row : row + 1, start:end].max(axis=1), known.zones[:1])
            end = start
    return sizes


POLICIES: Final[dict[str, Policy]] = {"static peak": static_peak, "reactive": reactive, "ours": ours()}
ORACLE: Final = "oracle"


def run(known: Quarter, name: str, policy: Policy) -> Outcome:
    """One policy, hour by hour."""
    clusters = len(known.work)
    brokers = brokers_for(known.work[:, : known.start].max(axis=1), known.zones)
    if name == "static peak":
        brokers = policy(known, known.start, brokers, np.full(clusters, np.inf))
    changed = np.full(clusters, np.inf)
    carrying = np.tile(brokers, (JOIN_HOURS + 1, 1))  # sizes of the last hours, the newest last
    hours_paid, overloaded, changes = 0.0, 0, np.zeros(clusters)
    for hour in range(known.start, known.hours):
        target = policy(known, hour, brokers, changed)
        different = target != brokers
        changes += different
        changed = np.where(different, 0.0, changed + 1 / DAY_HOURS)
        brokers = target
        carrying = np.concatenate([carrying[1:], brokers[None, :]])
        available = carrying.min(axis=0)  # brokers join late, and leave at once
        left = np.where(known.lost[:, hour], available - available // known.zones, available)
        overloaded += int((known.work[:, hour] > left * LOAD_FULL).sum())
        hours_paid += float(carrying.max(axis=0).sum())
    months = (known.hours - known.start) / DAY_HOURS / MONTH_DAYS
    return Outcome(
        name, hours_paid, overloaded, float(changes.mean() / months), float(changes.max() / months)
    )


def run_oracle(known: Quarter) -> Outcome:
    sizes = oracle(known)
    hourly = np.repeat(sizes, DAY_HOURS, axis=1)
    left = np.where(known.lost[:, known.start :], hourly - hourly // ZONES, hourly)
    over = int((known.work[:, known.start :] > left * LOAD_FULL).sum())
    changes = (np.diff(sizes, axis=1) != 0).sum(axis=1)
    months = sizes.shape[1] / MONTH_DAYS
    return Outcome(
        ORACLE, float(hourly.sum()), over, float(changes.mean() / months), float(changes.max() / months)
    )


def compare(seed: int, scale: Scale) -> Iterator[Outcome]:
    """All policies on the same quarter, the oracle last."""
    known = quarter(seed, scale)
    for name, policy in POLICIES.items():
        yield run(known, name, policy)
    yield run_oracle(known)
