"""Numbers for each partition, measured from the window. No judgement here: see `partitions`.

Rates and slopes look at the last minute only (`Policy.rate_seconds`), so that they are about now; they are
robust: the slope is the median of the slopes between all pairs of samples (Theil and Sen), which
a single odd sample cannot turn. "How long" is always counted back from the newest sample, and
never past the restart of the partition's story.

Whether a backlog grows or drains is asked of all that the partition's owner has, stuck partitions
left out. A client works through what it fetched one partition after the other, so one of them may
stand still for minutes while its owner catches up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.scale.values import NO_OWNER, PartitionKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.scale.window import Row, Window

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


class PartitionFacts(NamedTuple):
    """What is known of one partition now."""

    key: PartitionKey
    known_for: float  # seconds of unbroken story; 0: the position is unknown
    lag: float  # records, smoothed
    age: float  # seconds, smoothed
    lag_now: float  # records, as sampled last
    above_for: float  # seconds the smoothed lag has been high without a break
    below_for: float  # seconds it has been low without a break
    still_for: float  # seconds since the position last moved
    quiet_for: float  # seconds since the last arrival
    arrival: float  # records a second
    consumed: float  # records a second
    backlog: float  # records, smoothed, all that its owner has
    slope: float  # records a second that the backlog grows by; negative: drains
    lately: float  # records that the backlog changed by over the last two samples
    age_slope: float  # seconds of lag that each second adds
    owner: int  # member that owns it, NO_OWNER where nobody does or it is not known
    shared_with: int  # other partitions its owner has

    @property
    def drain_seconds(self) -> float:
        """Until the backlog is gone at the present pace; never, where it does not fall."""
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
    steady_for: float  # seconds since members last changed or a rebalance was seen
    partitions: tuple[PartitionFacts, ...]
    capacity: float | None  # records a second a member handles, measured on saturated members
    busiest: float  # records a second the busiest member handles, saturated or not
    peak: float  # highest arrival rate in the low time, records a second, all partitions


def facts_of(window: Window) -> GroupFacts:
    """Measures the newest moment of a window that has at least one row."""
    policy, since, owners = window.policy, window.since, window.owners
    newest, oldest_at = window.rows[-1], window.history[0][0]
    now = newest.at
    recent = _recent(window)
    arrival, consumed = _rates(window, recent)
    still_for, quiet_for = now - since.moved, now - since.arrived
    nothing = np.zeros(len(owners))
    trend = _Trend(newest.smooth_lag, nothing, nothing, nothing)
    if since.high.min(initial=np.inf) < np.inf:  # nobody asks for trends where no lag is high
        stuck = (newest.lag > 0) & (still_for >= policy.stall) & (newest.age >= policy.stall)
        trend = _trend(recent, since.begun, owners, stuck)
    known_for = now - since.begun
    if not newest.known:
        known_for[np.isnan(newest.done)] = 0.0
    known = _as_it_is if newest.known else _known
    columns = (
        known_for, known(newest.smooth_lag), known(newest.smooth_age), known(newest.lag),
        np.maximum(now - since.high, 0.0), np.maximum(now - since.low, 0.0), still_for, quiet_for,
        arrival, consumed, known(trend.backlog), trend.slope, trend.lately, trend.age_slope,
        owners, window.shared,
    )  # fmt: skip
    partitions = tuple(
        map(PartitionFacts._make, zip(window.partitions(), *(each.tolist() for each in columns)))
    )
    capacity, busiest = _member_rates(owners, consumed, since.high <= recent[0].at, window.members)
    steady = now - window.steady_since
    if steady < min(policy.rate_seconds, now - oldest_at):
        capacity, busiest = None, 0.0  # part of the pace was another set of members'
    return GroupFacts(
        now,
        window.members,
        window.state,
        now - oldest_at,
        steady,
        partitions,
        capacity,
        busiest,
        _peak(window),
    )


def _rates(window: Window, recent: list[Row]) -> tuple[Floats, Floats]:
    """(arrived, consumed), records a second, over the part of each partition's story that is recent."""
    newest, oldest = recent[-1], recent[0]
    if window.restarted_at <= oldest.at and newest.known and oldest.known:  # all of it: most of the time
        pace = 1.0 / (newest.at - oldest.at) if len(recent) > 1 else 0.0
        return (newest.end - oldest.end) * pace, (newest.done - oldest.done) * pace
    _, _, first = _stories(recent, window.since.begun)
    column = np.arange(len(first))
    span = newest.at - np.array([row.at for row in recent])[first]
    pace_each = np.where(span > 0, 1.0 / np.where(span > 0, span, 1.0), 0.0)
    arrived = newest.end - np.array([row.end for row in recent])[first, column]
    consumed = newest.done - np.array([row.done for row in recent])[first, column]
    return _known(arrived) * pace_each, _known(consumed) * pace_each


def _stories(recent: list[Row], begun: Floats) -> tuple[Floats, Bools, NDArray[np.int64]]:
    """(moments of the rows, which of them belong to each partition's present story, the first that does)."""
    times = np.array([row.at for row in recent])
    story = times[:, None] >= begun[None, :]
    return times, story, np.argmax(story, axis=0)


class _Trend(NamedTuple):
    backlog: Floats
    slope: Floats
    lately: Floats
    age_slope: Floats


def _trend(
    recent: list[Row],
    begun: Floats,
    owners: NDArray[np.int64],
    stuck: Bools,
) -> _Trend:
    times, story, first = _stories(recent, begun)
    backlog, whole = _backlogs(np.array([row.smooth_lag for row in recent]), story, owners, stuck)
    lately = backlog[-1] - backlog[np.maximum(len(recent) - 3, first), np.arange(len(owners))]
    ages = np.array([row.smooth_age for row in recent])
    return _Trend(backlog[-1], _slopes(times, backlog, whole), _known(lately), _slopes(times, ages, story))


def _recent(window: Window) -> list[Row]:
    """Rows that rates and slopes look at, newest last."""
    oldest = window.rows[-1].at - window.policy.rate_seconds - 1e-6
    found: list[Row] = []
    for row in reversed(window.rows):
        if row.at < oldest:
            break
        found.append(row)
    found.reverse()
    return found


def _as_it_is(values: Floats) -> Floats:
    return values


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _backlogs(lag: Floats, story: Bools, owners: NDArray[np.int64], stuck: Bools) -> tuple[Floats, Bools]:
    """For each partition the lag of everything its owner has, and where all of that is comparable."""
    joined = (owners != NO_OWNER) & ~stuck
    if not joined.any():
        return lag, story
    together = (owners[:, None] == owners[None, :]) & joined[:, None] & joined[None, :]
    together |= np.eye(len(owners), dtype=np.bool_)
    weights = together.astype(np.float64)
    whole = story if story.all() else (~story).astype(np.float64) @ weights == 0
    return _known(lag) @ weights, whole


def _slopes(times: Floats, values: Floats, story: Bools) -> Floats:
    """The median slope between all pairs of rows, for each column; 0 with fewer than three rows."""
    count = len(times)
    if count < 3:
        return np.zeros(values.shape[1])
    left, right = _pairs(count)
    steps = (values[right] - values[left]) / (times[right] - times[left])[:, None]
    usable = story[left] & ~np.isnan(steps)
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
    """(what a saturated member handles, what the busiest handles), records a second.

    A member is saturated while one of its partitions stays high: it is never out of work, so its
    pace is its capacity. Where owners are not told, the group is taken as one member.
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
    """The highest arrival rate over any `rate_seconds` of the low time, all partitions."""
    policy, newest = window.policy, window.rows[-1]
    begin = max(newest.at - policy.low_seconds, window.restarted_at)
    kept = [(at, total) for at, _, total in window.history if at >= begin]
    if len(kept) < 2 or kept[0][1] == kept[-1][1]:  # ends never fall within a story: nothing arrived
        return 0.0
    clock, total = (np.array(each) for each in zip(*kept))
    earlier = np.searchsorted(clock, clock - policy.rate_seconds - 1e-6)
    span = clock - clock[earlier]
    long_enough = span >= min(policy.rate_seconds / 2, float(clock[-1] - clock[0]))
    rates = (total - total[earlier]) / np.maximum(span, 1e-9)
    return float(rates[long_enough & (span > 0)].max(initial=0.0))
