"""Measure lag, rates and trends of each partition from the windows; `partition_state` evaluates them.

Rates and slopes cover the last minute only (`Policy.rate_seconds`). The slope is the median of the
slopes between all pairs of samples (Theil-Sen), so one outlier does not change it. Durations count
back from the newest sample, at most to the start of the partition's continuous history.

Whether a backlog grows or drains is measured over all partitions of the same owner, except stuck
ones. A client processes what it fetched partition by partition, so one partition may not move for
minutes while its owner catches up.

The partitions of all groups are the columns of one stack, see `window`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.scale.decision.values import NO_OWNER
from penstock.scale.decision.window import Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock.scale.decision.window import PolicyColumns, Window

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Number = TypeVar("Number")  # float: one partition; an array: a column of each partition


class PartitionFacts(NamedTuple, Generic[Number]):
    """What is known of one partition now, or of all partitions of a stack."""

    key: Any  # PartitionKey, or a list of them
    known_for: Number  # seconds of continuous history; 0: the position is unknown
    lag: Number  # records, smoothed
    age: Number  # seconds, smoothed
    lag_now: Number  # records, in the newest sample
    above_for: Number  # seconds the smoothed lag has been high without a break
    below_for: Number  # seconds it has been low without a break
    unmoved_for: Number  # seconds since the position last changed
    quiet_for: Number  # seconds since the last arrival
    arrival: Number  # records a second
    consumed: Number  # records a second
    backlog: Number  # records, smoothed, of all its owner's partitions
    slope: Number  # growth of the backlog, records a second; negative: it drains
    recent_change: Number  # change of the backlog over the last two samples, records
    age_slope: Number  # growth of the age, seconds a second
    owner: Number  # the owning member; NO_OWNER if there is none or it is unknown
    shared_with: Number  # other partitions of its owner

    @property
    def drain_seconds(self) -> Any:
        """Seconds until the backlog is gone at the current rate; infinite if it does not drain."""
        backlog, slope = np.asarray(self.backlog), np.asarray(self.slope)
        drains = slope < 0
        seconds = np.where(drains, backlog / np.where(drains, -slope, 1.0), np.inf)
        return np.where(backlog <= 0, 0.0, seconds)


class GroupFacts(NamedTuple):
    """What is known of the group now."""

    at: float
    members: int
    state: str
    span: float  # seconds the window covers
    steady_for: float  # seconds since the last change of members or rebalance
    unsettled_for: float  # seconds since members began to change without settling in between
    partitions: Sequence[PartitionFacts[float]]
    capacity: float | None  # records a second a saturated member handles; None if none is saturated
    busiest: float  # records a second the busiest member handles, saturated or not
    peak: Callable[[], float]  # highest arrival rate within `low_seconds`, records a second, all partitions
    uncommitted: int = 0  # partitions with records in which the group has no position


class Measured(NamedTuple):
    """The facts of several windows."""

    columns: PartitionFacts[Any]  # of all partitions, for `partition_state`
    policy: PolicyColumns
    groups: list[GroupFacts]
    slices: list[slice]  # the columns of each group


def measure(windows: Sequence[Window]) -> Measured:
    """Measures the newest moment of windows that have at least one row."""
    stack = Stack(windows, max(len(window.at) for window in windows))
    policy, since, values = stack.policy, stack.since, stack.values
    now, lag = stack.at[0], values.lag[0]
    owners = np.concatenate([window.owners for window in windows])
    members = _Members(owners, stack)
    recent = stack.at >= now - policy.rate_seconds - 1e-6
    continuous = recent & (stack.at >= since.started)
    arrival, consumed = _rates(stack, continuous)
    unmoved_for = now - since.moved
    unknown = np.isnan(values.done[0])
    trend = np.zeros((3, len(now)))
    backlog = values.smooth_lag[0].copy()
    high = np.unique(stack.group[since.high < np.inf])
    if len(high):  # rules need the trends of groups with a high lag only
        chosen = np.flatnonzero(np.isin(stack.group, high))
        stuck = (lag > 0) & (unmoved_for >= policy.stall) & (values.age[0] >= policy.stall)
        backlog[chosen], trend[:, chosen] = _trend(stack, continuous, members.joined(~stuck), chosen)
    columns = PartitionFacts(
        [key for window in windows for key in window.partitions()],
        np.where(unknown, 0.0, now - since.started),
        _known(values.smooth_lag[0]), _known(values.smooth_age[0]), _known(lag),
        np.maximum(now - since.high, 0.0), np.maximum(now - since.low, 0.0),
        unmoved_for, now - since.arrived, arrival, consumed, _known(backlog), trend[0], trend[1], trend[2],
        owners, members.shared_with,
    )  # fmt: skip
    uncommitted = stack.group[unknown & (values.end[0] > values.start[0])].tolist()
    backlogged = since.high <= np.min(stack.at, axis=0, initial=np.inf, where=recent)
    rates = members.rates(consumed, backlogged)
    partitions: list[PartitionFacts[float]] = list(
        map(PartitionFacts._make, zip(columns.key, *(each.tolist() for each in columns[1:])))
    )
    groups = [
        _group_facts(window, partitions[own], *rate, uncommitted.count(index))
        for index, (window, own, rate) in enumerate(zip(windows, stack.slices, rates))
    ]
    return Measured(columns, policy, groups, stack.slices)


def _group_facts(
    window: Window,
    partitions: Sequence[PartitionFacts[float]],
    capacity: float | None,
    busiest: float,
    uncommitted: int,
) -> GroupFacts:
    now = window.at[0]
    span, steady = now - window.history[0][0], now - window.steady_since
    if steady < min(window.policy.rate_seconds, span):
        capacity, busiest = None, 0.0  # part of the rate was measured with other members
    return GroupFacts(
        now, window.members, window.state, span, steady, now - window.unsettled_since, partitions,
        capacity, busiest, partial(_peak, window), uncommitted,
    )  # fmt: skip


def _rates(stack: Stack, continuous: Bools) -> tuple[Floats, Floats]:
    """(arrived, consumed), records a second, over the recent part of each partition's history."""
    column = np.arange(continuous.shape[1])
    first = np.maximum(np.count_nonzero(continuous, axis=0) - 1, 0)
    span = stack.at[0] - stack.at[first, column]
    pace = np.where(span > 0, 1.0 / np.where(span > 0, span, 1.0), 0.0)
    end, read = stack.values.end, stack.values.done - stack.values.lost
    return _known(end[0] - end[first, column]) * pace, _known(read[0] - read[first, column]) * pace


def _trend(stack: Stack, continuous: Bools, together: Ints, chosen: Ints) -> tuple[Floats, Floats]:
    """(backlog, (its slope, its recent change, slope of the age)) of the chosen partitions.

    `together` numbers the partitions whose lag is added to one backlog.
    """
    at, continuous, (_, together) = stack.at[:, chosen], continuous[:, chosen], _numbered(together[chosen])
    # Records deleted since a row do not count in it: a backlog that retention shortens does not drain.
    lost = stack.values.lost[:, chosen]
    lag = _known(stack.values.smooth_lag[:, chosen] + lost - lost[0])
    backlog = np.array([np.bincount(together, weights=row)[together] for row in lag])
    whole = np.array([np.bincount(together, weights=~row)[together] == 0 for row in continuous])
    first = np.maximum(np.count_nonzero(continuous, axis=0) - 1, 0)
    change = backlog[0] - backlog[np.minimum(first, 2), np.arange(len(chosen))]
    age_slopes = _slopes(at, stack.values.smooth_age[:, chosen], continuous)
    return backlog[0], np.array([_slopes(at, backlog, whole), change, age_slopes])


def _slopes(at: Floats, values: Floats, continuous: Bools) -> Floats:
    """The median slope between all pairs of rows, for each column; 0 with fewer than three pairs."""
    newer, older = _pairs(len(at))
    if not len(newer):
        return np.zeros(at.shape[1])
    steps = (values[newer] - values[older]) / (at[newer] - at[older])
    steps = np.sort(np.where(continuous[older], steps, np.nan), axis=0)  # nan sorts last
    count = len(steps) - np.count_nonzero(np.isnan(steps), axis=0)
    column = np.arange(steps.shape[1])
    middle = (np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(steps) - 1))
    median = (steps[middle[0], column] + steps[middle[1], column]) / 2
    return np.where(count >= 3, median, 0.0)


@cache
def _pairs(count: int) -> tuple[Ints, Ints]:
    newer, older = np.triu_indices(count, k=1)
    return newer, older


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _numbered(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values, and for each value the number of its like."""
    distinct, number = np.unique(values, return_inverse=True)
    return distinct, number


class _Members:
    """The members of the groups, numbered through all groups."""

    def __init__(self, owners: Ints, stack: Stack) -> None:
        self._stack = stack
        self._owned = owners != NO_OWNER
        # A number for each pair of group and owner.
        wide = stack.group * (owners.max(initial=0) + 1) + owners
        distinct, number = _numbered(wide[self._owned])
        self._number = np.zeros(len(owners), dtype=np.int64)
        self._number[self._owned] = number
        self._count = len(distinct)
        self._group = np.zeros(self._count, dtype=np.int64)
        self._group[number] = stack.group[self._owned]
        sizes = np.bincount(number, minlength=self._count)
        self.shared_with = np.zeros(len(owners), dtype=np.int64)
        self.shared_with[self._owned] = sizes[number] - 1

    def joined(self, chosen: Bools) -> Ints:
        """The member of each chosen partition that has one; each of the others gets a separate number."""
        alone = self._count + np.arange(len(self._number))
        return np.where(self._owned & chosen, self._number, alone)

    def rates(self, consumed: Floats, backlogged: Bools) -> list[tuple[float | None, float]]:
        """For each group (rate of a saturated member, rate of the busiest member), records a second.

        A member is saturated while one of its partitions stays high: it is never idle, so its rate is its
        capacity. If owners are unknown, the group's mean rate counts.
        """
        windows, number, owned = self._stack.windows, self._number[self._owned], self._owned
        totals = np.bincount(number, weights=consumed[owned], minlength=self._count)
        saturated = np.bincount(number, weights=backlogged[owned], minlength=self._count) > 0
        busiest = np.full(len(windows), -np.inf)
        np.maximum.at(busiest, self._group, totals)
        measured = self._group[saturated & (totals > 0)]
        paces = totals[saturated & (totals > 0)]
        sums = np.bincount(self._stack.group, weights=consumed, minlength=len(windows)).tolist()
        high = np.bincount(self._stack.group, weights=backlogged, minlength=len(windows)).tolist()
        rates: list[tuple[float | None, float]] = []
        for index, (window, most) in enumerate(zip(windows, busiest.tolist())):
            if most == -np.inf:  # owners unknown
                rate = sums[index] / max(window.members, 1)
                rates.append((rate if 2 * high[index] > len(window.owners) else None, rate))
                continue
            own = paces[measured == index]
            rates.append((float(np.median(own)) if len(own) else None, most))
        return rates


def _peak(window: Window) -> float:
    """The highest arrival rate over any `rate_seconds` within `low_seconds`, all partitions."""
    policy = window.policy
    begin = max(window.at[0] - policy.low_seconds, window.restarted_at)
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
