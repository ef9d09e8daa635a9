"""Measure lag, rates and trends of each partition from the window; `partition_state` evaluates them.

Rates and slopes cover the last minute only (`Policy.rate_seconds`). The slope is the median of the
slopes between all pairs of samples (Theil-Sen), so one outlier does not change it. Durations count
back from the newest sample, at most to the start of the partition's continuous history.

Whether a backlog grows or drains is measured over all partitions of the same owner, except stuck
ones. A client processes what it fetched partition by partition, so one partition may not move for
minutes while its owner catches up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.scale.decision.values import NO_OWNER, PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.scale.decision.window import Row, Window

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


class PartitionFacts(NamedTuple):
    """What is known of one partition now."""

    key: PartitionKey
    known_for: float  # seconds of continuous history; 0: the position is unknown
    lag: float  # records, smoothed
    age: float  # seconds, smoothed
    lag_now: float  # records, in the newest sample
    above_for: float  # seconds the smoothed lag has been high without a break
    below_for: float  # seconds it has been low without a break
    unmoved_for: float  # seconds since the position last changed
    quiet_for: float  # seconds since the last arrival
    arrival: float  # records a second
    consumed: float  # records a second
    backlog: float  # records, smoothed, of all its owner's partitions
    slope: float  # growth of the backlog, records a second; negative: it drains
    recent_change: float  # change of the backlog over the last two samples, records
    age_slope: float  # growth of the age, seconds a second
    owner: int  # the owning member; NO_OWNER if there is none or it is unknown
    shared_with: int  # other partitions of its owner

    @property
    def drain_seconds(self) -> float:
        """Seconds until the backlog is gone at the current rate; infinite if it does not drain."""
        if self.backlog <= 0:
            return 0.0
        return self.backlog / -self.slope if self.slope < 0 else math.inf


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is known of the group now."""

    at: float
    members: int
    state: str
    span: float  # seconds the window covers
    steady_for: float  # seconds since the last change of members or rebalance
    unsettled_for: float  # seconds since members began to change without settling in between
    partitions: tuple[PartitionFacts, ...]
    capacity: float | None  # records a second a saturated member handles; None if none is saturated
    busiest: float  # records a second the busiest member handles, saturated or not
    peak: Callable[[], float]  # highest arrival rate within `low_seconds`, records a second, all partitions
    uncommitted: int = 0  # partitions with records in which the group has no position


def facts_of(window: Window) -> GroupFacts:
    """Measures the newest moment of a window that has at least one row."""
    policy, since, owners = window.policy, window.since, window.owners
    newest = window.rows[-1]
    now = newest.at
    recent = _recent(window)
    arrival, consumed = _rates(window, recent)
    unmoved_for, quiet_for = now - since.moved, now - since.arrived
    nothing = np.zeros(len(owners))
    trend = _Trend(newest.smooth_lag, nothing, nothing, nothing)
    if since.high.min(initial=np.inf) < np.inf:  # rules need trends only if a lag is high
        stuck = (newest.lag > 0) & (unmoved_for >= policy.stall) & (newest.age >= policy.stall)
        trend = _trend(recent, since.started, owners, stuck)
    known_for = now - since.started
    uncommitted = 0
    if not newest.known:
        unknown = np.isnan(newest.done)
        known_for[unknown] = 0.0
        uncommitted = int(np.count_nonzero(unknown & (newest.end > newest.start)))
    known = _unchanged if newest.known else _known
    columns = (
        known_for, known(newest.smooth_lag), known(newest.smooth_age), known(newest.lag),
        np.maximum(now - since.high, 0.0), np.maximum(now - since.low, 0.0), unmoved_for, quiet_for,
        arrival, consumed, known(trend.backlog), trend.slope, trend.recent_change, trend.age_slope,
        owners, window.shared,
    )  # fmt: skip
    partitions = tuple(
        map(PartitionFacts._make, zip(window.partitions(), *(each.tolist() for each in columns)))
    )
    capacity, busiest = _member_rates(owners, consumed, since.high <= recent[0].at, window.members)
    span, steady = now - window.history[0][0], now - window.steady_since
    if steady < min(policy.rate_seconds, span):
        capacity, busiest = None, 0.0  # part of the rate was measured with other members
    return GroupFacts(
        now, window.members, window.state, span, steady, now - window.unsettled_since, partitions,
        capacity, busiest, partial(_peak, window), uncommitted,
    )  # fmt: skip


def _rates(window: Window, recent: list[Row]) -> tuple[Floats, Floats]:
    """(arrived, consumed), records a second, over the recent part of each partition's history."""
    newest, oldest = recent[-1], recent[0]
    if window.restarted_at <= oldest.at and newest.known and oldest.known:  # the usual case
        pace = 1.0 / (newest.at - oldest.at) if len(recent) > 1 else 0.0
        read = newest.done - oldest.done
        if newest.lost is not oldest.lost:
            read = read - (newest.lost - oldest.lost)
        return (newest.end - oldest.end) * pace, read * pace
    _, _, first = _continuous_rows(recent, window.since.started)
    column = np.arange(len(first))
    span = newest.at - np.array([row.at for row in recent])[first]
    pace_each = np.where(span > 0, 1.0 / np.where(span > 0, span, 1.0), 0.0)
    arrived = newest.end - np.array([row.end for row in recent])[first, column]
    read_until = np.array([row.done - row.lost for row in recent])
    consumed = read_until[-1] - read_until[first, column]
    return _known(arrived) * pace_each, _known(consumed) * pace_each


def _continuous_rows(recent: list[Row], started: Floats) -> tuple[Floats, Bools, NDArray[np.int64]]:
    """(times of the rows, which rows belong to each partition's continuous history, the first that does)."""
    times = np.array([row.at for row in recent])
    continuous = times[:, None] >= started[None, :]
    return times, continuous, np.argmax(continuous, axis=0)


class _Trend(NamedTuple):
    backlog: Floats
    slope: Floats
    recent_change: Floats
    age_slope: Floats


def _trend(recent: list[Row], started: Floats, owners: NDArray[np.int64], stuck: Bools) -> _Trend:
    times, continuous, first = _continuous_rows(recent, started)
    # Records deleted since a row do not count in it: a backlog that retention shortens does not drain.
    lost = recent[-1].lost
    lags = [row.smooth_lag if row.lost is lost else row.smooth_lag + row.lost - lost for row in recent]
    backlog, whole = _backlogs(np.array(lags), continuous, owners, stuck)
    recent_change = backlog[-1] - backlog[np.maximum(len(recent) - 3, first), np.arange(len(owners))]
    ages = np.array([row.smooth_age for row in recent])
    return _Trend(
        backlog[-1], _slopes(times, backlog, whole), _known(recent_change), _slopes(times, ages, continuous)
    )


def _recent(window: Window) -> list[Row]:
    """The rows that rates and slopes cover, newest last."""
    oldest = window.rows[-1].at - window.policy.rate_seconds - 1e-6
    rows = list(takewhile(lambda row: row.at >= oldest, reversed(window.rows)))
    return rows[::-1]


def _unchanged(values: Floats) -> Floats:
    return values


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _backlogs(
    lag: Floats, continuous: Bools, owners: NDArray[np.int64], stuck: Bools
) -> tuple[Floats, Bools]:
    """For each partition the lag of all its owner's partitions, and the rows in which all are known."""
    joined = (owners != NO_OWNER) & ~stuck
    if not joined.any():
        return lag, continuous
    together = (owners[:, None] == owners[None, :]) & joined[:, None] & joined[None, :]
    together |= np.eye(len(owners), dtype=np.bool_)
    weights = together.astype(np.float64)
    whole = continuous if continuous.all() else (~continuous).astype(np.float64) @ weights == 0
    return _known(lag) @ weights, whole


def _slopes(times: Floats, values: Floats, continuous: Bools) -> Floats:
    """The median slope between all pairs of rows, for each column; 0 with fewer than three rows."""
    count = len(times)
    if count < 3:
        return np.zeros(values.shape[1])
    left, right = _pairs(count)
    steps = (values[right] - values[left]) / (times[right] - times[left])[:, None]
    usable = continuous[left] & ~np.isnan(steps)
    if usable.all():
        return _middle(steps)
    result = np.zeros(values.shape[1])
    for index in range(values.shape[1]):
        chosen = steps[usable[:, index], index]
        if len(chosen) >= 3:
            result[index] = np.median(chosen)
    return result


@cache
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    left, right = np.triu_indices(count, k=1)
    return left, right


def _middle(values: Floats) -> Floats:
    """np.median of the first axis, without its overhead on small arrays."""
    ordered = np.sort(values, axis=0)
    count = len(ordered)
    return np.asarray((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)


def _member_rates(
    owners: NDArray[np.int64], consumed: Floats, backlogged: Bools, members: int
) -> tuple[float | None, float]:
    """(rate of a saturated member, rate of the busiest member), records a second.

    A member is saturated while one of its partitions stays high: it is never idle, so its rate is its
    capacity. If owners are unknown, the group's mean rate counts.
    """
    owned = owners != NO_OWNER
    if not owned.any():
        rate = float(consumed.sum()) / max(members, 1)
        return (rate if 2 * np.count_nonzero(backlogged) > len(backlogged) else None), rate
    totals = np.bincount(owners[owned], weights=consumed[owned])
    saturated = np.bincount(owners[owned], weights=backlogged[owned]) > 0
    pace = totals[saturated & (totals > 0)]
    return (float(np.median(pace)) if len(pace) else None), float(totals.max())


def _peak(window: Window) -> float:
    """The highest arrival rate over any `rate_seconds` within `low_seconds`, all partitions."""
    policy, newest = window.policy, window.rows[-1]
    begin = max(newest.at - policy.low_seconds, window.restarted_at)
    recent = [(at, total) for at, _, total in window.history if at >= begin]
    # End offsets never fall within a continuous history, so equal totals mean no arrivals.
    if len(recent) < 2 or recent[0][1] == recent[-1][1]:
        return 0.0
    clock, total = (np.array(each) for each in zip(*recent))
    earlier = np.searchsorted(clock, clock - policy.rate_seconds - 1e-6)
    span = clock - clock[earlier]
    long_enough = span >= min(policy.rate_seconds / 2, float(clock[-1] - clock[0]))
    rates = (total - total[earlier]) / np.maximum(span, 1e-9)
    return float(rates[long_enough & (span > 0)].max(initial=0.0))
