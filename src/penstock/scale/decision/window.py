"""The sample history of groups, with lag and age of each partition.

Lag counts from the committed offset or the log start, whichever is later, so deleted records do not
count. Neither do records completed beyond the commit, nor transaction markers. It is never negative,
although the two offsets are read one after the other. Age comes from the history of end offsets: the
first unhandled record was appended when the end offset passed it.

A partition's history restarts where its numbers stop being comparable: the topic was recreated, the
group was rewound, or the partition is new. The whole window restarts when samples are missing for longer
than `gap`. Where retention overtakes the group, the deleted records are counted as lost, not as consumed:
otherwise a group that only loses records would look like one that drains its backlog.

A call into NumPy costs as much for a dozen partitions as for hundreds. The samples of one record are
therefore added together: the partitions of all its groups are the columns of one `Stack`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.scale.decision.values import NO_COMMIT, NO_OWNER, PartitionKey, Progress, offsets

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.scale.decision.policy import Policy
    from penstock.scale.decision.values import GroupState, Sample

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Layout = tuple[tuple[str, int], ...]  # (topic, partitions)


class Values(NamedTuple):
    """The numbers of one sample; index i of each array is partition i of the layout."""

    end: Floats
    start: Floats
    done: Floats  # offset plus what is completed beyond it; nan where unknown
    lost: Floats  # records that retention deleted before the group read them, since the window began
    lag: Floats  # records; nan where `done` is
    age: Floats  # seconds; nan where `done` is
    smooth_lag: Floats
    smooth_age: Floats


class Since(NamedTuple):
    """For each partition, since when something holds."""

    started: Floats  # its history is continuous
    high: Floats  # the smoothed lag is above the threshold; inf while it is not
    low: Floats  # the smoothed lag is low; inf while it is not
    moved: Floats  # the group last read records
    arrived: Floats  # `end` last changed


class Window:
    """The samples of one group that a policy needs."""

    def __init__(self, policy: Policy, *, gap: float) -> None:
        self.policy = policy
        self.gap = gap
        self.at: list[float] = []  # of each row, the newest first, as far back as rates and smoothing need
        self.matrix: Floats = np.empty((len(Values._fields), 0, 0))  # fields × rows × partitions
        self.history: deque[tuple[float, Floats, float]] = deque()  # (at, end, its sum), newest last
        self.layout: Layout = ()
        self.topic_ids: tuple[str, ...] = ()
        self.since_matrix: Floats = np.empty((len(Since._fields), 0))
        self.owners: Ints = np.empty(0, dtype=np.int64)
        self.members = 0
        self.state: GroupState | str = ""
        self.steady_since = 0.0  # members unchanged
        self.unsettled_since = 0.0  # members changed again and again, each time within the settle time
        self._generation = 0
        self._keys: list[PartitionKey] | None = None

    @property
    def newest(self) -> Values:
        return Values(*self.matrix[:, 0])

    @property
    def since(self) -> Since:
        return Since(*self.since_matrix)

    @property
    def restarted_at(self) -> float:
        """When the newest history of its partitions began."""
        return float(self.since_matrix[0].max(initial=0.0))

    def partitions(self) -> list[PartitionKey]:
        if self._keys is None:
            self._keys = _partition_keys(self.layout)
        return self._keys

    def add(self, sample: Sample) -> None:
        """Adds a sample. One not newer than the last, or newer by more than `gap`, restarts the window."""
        add_samples([self], [sample])

    def prepare(self, sample: Sample) -> None:
        """Restarts or rearranges the window if the sample requires it."""
        if self.at and not 0 < sample.at - self.at[0] <= self.gap:
            self.at.clear()
            self.history.clear()
        topics = self.policy.topics or sorted(sample.progress)
        layout = tuple((topic, len(sample.logs[topic].end)) for topic in topics if topic in sample.logs)
        if self.layout != layout:
            if self.at:
                self._reorder(layout)
            self.layout, self._keys = layout, None
        now = (sample.members, sample.state, sample.generation)
        if not self.at or now != (self.members, self.state, self._generation):
            if not self.at or sample.at - self.steady_since >= self.policy.settle:
                self.unsettled_since = sample.at
            self.steady_since = sample.at
        self.members, self.state, self._generation = now

    def append(self, at: float, matrix: Floats, since: Floats, total: float) -> None:
        """Takes the matrix with the row of a new sample; `total` is the sum of its end offsets."""
        self.at.insert(0, at)
        oldest = at - self.policy.rate_seconds - 1e-6
        while self.at[-1] < oldest and len(self.at) > self.policy.smoothing_samples:
            self.at.pop()
        self.matrix, self.since_matrix = matrix[:, : len(self.at)], since
        self.history.append((at, self.matrix[0, 0], total))
        while at - self.history[0][0] > self.policy.history:
            self.history.popleft()

    def _reorder(self, layout: Layout) -> None:
        """Rearranges all arrays for a new layout; nan for partitions that were not in the old one."""
        columns = {key: index for index, key in enumerate(self.partitions())}
        picks = np.array([columns.get(key, -1) for key in _partition_keys(layout)], dtype=np.int64)

        def pick(values: Floats, unknown: float = np.nan) -> Floats:
            padded = np.insert(values, values.shape[-1], unknown, axis=-1)
            return padded[..., picks]

        ids = {topic: topic_id for (topic, _), topic_id in zip(self.layout, self.topic_ids, strict=True)}
        self.topic_ids = tuple(ids.get(topic, "") for topic, _ in layout)
        self.matrix = pick(self.matrix)
        self.history = deque((at, pick(end), total) for at, end, total in self.history)
        self.since_matrix = pick(self.since_matrix, np.inf)


class Stack:
    """The last rows of several windows side by side: a column for each partition, the newest row first."""

    def __init__(self, windows: Sequence[Window], depth: int) -> None:
        self.windows = windows
        counts = [sum(count for _, count in window.layout) for window in windows]
        ends = np.cumsum(counts).tolist()
        self.slices = [slice(end - count, end) for end, count in zip(ends, counts)]
        self.group = np.repeat(np.arange(len(windows)), counts)  # of each column
        # The time of each row; nan: the window has no such row.
        at = [[*window.at, *[np.nan] * (depth - len(window.at))] for window in windows]
        self.at = np.repeat(np.array(at).T, counts, axis=1)
        parts = [window.matrix for window in windows]
        since = [window.since_matrix for window in windows]
        for index, (window, count) in enumerate(zip(windows, counts)):
            missing = depth - len(window.at)
            if missing:
                padding = np.full((len(Values._fields), missing, count), np.nan)
                parts[index] = np.concatenate([window.matrix, padding], axis=1) if window.at else padding
            if not window.at:
                since[index] = np.full((len(Since._fields), count), np.nan)
        self.matrix = np.concatenate(parts, axis=2)
        self.values = Values(*self.matrix)  # each array is rows × columns
        self.since = Since(*np.concatenate(since, axis=1))
        self.policy = PolicyColumns([window.policy for window in windows], counts)


class PolicyColumns:
    """The parameters of several policies by name, each as a column; a number if it is the same in all."""

    def __init__(self, policies: Sequence[Policy], counts: Sequence[int]) -> None:
        self._policies, self._counts = policies, counts

    def __getattr__(self, name: str) -> Any:
        values = [getattr(policy, name) for policy in self._policies]
        column = values[0] if values.count(values[0]) == len(values) else np.repeat(values, self._counts)
        setattr(self, name, column)
        return column


def add_samples(windows: Sequence[Window], samples: Sequence[Sample]) -> None:
    """Adds one sample to each window."""
    for window, sample in zip(windows, samples, strict=True):
        window.prepare(sample)
    samples_max = max(window.policy.smoothing_samples for window in windows)
    stack = Stack(windows, max(samples_max, *(len(window.at) for window in windows)))
    last = Values(*(rows[0] for rows in stack.values))
    at = np.array([sample.at for sample in samples])[stack.group]
    end, start, done, owners = _positions(stack, samples)
    lag = np.maximum(end - done, 0.0)
    restarts = ~(end >= last.end)  # also true for nan: a new partition, or the first row
    restarts |= (done < last.done) | (np.isnan(last.done) & ~np.isnan(done))
    for window, sample, columns in zip(windows, samples, stack.slices):
        ids = tuple(sample.logs[topic].topic_id for topic, _ in window.layout)
        if window.at and ids != window.topic_ids:
            recreated = [new != old for new, old in zip(ids, window.topic_ids, strict=True)]
            restarts[columns] |= np.repeat(recreated, [count for _, count in window.layout])
        window.topic_ids, window.owners = ids, owners[columns]
    overtaken = np.where(start > last.done, start - last.done, 0.0)
    lost = np.where(np.isnan(last.lost), 0.0, last.lost) + overtaken
    age = _ages(stack, at, end, done, (lag > 0) & ~restarts)
    started = np.where(restarts, at, stack.since.started)
    smooth_lag, smooth_age = _smoothed(stack, started, lag, age)
    values = Values(end, start, done, lost, lag, age, smooth_lag, smooth_age)
    matrix = np.concatenate([np.array(values)[:, None], stack.matrix], axis=1)
    since = np.array(_since(stack, values, last, at, started, restarts))
    totals = np.bincount(stack.group, weights=end, minlength=len(windows)).tolist()
    for window, sample, columns, total in zip(windows, samples, stack.slices, totals):
        window.append(sample.at, matrix[:, :, columns], since[:, columns], total)


def _positions(stack: Stack, samples: Sequence[Sample]) -> tuple[Floats, Floats, Floats, Ints]:
    """(end, start, done, owner) of each partition."""
    pieces: tuple[list[array[int]], ...] = ([], [], [], [], [])
    for window, sample in zip(stack.windows, samples):
        for topic, count in window.layout:
            progress = _padded(sample.progress.get(topic), count)
            beyond = progress.completed_beyond or _filled(0, count)
            if progress.markers is not None:
                beyond = offsets([sum(both) for both in zip(beyond, progress.markers)])
            columns = (sample.logs[topic].end, sample.logs[topic].start, progress.committed, beyond)
            for piece, column in zip(pieces, (*columns, progress.owners or _filled(NO_OWNER, count))):
                piece.append(column)
    joined = [np.frombuffer(b"".join(piece), dtype=np.int64) for piece in pieces]
    end, start, committed, beyond_commit = (column.astype(np.float64) for column in joined[:4])
    done = np.maximum(committed, start) + beyond_commit
    never = committed == NO_COMMIT
    if never.any():
        earliest = np.equal(stack.policy.reset_policy, "earliest")
        done = np.where(never, np.where(earliest, start, np.nan), done)
    return end, start, done, joined[4]


def _ages(stack: Stack, at: Floats, end: Floats, done: Floats, behind: Bools) -> Floats:
    """Seconds since the first unhandled record was appended, interpolated from end offsets."""
    age = done * 0.0  # nan where unknown
    some = np.flatnonzero(behind)
    if not len(some):
        return age
    started = stack.since.started
    times = np.concatenate([stack.at[::-1, some], at[None, some]])
    ends = np.concatenate([stack.values.end[::-1, some], end[None, some]])
    age[some] = at[some] - _appended_at(times, ends, started[some], done[some])
    oldest = np.nanmin(np.where(times >= started[some], ends, np.nan), axis=0)
    older = some[done[some] < oldest]  # than the rows of the stack
    if len(older):
        times, ends = _histories(stack, older)
        times[-1], ends[-1] = at[older], end[older]
        age[older] = at[older] - _appended_at(times, ends, started[older], done[older])
    return age


def _histories(stack: Stack, chosen: Ints) -> tuple[Floats, Floats]:
    """(times, end offsets) of the chosen partitions over their whole windows, and an empty row for now."""
    groups = stack.group[chosen]
    histories = {index: stack.windows[index].history for index in np.unique(groups).tolist()}
    times, ends = np.full((2, 1 + max(map(len, histories.values())), len(chosen)), np.nan)
    for index, history in histories.items():
        own = groups == index
        rows = slice(-1 - len(history), -1)
        times[rows, own] = np.array([at for at, _, _ in history])[:, None]
        ends[rows, own] = np.array([end for _, end, _ in history])[:, chosen[own] - stack.slices[index].start]
    return times, ends


def _appended_at(times: Floats, ends: Floats, started: Floats, offset: Floats) -> Floats:
    """When the end offset of each partition passed `offset`, from rows of times and end offsets.

    An offset older than the window is extrapolated at the window's mean arrival rate. Without a rate, it is
    at least as old as the window.
    """
    column = np.arange(len(offset))
    within = times >= started
    first = np.argmax(within, axis=0)
    passed = np.count_nonzero(within & (ends <= offset), axis=0)
    before = first + np.maximum(passed - 1, 0)
    step = ends[before + 1, column] - ends[before, column]
    share = (offset - ends[before, column]) / np.where(step > 0, step, 1.0)
    begin = times[before, column]
    inside = begin + share * (times[before + 1, column] - begin)
    arrived, span = ends[-1] - ends[first, column], times[-1] - times[first, column]
    seconds_each = np.where(arrived > 0, span / np.where(arrived > 0, arrived, 1.0), 0.0)
    earlier = times[first, column] - (ends[first, column] - offset) * seconds_each
    return np.asarray(np.where(passed > 0, inside, earlier))


def _smoothed(stack: Stack, started: Floats, lag: Floats, age: Floats) -> tuple[Floats, Floats]:
    """The newest lag and age smoothed with those before them, within each partition's history."""
    policy, values = stack.policy, stack.values
    earlier = np.array([values.lag, values.age])[:, : np.max(policy.smoothing_samples) - 1]
    layers = np.concatenate([np.array([lag, age])[:, None], earlier], axis=1)
    for back in range(1, layers.shape[1]):
        within = (stack.at[back - 1] >= started) & (back < policy.smoothing_samples)
        layers[:, back] = np.where(within, layers[:, back], np.nan)
    layers.sort(axis=1)  # nan sorts last
    amount = np.maximum(layers.shape[1] - np.isnan(layers).sum(axis=1), 1)
    kind, column = np.arange(2)[:, None], np.arange(len(lag))
    median = (layers[kind, (amount - 1) // 2, column] + layers[kind, amount // 2, column]) / 2
    by_mean = np.equal(policy.smoothing, "mean")
    if not np.any(by_mean):
        return median[0], median[1]
    mean = np.nansum(layers, axis=1) / amount
    return np.where(by_mean, mean[0], median[0]), np.where(by_mean, mean[1], median[1])


def _since(stack: Stack, new: Values, last: Values, at: Floats, started: Floats, restarts: Bools) -> Since:
    before, policy = stack.since, stack.policy
    high = is_high(policy, new.smooth_lag, new.smooth_age)
    low = _is_low(policy, new.smooth_lag, new.smooth_age)
    began = _high_since(stack, high & np.isinf(before.high), new, at, started)
    moved = (new.done - new.lost != last.done - last.lost) | restarts
    return Since(
        started,
        np.where(high, np.where(restarts, at, np.minimum(before.high, began)), np.inf),
        np.where(low, np.where(restarts, at, np.minimum(before.low, at)), np.inf),
        np.where(moved, at, before.moved),
        np.where((new.end != last.end) | restarts, at, before.arrived),
    )


def _high_since(stack: Stack, newly: Bools, new: Values, at: Floats, started: Floats) -> Floats:
    """Since when the partitions that are newly high have been so.

    Smoothing shows a rise some rows late. Between two rows the lag is assumed to grow evenly.
    """
    rose, policy = at, stack.policy
    late = np.floor_divide(policy.smoothing_samples, 2)
    later = (at, new.lag, new.age)
    for back in range(len(stack.at)):
        newly = newly & (stack.at[back] >= started) & (back <= late)
        if not newly.any():
            break
        earlier = (stack.at[back], stack.values.lag[back], stack.values.age[back])
        before, after = is_high(policy, *earlier[1:]), is_high(policy, *later[1:])
        share = np.where(before, 0.0, _crossing(policy, earlier[1:], later[1:]))
        known = newly & (before | after) & ~(before & (back == late))
        rose = np.where(known, earlier[0] + share * (later[0] - earlier[0]), rose)
        newly, later = newly & before, earlier
    return rose


def _crossing(policy: PolicyColumns, earlier: tuple[Floats, ...], later: tuple[Floats, ...]) -> Floats:
    """Where between two rows each partition crossed its threshold, from 0 to 1."""
    share = np.ones(len(earlier[0]))
    thresholds = (policy.lag_threshold, policy.lag_seconds_threshold)
    for threshold, low, high in zip(thresholds, earlier, later):
        crossed = np.greater(threshold, 0) & (low <= threshold) & (high > threshold)
        step = np.where(crossed, high - low, 1.0)
        share = np.where(crossed, np.minimum(share, (threshold - low) / step), share)
    return share


def is_high(policy: Policy | PolicyColumns, lag: Floats, age: Floats) -> Bools:
    """Whether lag or age is above its threshold; an unknown one is not. A threshold of 0 is not used."""
    records, seconds = policy.lag_threshold, policy.lag_seconds_threshold
    return np.asarray((np.greater(records, 0) & (lag > records)) | (np.greater(seconds, 0) & (age > seconds)))


def _is_low(policy: PolicyColumns, lag: Floats, age: Floats) -> Bools:
    records, seconds, share = policy.lag_threshold, policy.lag_seconds_threshold, policy.low_percent
    few = np.equal(records, 0) | (lag <= records * share)
    return np.asarray(few & (np.equal(seconds, 0) | (age <= seconds * share)))


def _partition_keys(layout: Layout) -> list[PartitionKey]:
    return [PartitionKey(topic, index) for topic, count in layout for index in range(count)]


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
    return offsets([value]) * count
