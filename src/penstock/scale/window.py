"""The history of one group: rows in order of time, and where each partition's story restarts.

Lag is counted from max(committed, log start), so records that retention deleted are not owed;
completed offsets beyond the commit and transaction markers are taken off; it is never negative
(the two offsets are read one after the other). Its age is read from the history of end offsets:
the first unhandled record was appended when the end offset passed it.

A partition's story restarts where its numbers stop being comparable: the topic was created anew,
the group was rewound, retention overtook it, or it is new. The whole window restarts when the
clock ran backwards or samples are missing for longer than `gap`: then nothing was continuous.

What a rule asks of the past ("since when?") is kept up to date with each row instead of being
looked up in all of them: ten thousand groups are judged every ten seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.scale.values import NO_COMMIT, NO_OWNER, PartitionKey, Progress, offsets

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from penstock.scale.policy import Policy
    from penstock.scale.values import GroupState, Sample

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

Layout = tuple[tuple[str, int], ...]  # (topic, partitions)


@dataclass(slots=True)
class Row:
    """One sample, flattened: position i of every array is partition i of the window's layout."""

    at: float
    incarnations: tuple[str, ...]
    end: Floats
    start: Floats
    done: Floats  # position behind which everything is handled; nan where it is unknown
    lag: Floats  # records; nan where `done` is
    age: Floats  # seconds; nan where `done` is
    smooth_lag: Floats
    smooth_age: Floats
    total: float  # of `end`
    known: bool  # nothing is nan


@dataclass(slots=True)
class Since:
    """Moments, for each partition: each is that of a row."""

    begun: Floats  # its story
    high: Floats  # smoothed lag above the threshold without a break; inf while it is not
    low: Floats  # smoothed lag low without a break; inf while it is not
    moved: Floats  # the position
    arrived: Floats  # the end


class Window:
    """What the policy may ask about, newest last. Filled by `add` alone."""

    def __init__(self, policy: Policy, *, gap: float) -> None:
        self.policy = policy
        self.gap = gap
        self.rows: deque[Row] = deque()  # as far back as rates and smoothing look
        self.history: deque[tuple[float, Floats, float]] = deque()  # (at, end, total), all of it
        self.layout: Layout = ()
        self.since = Since(*(np.empty(0) for _ in range(5)))
        self.restarted_at = 0.0  # the newest of `since.begun`
        self.owners: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.shared: NDArray[np.int64] = self.owners  # other partitions that each one's owner has
        self.members = 0
        self.state: GroupState | str = ""
        self.steady_since = 0.0
        self._generation = 0
        self._keys: list[PartitionKey] | None = None

    def add(self, sample: Sample) -> None:
        """Takes a sample in. One that is not newer than the last, or far newer, restarts the window."""
        last = self.rows[-1] if self.rows else None
        if last is not None and not 0 < sample.at - last.at <= self.gap:
            self.rows.clear()
            self.history.clear()
            last = None
        layout = self._layout_of(sample)
        if last is not None and self.layout != layout:
            self._relay(layout)
            last = self.rows[-1]
        if self.layout != layout:
            self.layout, self._keys = layout, None
        row, restarts = self._row(sample, last)
        self._keep_since(row, last, restarts)
        self._keep_steady(sample, last)
        self.rows.append(row)
        self.history.append((row.at, row.end, row.total))
        while row.at - self.history[0][0] > self.policy.history:
            self.history.popleft()
        oldest = row.at - self.policy.rate_seconds - 1e-6
        while self.rows[0].at < oldest and len(self.rows) > self.policy.smoothing_samples:
            self.rows.popleft()

    def partitions(self) -> list[PartitionKey]:
        if self._keys is None:
            self._keys = [
                PartitionKey(topic, index) for topic, count in self.layout for index in range(count)
            ]
        return self._keys

    def _layout_of(self, sample: Sample) -> Layout:
        wanted = self.policy.topics or sorted(sample.progress)
        return tuple((topic, len(sample.logs[topic].end)) for topic in wanted if topic in sample.logs)

    def _row(self, sample: Sample, last: Row | None) -> tuple[Row, Bools]:
        layout = self.layout
        logs = [sample.logs[topic] for topic, _ in layout]
        progress = [_padded(sample.progress.get(topic), count) for topic, count in layout]
        end, start = _joined(log.end for log in logs), _joined(log.start for log in logs)
        committed = _joined(each.committed for each in progress)
        done = np.maximum(committed, start)
        if any(each.beyond is not None for each in progress):
            done += _joined(each.beyond or _filled(0, len(each.committed)) for each in progress)
        if any(each.markers is not None for each in progress):
            done += _joined(each.markers or _filled(0, len(each.committed)) for each in progress)
        known = True
        if committed.min(initial=0.0) == NO_COMMIT:
            never = committed == NO_COMMIT
            known = self.policy.reset_policy == "earliest"
            done[never] = start[never] if known else np.nan
        lag = np.maximum(end - done, 0.0)
        incarnations = tuple(log.incarnation for log in logs)
        restarts = _restarts(layout, incarnations, end, done, start, last)
        age = self._ages(sample.at, end, done, lag, restarts)
        self._keep_owners(_owners(progress))
        begun = np.where(restarts, sample.at, self.since.begun if last is not None else sample.at)
        row = Row(sample.at, incarnations, end, start, done, lag, age, lag, age, float(end.sum()), known)
        self.restarted_at = float(begun.max(initial=0.0))
        row.smooth_lag, row.smooth_age = self._smoothed("lag", row, begun), self._smoothed("age", row, begun)
        return row, restarts

    def _keep_owners(self, owners: NDArray[np.int64]) -> None:
        if len(owners) == len(self.owners) and owners.tobytes() == self.owners.tobytes():
            return
        together = np.count_nonzero(owners[:, None] == owners[None, :], axis=1)
        self.owners, self.shared = owners, np.where(owners == NO_OWNER, 0, together - 1)

    def _smoothed(self, name: str, row: Row, begun: Floats) -> Floats:
        """The newest value joined with those before it, within each partition's story."""
        newest: Floats = getattr(row, name)
        count = min(self.policy.smoothing_samples, len(self.rows) + 1)
        if count == 1:
            return newest
        before = [self.rows[-shift] for shift in range(1, count)]
        whole = before[-1].at >= self.restarted_at and row.known and all(each.known for each in before)
        if whole and count == 3 and self.policy.smoothing == "median":  # the defaults, most of the time
            one, two = getattr(before[0], name), getattr(before[1], name)
            return np.asarray(np.maximum(np.minimum(newest, one), np.minimum(np.maximum(newest, one), two)))
        layers = np.array([newest, *(getattr(row, name) for row in before)])
        for index, row in enumerate(before, start=1):
            outside = row.at < begun
            if outside.any():
                layers[index, outside] = np.nan
        if self.policy.smoothing == "mean":
            known = ~np.isnan(layers)
            return np.asarray(np.where(known, layers, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1))
        layers.sort(axis=0)  # unknown values go to the end, and the middle of the rest is taken
        amount = np.maximum(count - np.isnan(layers).sum(axis=0), 1)
        column = np.arange(len(newest))
        return np.asarray((layers[(amount - 1) // 2, column] + layers[amount // 2, column]) / 2)

    def _ages(self, now: float, end: Floats, done: Floats, lag: Floats, restarts: Bools) -> Floats:
        """Seconds since the first unhandled record was appended, interpolated from end offsets.

        Older than the window: carried on at the window's mean arrival rate. Without two points
        to measure a rate by, the time watched is the least it can be.
        """
        age = np.where(np.isnan(done), np.nan, 0.0)
        behind = (lag > 0) & ~restarts
        if not self.rows or not behind.any():
            return age
        last = self.rows[-1]
        lately = behind & (done >= last.end)  # appended since the last row: most, most of the time
        if lately.any():
            share = (done[lately] - last.end[lately]) / (end[lately] - last.end[lately])
            age[lately] = (1.0 - share) * (now - last.at)
        earlier = np.flatnonzero(behind & ~lately)
        if len(earlier):
            times = np.array([at for at, _, _ in self.history] + [now])
            ends = np.array([past[earlier] for _, past, _ in self.history] + [end[earlier]])
            for place, index in enumerate(earlier.tolist()):
                since = int(np.searchsorted(times, self.since.begun[index]))
                age[index] = now - _appended(times[since:], ends[since:, place], done[index])
        return age

    def _keep_since(self, row: Row, last: Row | None, restarts: Bools) -> None:
        at = row.at
        high, low = self._judged(row.smooth_lag, row.smooth_age)
        if last is None:
            now = np.full(len(row.end), at)
            begun, rose, fell = now, np.where(high, at, np.inf), np.where(low, at, np.inf)
            self.since = Since(begun, rose, fell, now.copy(), now.copy())
            return
        since = self.since
        since.begun = np.where(restarts, at, since.begun)
        began = self._rose(high & np.isinf(since.high), row)
        since.high = np.where(high, np.where(restarts, at, np.minimum(since.high, began)), np.inf)
        since.low = np.where(low, np.where(restarts, at, np.minimum(since.low, at)), np.inf)
        since.moved = np.where((row.done != last.done) | restarts, at, since.moved)
        since.arrived = np.where((row.end != last.end) | restarts, at, since.arrived)

    def _rose(self, newly: Bools, row: Row) -> Floats | float:
        """Since when those that are newly high really are.

        Smoothing shows a rise some rows late, and it began between two rows: there the lag is taken to
        have grown evenly.
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
            newly = newly & (earlier.at >= self.since.begun)
            before, after = self._judged(earlier.lag, earlier.age)[0], self._judged(later.lag, later.age)[0]
            share = np.where(before, 0.0, self._passed(earlier, later))
            known = newly & (before | after) & ~(before & (back == late))
            rose = np.where(known, earlier.at + share * (later.at - earlier.at), rose)
            newly, later = newly & before, earlier
        return rose

    def _passed(self, earlier: Row, later: Row) -> Floats:
        """How far between two rows each partition became high, from 0 to 1."""
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

    def _judged(self, lag: Floats, age: Floats) -> tuple[Bools, Bools]:
        """(high, low) for each partition; an unknown lag is neither."""
        policy = self.policy
        high, low = np.zeros(len(lag), dtype=np.bool_), np.ones(len(lag), dtype=np.bool_)
        if policy.lag_threshold:
            high |= lag > policy.lag_threshold
            low &= lag <= policy.lag_threshold * policy.low_percent
        if policy.lag_seconds_threshold:
            high |= age > policy.lag_seconds_threshold
            low &= age <= policy.lag_seconds_threshold * policy.low_percent
        return high, low

    def _keep_steady(self, sample: Sample, last: Row | None) -> None:
        now = (sample.members, sample.state, sample.generation)
        if last is None or now != (self.members, self.state, self._generation):
            self.steady_since = sample.at
        self.members, self.state, self._generation = now

    def _relay(self, layout: Layout) -> None:
        """Puts all that is kept into a new order of partitions; nan where nothing was known."""
        columns = {key: index for index, key in enumerate(self.partitions())}
        wanted = [PartitionKey(topic, index) for topic, count in layout for index in range(count)]
        picks = np.array([columns.get(key, -1) for key in wanted], dtype=np.int64)

        def pick(values: Floats, unknown: float = np.nan) -> Floats:
            return np.where(picks >= 0, np.append(values, unknown)[picks], unknown)

        names = [topic for topic, _ in self.layout]
        for row in self.rows:
            before = dict(zip(names, row.incarnations, strict=True))
            row.incarnations = tuple(before.get(topic, "") for topic, _ in layout)
            row.end, row.start, row.done = pick(row.end), pick(row.start), pick(row.done)
            row.lag, row.age = pick(row.lag), pick(row.age)
            row.smooth_lag, row.smooth_age = pick(row.smooth_lag), pick(row.smooth_age)
            row.known = False  # partitions that are new were not there
        self.history = deque((at, pick(end), total) for at, end, total in self.history)
        since = self.since
        self.since = Since(
            pick(since.begun, np.inf), pick(since.high, np.inf), pick(since.low, np.inf),
            pick(since.moved, np.inf), pick(since.arrived, np.inf),
        )  # fmt: skip


def _appended(times: Floats, ends: Floats, offset: float) -> float:
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


def _restarts(
    layout: Layout, incarnations: tuple[str, ...], end: Floats, done: Floats, start: Floats, last: Row | None
) -> Bools:
    if last is None:
        return np.ones(len(end), dtype=np.bool_)
    shrunk = ~(end >= last.end)  # true for nan as well: a partition that was not there before
    rewound = done < last.done
    overtaken = (start > last.done) & (start >= done)
    appeared = np.isnan(last.done) & ~np.isnan(done)
    restarts = shrunk | rewound | overtaken | appeared
    if incarnations != last.incarnations:
        anew = [new != old for new, old in zip(incarnations, last.incarnations, strict=True)]
        restarts |= np.repeat(anew, [count for _, count in layout])
    return np.asarray(restarts)


def _owners(progress: Sequence[Progress]) -> NDArray[np.int64]:
    if all(each.owners is None for each in progress):
        return np.full(sum(len(each.committed) for each in progress), NO_OWNER, dtype=np.int64)
    columns = [each.owners or _filled(NO_OWNER, len(each.committed)) for each in progress]
    return np.concatenate([np.frombuffer(column, dtype=np.int64) for column in columns])


def _joined(parts: Iterable[array[int]]) -> Floats:
    pieces = [np.frombuffer(part, dtype=np.int64) for part in parts]
    if len(pieces) == 1:
        return pieces[0].astype(np.float64)
    return np.concatenate(pieces).astype(np.float64) if pieces else np.empty(0)


def _padded(progress: Progress | None, count: int) -> Progress:
    """As long as the topic now is: partitions were added, or the group never committed there."""
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
        committed, fit(progress.beyond, 0), fit(progress.markers, 0), fit(progress.owners, NO_OWNER)
    )


def _filled(value: int, count: int) -> array[int]:
    return offsets([value] * count)
