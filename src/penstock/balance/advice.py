"""Is a cluster too small, too large, or on the wrong hardware? One verdict, with the number that decides it.

Input is a history of hours. An hour's *work* is the highest number of brokers that were busy in it: mean
broker load × brokers. It does not depend on the cluster's size, so it is comparable over changes of size.

- A cluster is large enough for an amount of work if its brokers stay below `LOAD_FULL` after the loss of one
  broker, and after the loss of one zone.
- The forecast continues the daily peaks of four weeks by a line. Its upper edge counts for growth, as far
  ahead as an expansion takes, and only if the slope itself is certain. Less than a week shows no trend.
- Expand, if the forecast or the pattern of the week exceeds what the cluster carries. A peak that came once
  is no pattern: the second-highest day of the last week counts. Work that exceeds the capacity for hours is
  not waited for: it counts at once, with the rise since the day before.
- Shrink only if the highest hour of four weeks and the forecast fit with a margin, and a rest time after
  the last change has passed. A new size is chosen for weeks ahead, so that the next change is far away.
- A cluster whose mean fits, but whose hottest broker does not, is balanced first.

Decisions are computed on arrays with one row for each cluster, so that the simulator runs the same code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.goals import LOAD_FULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

DAY_HOURS: Final = 24
WEEK_HOURS: Final = 7 * DAY_HOURS
HISTORY_HOURS: Final = 4 * WEEK_HOURS
HISTORY_HOURS_MIN: Final = DAY_HOURS
TREND_DAYS_MIN: Final = 7
SUSTAINED_HOURS: Final = 5  # of a day above the capacity: longer than a surge
UPPER_Z: Final = 1.64  # one-sided 95 %
IMBALANCE_MAX: Final = 1.25  # hottest broker ÷ mean
PROFILE_SAVING_MIN: Final = 0.15  # of the cost, to move a cluster to other hardware


class Verdict(StrEnum):
    RIGHT_SIZED = "right-sized"
    REBALANCE = "rebalance first"
    EXPAND = "expand"
    SHRINK = "shrink"
    OTHER_PROFILE = "another profile"


@dataclass(frozen=True, slots=True)
class Pacing:
    """What prevents oscillation."""

    lead_days: float = 7.0  # an expansion must be decided so long before it is needed
    reach_days: float = 14.0  # growth that an expansion covers
    expand_margin: float = 0.15  # spare work after an expansion
    shrink_margin: float = 0.15  # spare work after a shrink
    shrink_reach_days: float = 28.0  # the forecast must fit so long after it
    rest_days: float = 10.0  # after any change, before a shrink
    expand_rest_days: float = 7.0  # after any change, before growth by forecast


PACING: Final = Pacing()


@dataclass(frozen=True, slots=True)
class Sized:
    """Clusters as they are, one entry for each."""

    brokers: Ints
    zones: Ints
    changed_days: Floats  # since the last change of size
    brokers_min: Ints
    brokers_max: Ints


@dataclass(frozen=True, slots=True)
class Trend:
    """Daily peaks continued by a line, one entry for each cluster."""

    level: Floats  # of the line at the end of the history
    slope: Floats  # a day
    deviation: Floats  # of days around the line
    slope_error: Floats

    def upper(self, days: float) -> Floats:
        """The upper edge so many days ahead."""
        certain = np.maximum(self.slope - UPPER_Z * self.slope_error, 0.0)
        expected = self.level + np.where(certain > 0, self.slope, 0.0) * days
        return np.asarray(expected + np.where(certain > 0, UPPER_Z * self.slope_error * days, 0.0))


@dataclass(frozen=True, slots=True)
class Decision:
    """The size that each cluster should have, and the numbers that decided."""

    target: Ints
    required: Ints  # brokers that the forecast at the lead time needs
    peak: Floats  # work of the highest hour in four weeks
    recent: Floats  # work that recurs in the last week
    trend: Trend
    due_days: Floats  # until the forecast exceeds what the cluster carries; infinite: not in sight
    bounded: NDArray[np.bool_]  # the target would be another without `brokers_min` and `brokers_max`


def carried(brokers: Ints | int, zones: Ints | int) -> Floats:
    """The work that a cluster carries after the loss of a broker or of a zone."""
    count, apart = np.asarray(brokers), np.asarray(zones)
    lost = np.where(apart > 1, np.ceil(count / np.maximum(apart, 1)), 1)
    return np.asarray((count - np.maximum(lost, 1)) * LOAD_FULL, np.float64)


def brokers_for(work: Floats, zones: Ints) -> Ints:
    """The smallest number of brokers that carries it: a multiple of the zones, at least three."""
    apart = np.maximum(zones, 1)
    single = np.ceil(work / LOAD_FULL - 1e-9) + 1
    spread = np.where(apart > 1, apart * np.ceil(work / LOAD_FULL / np.maximum(apart - 1, 1) - 1e-9), 0)
    count = np.maximum(np.maximum(single, spread), 3)
    return np.asarray(np.ceil(count / apart) * apart, np.int64)


def daily_peaks(work: Floats) -> Floats:
    """Clusters × days, the last day complete; a remainder of hours at the start is left out."""
    days = work.shape[1] // DAY_HOURS
    return np.asarray(work[:, work.shape[1] - days * DAY_HOURS :].reshape(len(work), days, DAY_HOURS).max(2))


def trend_of(peaks: Floats) -> Trend:
    clusters, days = peaks.shape
    if days < TREND_DAYS_MIN:
        flat = np.zeros(clusters)
        return Trend(peaks.max(axis=1), flat, peaks.std(axis=1), flat)
    at = np.arange(days) - (days - 1) / 2
    spread = float(at @ at)
    slope = peaks @ at / spread
    mean = peaks.mean(axis=1)
    rest = peaks - mean[:, None] - slope[:, None] * at
    deviation = np.sqrt((rest * rest).sum(axis=1) / (days - 2))
    return Trend(mean + slope * at[-1], slope, deviation, deviation / math.sqrt(spread))


def recurring(peaks: Floats) -> Floats:
    """The second-highest day of the last week: a peak that came once is no pattern."""
    last = np.sort(peaks[:, -7:], axis=1)
    return np.asarray(last[:, -2] if last.shape[1] > 1 else last[:, -1])


def decide(work: Floats, sized: Sized, pacing: Pacing = PACING) -> Decision:
    """The size of each cluster. `work` is clusters × hours, the newest last; at least a day of it."""
    peaks = daily_peaks(work[:, -HISTORY_HOURS:])
    trend = trend_of(peaks)
    peak = work[:, -HISTORY_HOURS:].max(axis=1)
    recent = recurring(peaks)
    zones, brokers = sized.zones, sized.brokers
    urgent = _urgent(work, carried(brokers, zones))
    soon = np.maximum(np.maximum(trend.upper(pacing.lead_days), recent), urgent)
    later = np.maximum(np.maximum(trend.upper(pacing.reach_days), recent), urgent)
    required = brokers_for(soon, zones)
    rested = (sized.changed_days >= pacing.expand_rest_days) | (urgent > 0)
    grow = (required > brokers) & rested
    lowest = brokers_for(
        np.maximum(
            np.maximum(peak, trend.upper(pacing.shrink_reach_days)) * (1 + pacing.shrink_margin), soon
        ),
        zones,
    )
    smaller = (lowest < brokers) & (sized.changed_days >= pacing.rest_days) & ~grow
    free = np.where(
        grow,
        np.maximum(brokers_for(later * (1 + pacing.expand_margin), zones), required),
        np.where(smaller, lowest, brokers),
    )
    target = np.clip(free, sized.brokers_min, sized.brokers_max)
    return Decision(
        np.asarray(target, np.int64), required, peak, recent, trend,
        _due_days(trend, recent, carried(brokers, zones)), target != free,
    )  # fmt: skip


def _urgent(work: Floats, capacity: Floats) -> Floats:
    """The work to expect tomorrow, where the last day exceeded the capacity for hours; elsewhere 0."""
    today = np.sort(work[:, -DAY_HOURS:], axis=1)
    before = work[:, -2 * DAY_HOURS : -DAY_HOURS]
    rise = today[:, -1] - before.max(axis=1) if before.shape[1] else np.zeros(len(work))
    lasting = today[:, -SUSTAINED_HOURS] > capacity
    return np.asarray(np.where(lasting, today[:, -1] + np.maximum(rise, 0.0), 0.0))


def _due_days(trend: Trend, recent: Floats, capacity: Floats) -> Floats:
    rate = trend.upper(1.0) - trend.upper(0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        days = np.where(rate > 0, (capacity - trend.level) / rate, np.inf)
    return np.asarray(np.where(recent > capacity, 0.0, np.maximum(days, 0.0)))


@dataclass(frozen=True, slots=True)
class Alternative:
    """A fleet on other hardware that carries the same demand."""

    profile: str
    brokers: int
    month: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """A verdict on one cluster."""

    verdict: Verdict
    brokers: int  # now
    target: int
    number: str  # what decides
    changes: str  # what would change the verdict
    due_days: float | None = None
    month: float | None = None  # cost now
    month_after: float | None = None
    profile: str = ""
    bounded: str = ""  # the bound that the target is cut at


@dataclass(frozen=True, slots=True)
class Situation:
    """What one verdict is based on beside the history."""

    brokers: int
    zones: int
    changed_days: float = math.inf
    brokers_min: int = 3
    brokers_max: int = 1_000
    imbalance: float = 1.0  # hottest broker ÷ mean, lately
    machine_month: float | None = None  # cost of one broker; None: there are no prices
    budget_month: float | None = None
    alternative: Alternative | None = None  # the cheapest fleet


def affordable(situation: Situation) -> int:
    """The largest cluster within the bounds and the budget."""
    most = situation.brokers_max
    if situation.budget_month is not None and situation.machine_month:
        count = int(situation.budget_month / situation.machine_month + 1e-9)
        most = min(most, count - count % max(situation.zones, 1))
    return most


def advise(work: Floats, situation: Situation, pacing: Pacing = PACING) -> Advice:
    """The verdict on one cluster; `work` is a row of hours, the newest last."""
    most = affordable(situation)
    sized = Sized(
        np.array([situation.brokers]),
        np.array([situation.zones]),
        np.array([situation.changed_days]),
        np.array([min(situation.brokers_min, most)]),
        np.array([max(most, min(situation.brokers, situation.brokers_max))]),
    )
    decision = decide(work[None, :], sized, pacing)
    target, brokers = int(decision.target[0]), situation.brokers
    peak, recent = float(decision.peak[0]), float(decision.recent[0])
    capacity = float(carried(brokers, situation.zones))
    bounded = _bound(situation, most) if decision.bounded[0] else ""
    month = None if situation.machine_month is None else situation.machine_month * brokers
    after = None if situation.machine_month is None else situation.machine_month * target
    hottest = max(recent, float(work[-DAY_HOURS:].max())) / brokers * situation.imbalance
    if situation.imbalance > IMBALANCE_MAX and hottest > LOAD_FULL and int(decision.required[0]) <= brokers:
        return Advice(
            Verdict.REBALANCE, brokers, brokers,
            f"the hottest broker carries {situation.imbalance:.2f} times the mean, {hottest:.0%} at its peak",
            f"a hottest broker below {IMBALANCE_MAX:g} times the mean, or below {LOAD_FULL:.0%}",
            month=month, month_after=month,
        )  # fmt: skip
    if int(decision.required[0]) > brokers or target > brokers:
        ahead = float(decision.trend.upper(pacing.lead_days)[0])
        return Advice(
            Verdict.EXPAND, brokers, target,
            f"{max(ahead, recent):.2f} brokers' work within {pacing.lead_days:g} days; {brokers} brokers "
            f"carry {capacity:.2f} after the loss of a zone or broker",
            f"work that stays below {capacity:.2f} brokers, now {recent:.2f}",
            float(min(decision.due_days[0], pacing.lead_days)), month, after, bounded=bounded,
        )  # fmt: skip
    if target < brokers:
        kept = float(carried(target, situation.zones))
        return Advice(
            Verdict.SHRINK, brokers, target,
            f"the highest hour of four weeks was {peak:.2f} brokers' work; {target} brokers carry {kept:.2f}",
            f"an hour above {kept / (1 + pacing.shrink_margin):.2f} brokers' work", None, month, after,
            bounded=bounded,
        )  # fmt: skip
    other = situation.alternative
    if other is not None and month is not None and other.month < month * (1 - PROFILE_SAVING_MIN):
        return Advice(
            Verdict.OTHER_PROFILE, brokers, other.brokers,
            f"{other.brokers} × {other.profile} costs {other.month:.2f} a month instead of {month:.2f}"
            + ("" if other.measured else "; that profile has not been measured"),
            f"a saving below {PROFILE_SAVING_MIN:.0%}", None, month, other.month, other.profile,
        )  # fmt: skip
    return Advice(
        Verdict.RIGHT_SIZED, brokers, brokers,
        f"{recent:.2f} brokers' work recurs, {peak:.2f} was the most in four weeks; {brokers} brokers carry "
        f"{capacity:.2f} after the loss of a zone or broker",
        f"work above {capacity:.2f} brokers, or four weeks below "
        f"{_smaller(situation) / (1 + pacing.shrink_margin):.2f}",
        _finite(float(decision.due_days[0])), month, month, bounded=bounded,
    )  # fmt: skip


def _smaller(situation: Situation) -> float:
    """The work that the next smaller cluster carries."""
    fewer = situation.brokers - max(situation.zones, 1)
    return float(carried(fewer, situation.zones)) if fewer >= max(situation.brokers_min, 3) else 0.0


def _finite(days: float) -> float | None:
    return days if math.isfinite(days) else None


def _bound(situation: Situation, most: int) -> str:
    if most < situation.brokers_max:
        return f"the budget of {situation.budget_month:.2f} a month covers {most} brokers"
    return f"sizes are bounded to {situation.brokers_min} to {situation.brokers_max} brokers"
