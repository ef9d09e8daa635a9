"""The sample history of one group, oldest first, with lag and age of each partition.

Lag counts from the committed offset or the log start, whichever is later, so deleted records do not
count. Neither do records completed beyond the commit, nor transaction markers. It is never negative,
although the two offsets are read one after the other. Age comes from the history of end offsets: the
first unhandled record was appended when the end offset passed it.

A partition's history restarts where its numbers stop being comparable: the topic was recreated, the
group was rewound, or the partition is new. The whole window restarts when samples are missing for longer
than `gap`. Where retention overtakes the group, the deleted records are counted as lost, not as consumed:
otherwise a group that only loses records would look like one that drains its backlog.

Each row updates the "since when" values that rules need. Ten thousand groups are evaluated every ten
seconds, so the rules must not search the history.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.scale.decision.values import NO_COMMIT, NO_OWNER, PartitionKey, Progress, offsets

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import GroupState, Sample

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

Layout = tuple[tuple[str, int], ...]  # (topic, partitions)


@dataclass(slots=True)
class Row:
    """One sample, flattened: index i of every array is partition i of the window's layout."""

    at: float
    topic_ids: tuple[str, ...]
    end: Floats
    start: Floats
    done: Floats  # offset plus what is completed beyond it; nan where unknown
    lost: Floats  # records that retention deleted before the group read them, since the window began
    lag: Floats  # records; nan where `done` is
    age: Floats  # seconds; nan where `done` is
    smooth_lag: Floats
    smooth_age: Floats
    total: float  # sum of `end`
    known: bool  # no value is nan


@dataclass(slots=True)
class Since:
    """For each partition, since when something holds."""

    started: Floats  # its history is continuous
    high: Floats  # the smoothed lag is above the threshold; inf while it is not
    low: Floats  # the smoothed lag is low; inf while it is not
    moved: Floats  # the group last read records
    arrived: Floats  # `end` last changed


class Window:
    """The samples a policy needs, newest last."""

    def __init__(self, policy: Policy, *, gap: float) -> None:
        self.policy = policy
        self.gap = gap
        self.rows: deque[Row] = deque()  # as far back as rates and smoothing need
        self.history: deque[tuple[float, Floats, float]] = deque()  # (at, end, total) of the whole window
        self.layout: Layout = ()
        self.since = Since(*(np.empty(0) for _ in range(5)))
        self.restarted_at = 0.0  # the newest of `since.started`
        self.owners: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.shared: NDArray[np.int64] = self.owners  # how many other partitions the owner of each has
        self.members = 0
        self.state: GroupState | str = ""
        self.steady_since = 0.0  # members unchanged
        self.unsettled_since = 0.0  # members changed again and again, each time within the settle time
        self._generation = 0
        self._keys: list[PartitionKey] | None = None

    def add(self, sample: Sample) -> None:
        """Adds a sample. One not newer than the last, or newer by more than `gap`, restarts the window."""
        last = self.rows[-1] if self.rows else None
        if last is not None and not 0 < sample.at - last.at <= self.gap:
            self.rows.clear()
            self.history.clear()
            last = None
        layout = self._layout_of(sample)
        if last is not None and self.layout != layout:
            self._reorder(layout)
            last = self.rows[-1]
        if self.layout != layout:
            self.layout, self._keys = layout, None
        row, restarts = self._row(sample, last)
        self._update_since(row, last, restarts)
        self._update_steady(sample, last)
        self.rows.append(row)
        self.history.append((row.at, row.end, row.total))
        while row.at - self.history[0][0] > self.policy.history:
            self.history.popleft()
        oldest = row.at - self.policy.rate_seconds - 1e-6
        while self.rows[0].at < oldest and len(self.rows) > self.policy.smoothing_samples:
            self.rows.popleft()

    def partitions(self) -> list[PartitionKey]:
        if self._keys is None:
            self._keys = _partition_keys(self.layout)
        return self._keys

    def _layout_of(self, sample: Sample) -> Layout:
        topics = self.policy.topics or sorted(sample.progress)
        return tuple((topic, len(sample.logs[topic].end)) for topic in topics if topic in sample.logs)

    def _row(self, sample: Sample, last: Row | None) -> tuple[Row, Bools]:
        layout = self.layout
        logs = [sample.logs[topic] for topic, _ in layout]
        progress = [_padded(sample.progress.get(topic), count) for topic, count in layout]
        end, start = _joined(log.end for log in logs), _joined(log.start for log in logs)
        committed = _joined(each.committed for each in progress)
        done = np.maximum(committed, start)
        if any(each.completed_beyond is not None for each in progress):
            done += _joined(each.completed_beyond or _filled(0, len(each.committed)) for each in progress)
        if any(each.markers is not None for each in progress):
            done += _joined(each.markers or _filled(0, len(each.committed)) for each in progress)
        known = True
        if committed.min(initial=0.0) == NO_COMMIT:
            never = committed == NO_COMMIT
            known = self.policy.reset_policy == "earliest"
            done[never] = start[never] if known else np.nan
        lag = np.maximum(end - done, 0.0)
        topic_ids = tuple(log.topic_id for log in logs)
        restarts = _restarts(layout, topic_ids, end, done, last)
        age = self._ages(sample.at, end, done, lag, restarts)
        self._update_owners(_owners(progress))
        started = np.where(restarts, sample.at, self.since.started if last is not None else sample.at)
        lost = np.zeros(len(end)) if last is None else _lost(start, last)
        row = Row(sample.at, topic_ids, end, start, done, lost, lag, age, lag, age, float(end.sum()), known)
        self.restarted_at = float(started.max(initial=0.0))
        row.smooth_lag = self._smoothed("lag", row, started)
        row.smooth_age = self._smoothed("age", row, started)
        return row, restarts

    def _update_owners(self, owners: NDArray[np.int64]) -> None:
        if len(owners) == len(self.owners) and owners.tobytes() == self.owners.tobytes():
            return
        together = np.count_nonzero(owners[:, None] == owners[None, :], axis=1)
        self.owners, self.shared = owners, np.where(owners == NO_OWNER, 0, together - 1)

    def _smoothed(self, name: str, row: Row, started: Floats) -> Floats:
        """The newest values smoothed with those before them, within each partition's history."""
        newest: Floats = getattr(row, name)
        count = min(self.policy.smoothing_samples, len(self.rows) + 1)
        if count == 1:
            return newest
        before = [self.rows[-shift] for shift in range(1, count)]
        whole = before[-1].at >= self.restarted_at and row.known and all(each.known for each in before)
        if whole and count == 3 and self.policy.smoothing == "median":  # fast path for the defaults
            one, two = getattr(before[0], name), getattr(before[1], name)
            return np.asarray(np.maximum(np.minimum(newest, one), np.minimum(np.maximum(newest, one), two)))
        layers = np.array([newest, *(getattr(row, name) for row in before)])
        for index, row in enumerate(before, start=1):
            outside = row.at < started
            if outside.any():
                layers[index, outside] = np.nan
        if self.policy.smoothing == "mean":
            known = ~np.isnan(layers)
            return np.asarray(np.where(known, layers, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
        layers.sort(axis=0)  # nan sorts last; take the median of the rest
        amount = np.maximum(count - np.isnan(layers).sum(axis=0), 1)
        column = np.arange(len(newest))
        return np.asarray((layers[(amount - 1) // 2, column] + layers[amount // 2, column]) / 2)

    def _ages(self, now: float, end: Floats, done: Floats, lag: Floats, restarts: Bools) -> Floats:
        """Seconds since the first unhandled record was appended, interpolated from end offsets.

        A record older than the window is extrapolated at the window's mean arrival rate. Without a
        rate, its age is at least the time covered by the window.
        """
        age = done * 0.0  # nan where unknown
        behind = (lag > 0) & ~restarts
        if not self.rows or not behind.any():
            return age
        last = self.rows[-1]
        recent = behind & (done >= last.end)  # appended since the last row: the usual case
        if recent.any():
            share = (done[recent] - last.end[recent]) / (end[recent] - last.end[recent])
            age[recent] = (1.0 - share) * (now - last.at)
        earlier = np.flatnonzero(behind & ~recent)
        if len(earlier):
            times = np.array([at for at, _, _ in self.history] + [now])
            ends = np.array([past[earlier] for _, past, _ in self.history] + [end[earlier]])
            for column, index in enumerate(earlier.tolist()):
                since = int(np.searchsorted(times, self.since.started[index]))
                age[index] = now - _appended_at(times[since:], ends[since:, column], done[index])
        return age

    def _update_since(self, row: Row, last: Row | None, restarts: Bools) -> None:
        at = row.at
        high, low = self._high_and_low(row.smooth_lag, row.smooth_age)
        if last is None:
            now = np.full(len(row.end), at)
            started, rose, fell = now, np.where(high, at, np.inf), np.where(low, at, np.inf)
            self.since = Since(started, rose, fell, now.copy(), now.copy())
            return
        since = self.since
        since.started = np.where(restarts, at, since.started)
        began = self._high_since(high & np.isinf(since.high), row)
        since.high = np.where(high, np.where(restarts, at, np.minimum(since.high, began)), np.inf)
        since.low = np.where(low, np.where(restarts, at, np.minimum(since.low, at)), np.inf)
        passed = row.done != last.done
        if row.lost is not last.lost:
            passed = row.done - row.lost != last.done - last.lost
        since.moved = np.where(passed | restarts, at, since.moved)
        since.arrived = np.where((row.end != last.end) | restarts, at, since.arrived)

    def _high_since(self, newly: Bools, row: Row) -> Floats | float:
        """Since when the partitions that are newly high have been so.

        Smoothing shows a rise some rows late. Between two rows the lag is assumed to grow evenly.
        """
        if not newly.any():
            return row.at
        rose = np.full(len(newly), row.at)
        late = self.policy.smoothing_samples // 2
        later = row
        for back in range(min(late + 1, len(self.rows))):
            if not newly.any():
                break
            earlier = self.rows[-1 - back]
            newly = newly & (earlier.at >= self.since.started)
            before = self._high_and_low(earlier.lag, earlier.age)[0]
            after = self._high_and_low(later.lag, later.age)[0]
            share = np.where(before, 0.0, self._crossing(earlier, later))
            known = newly & (before | after) & ~(before & (back == late))
            rose = np.where(known, earlier.at + share * (later.at - earlier.at), rose)
            newly, later = newly & before, earlier
        return rose

    def _crossing(self, earlier: Row, later: Row) -> Floats:
        """Where between two rows each partition crossed its threshold, from 0 to 1."""
        policy, share = self.policy, np.ones(len(earlier.lag))
        thresholds = (
            (policy.lag_threshold, earlier.lag, later.lag),
            (policy.lag_seconds_threshold, earlier.age, later.age),
        )
        for threshold, low, high in thresholds:
            crossed = (low <= threshold) & (high > threshold) if threshold else np.zeros(len(low), np.bool_)
            step = np.where(crossed, high - low, 1.0)
            share = np.where(crossed, np.minimum(share, (threshold - low) / step), share)
        return share

    def _high_and_low(self, lag: Floats, age: Floats) -> tuple[Bools, Bools]:
        """(high, low) for each partition; an unknown lag is neither."""
        records, seconds, share = (
            self.policy.lag_threshold, self.policy.lag_seconds_threshold, self.policy.low_percent
        )  # fmt: skip
        if not seconds:
            return lag > records, lag <= records * share
        high, low = age > seconds, age <= seconds * share
        return (high | (lag > records), low & (lag <= records * share)) if records else (high, low)

    def _update_steady(self, sample: Sample, last: Row | None) -> None:
        now = (sample.members, sample.state, sample.generation)
        if last is None or now != (self.members, self.state, self._generation):
            if last is None or sample.at - self.steady_since >= self.policy.settle:
                self.unsettled_since = sample.at
            self.steady_since = sample.at
        self.members, self.state, self._generation = now

    def _reorder(self, layout: Layout) -> None:
        """Rearranges all arrays for a new layout; nan for partitions that were not in the old one."""
        columns = {key: index for index, key in enumerate(self.partitions())}
        picks = np.array([columns.get(key, -1) for key in _partition_keys(layout)], dtype=np.int64)

        def pick(values: Floats, unknown: float = np.nan) -> Floats:
            return np.where(picks >= 0, np.append(values, unknown)[picks], unknown)

        names = [topic for topic, _ in self.layout]
        for row in self.rows:
            before = dict(zip(names, row.topic_ids, strict=True))
            row.topic_ids = tuple(before.get(topic, "") for topic, _ in layout)
            row.end, row.start, row.done = pick(row.end), pick(row.start), pick(row.done)
            row.lag, row.age, row.lost = pick(row.lag), pick(row.age), pick(row.lost, 0.0)
            row.smooth_lag, row.smooth_age = pick(row.smooth_lag), pick(row.smooth_age)
            row.known = False  # new partitions are nan in old rows
        self.history = deque((at, pick(end), total) for at, end, total in self.history)
        since = self.since
        self.since = Since(
            pick(since.started, np.inf), pick(since.high, np.inf), pick(since.low, np.inf),
            pick(since.moved, np.inf), pick(since.arrived, np.inf),
        )  # fmt: skip


def _partition_keys(layout: Layout) -> list[PartitionKey]:
    return [PartitionKey(topic, index) for topic, count in layout for index in range(count)]


def _appended_at(times: Floats, ends: Floats, offset: float) -> float:
    """When the end offset passed `offset`."""
    before = int(np.searchsorted(ends, offset, side="right")) - 1
    if before >= len(times) - 1:
        return float(times[-1])
    if before >= 0:
        share = (offset - ends[before]) / (ends[before + 1] - ends[before])
        return float(times[before] + share * (times[before + 1] - times[before]))
    arrived = ends[-1] - ends[0]
    span = times[-1] - times[0]
    if arrived <= 0 or span <= 0:
        return float(times[0])
    return float(times[0] - (ends[0] - offset) * span / arrived)


def _lost(start: Floats, last: Row) -> Floats:
    """What retention has deleted unread; the same array as before if it deleted nothing."""
    overtaken = start > last.done
    return last.lost + np.where(overtaken, start - last.done, 0.0) if overtaken.any() else last.lost


def _restarts(
    layout: Layout, topic_ids: tuple[str, ...], end: Floats, done: Floats, last: Row | None
) -> Bools:
    if last is None:
        return np.ones(len(end), dtype=np.bool_)
    shrunk = ~(end >= last.end)  # also true for nan: a new partition
    restarts = shrunk | (done < last.done)
    if not last.known:
        restarts |= np.isnan(last.done) & ~np.isnan(done)
    if topic_ids != last.topic_ids:
        recreated = [new != old for new, old in zip(topic_ids, last.topic_ids, strict=True)]
        restarts |= np.repeat(recreated, [count for _, count in layout])
    return np.asarray(restarts)


def _owners(progress: Sequence[Progress]) -> NDArray[np.int64]:
    if all(each.owners is None for each in progress):
        return np.full(sum(len(each.committed) for each in progress), NO_OWNER, dtype=np.int64)
    columns = [each.owners or _filled(NO_OWNER, len(each.committed)) for each in progress]
    return np.concatenate([np.frombuffer(column, dtype=np.int64) for column in columns])


def _joined(columns: Iterable[array[int]]) -> Floats:
    pieces = [np.frombuffer(column, dtype=np.int64) for column in columns]
    if len(pieces) == 1:
        return pieces[0].astype(np.float64)
    return np.concatenate(pieces).astype(np.float64) if pieces else np.empty(0)


def _padded(progress: Progress | None, count: int) -> Progress:
    """The progress extended to `count` partitions, where some were added or never committed."""
    if progress is None:
        return Progress(committed=_filled(NO_COMMIT, count))
    if len(progress.committed) == count:
        return progress

    def fit(values: array[int] | None, filler: int) -> array[int] | None:
        if values is None:
            return None
        return values[:count] + _filled(filler, max(0, count - len(values)))

    committed = fit(progress.committed, NO_COMMIT)
    assert committed is not None
    return Progress(
        committed, fit(progress.completed_beyond, 0), fit(progress.markers, 0), fit(progress.owners, NO_OWNER)
    )


def _filled(value: int, count: int) -> array[int]:
    return offsets([value] * count)
