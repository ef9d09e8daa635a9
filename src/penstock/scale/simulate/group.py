"""A simulated consumer group in steps of one second: members, assignment, work, commits, rebalances.

Members own contiguous ranges of partitions, as evenly as possible. A member divides its capacity
fairly among its partitions and passes on what one does not need. A change of members stops the whole
group for the rebalance. Commits come at an interval, so committed lag is a saw-tooth above true lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.scale.decision.values import GroupState, Log, Progress, Sample, offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.scale.simulate.traces import Trace

    Floats = NDArray[np.float64]

TOPIC: Final = "orders"


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds."""

    pod_start: int = 30
    rebalance: int = 6
    commit_interval: int = 5
    roll_step: int = 40  # a rolling restart replaces one pod this often


class ConsumerGroup:
    def __init__(self, trace: Trace, timing: Timing | None = None) -> None:
        self.trace = trace
        self.timing = timing or Timing()
        self.partitions = trace.arrivals.shape[1]
        self.end = np.zeros(self.partitions)
        self.position = np.zeros(self.partitions)
        self.committed = np.zeros(self.partitions)
        self.members = trace.replicas
        self.replicas = trace.replicas  # desired by the Deployment
        self.generation = 0
        self.age = 0.0  # of the oldest waiting record, in partitions that can be consumed
        self._starting: list[int] = []  # when each starting pod becomes ready
        self._stalled_until = 0
        self._rolling: list[int] = []  # +1 / -1 of members, one every half roll step
        self._owners = self._assigned()
        self._phase = np.arange(self.partitions) % self.timing.commit_interval
        self._arrived = np.cumsum(trace.arrivals, axis=0)

    def scale(self, replicas: int, second: int) -> None:
        """Sets the desired replicas. Surplus pods leave at once; new ones start up first."""
        change = replicas - self.replicas
        self.replicas = replicas
        if change > 0:
            self._starting += [second + self.timing.pod_start] * change
            return
        for _ in range(-change):
            if self._starting:
                self._starting.pop()
            elif self.members:
                self.members -= 1
                self._rebalance(second)

    def step(self, second: int) -> None:
        """Simulates one second."""
        self.end += self.trace.arrivals[second]
        self._join(second)
        self._roll(second)
        unreachable = any(begin <= second < until for begin, until in self.trace.unreachable)
        if second >= self._stalled_until and self.members and not unreachable:
            self._consume(second)
            due = (second + self._phase) % self.timing.commit_interval == 0
            self.committed[due] = self.position[due]
        self.age = self._oldest(second)

    def sample(self, at: float, second: int) -> Sample:
        """What a sampler reads; not to be called while the brokers are unreachable."""
        state = GroupState.STABLE if self.members else GroupState.EMPTY
        if second < self._stalled_until:
            state = GroupState.REBALANCING
        log = Log("one", offsets([0] * self.partitions), offsets(self.end.astype(np.int64).tolist()))
        progress = Progress(
            offsets(self.committed.astype(np.int64).tolist()),
            owners=offsets(self._owners.tolist()) if self.members else None,
        )
        return Sample(at, state, self.members, {TOPIC: log}, {TOPIC: progress}, self.generation)

    def lag(self) -> Floats:
        """Committed lag of each partition, which KEDA's scaler reads."""
        return np.floor(self.end) - np.floor(self.committed)

    def consumable(self, second: int) -> NDArray[np.bool_]:
        """Partitions never poisoned so far. No replica count helps the others, so they do not count."""
        able = np.ones(self.partitions, dtype=np.bool_)
        for partition, begin, _ in self.trace.poisoned:
            able[partition] = second < begin
        return able

    def _assigned(self) -> NDArray[np.int64]:
        return np.asarray(np.arange(self.partitions) * max(self.members, 1) // self.partitions)

    def _rebalance(self, second: int) -> None:
        self.generation += 1
        self._stalled_until = second + self.timing.rebalance
        self.committed = self.position.copy()  # members commit before partitions are revoked
        self._owners = self._assigned()

    def _join(self, second: int) -> None:
        ready = sum(1 for at in self._starting if at <= second)
        if ready:
            self._starting = [at for at in self._starting if at > second]
            self.members += ready
            self._rebalance(second)

    def _roll(self, second: int) -> None:
        """A rolling restart: a new pod joins, then an old one leaves, one pair at a time."""
        if second in self.trace.redeploys:
            self._rolling = [1, -1] * self.replicas
        if self._rolling and second % (self.timing.roll_step // 2) == 0:
            self.members = max(self.members + self._rolling.pop(0), 0)
            self._rebalance(second)

    def _consume(self, second: int) -> None:
        waiting = self.end - self.position
        for partition, begin, until in self.trace.poisoned:
            if begin <= second < until:
                waiting[partition] = 0.0
        capacity = float(self.trace.capacity[second])
        owners, count = self._owners, self.members
        free = np.full(count, capacity)
        for _ in range(3):  # unused capacity goes to other partitions; three rounds suffice
            busy = np.bincount(owners, weights=waiting > 0, minlength=count)
            share = free / np.maximum(busy, 1)
            taken = np.minimum(waiting, share[owners])
            self.position += taken
            waiting = waiting - taken
            free = free - np.bincount(owners, weights=taken, minlength=count)

    def _oldest(self, second: int) -> float:
        """Seconds since the oldest unhandled record arrived, from the true positions."""
        worst = 0.0
        for partition in np.flatnonzero(
            (self.end - self.position > 0.999) & self.consumable(second)
        ).tolist():
            arrived = int(
                np.searchsorted(self._arrived[: second + 1, partition], self.position[partition], "right")
            )
            worst = max(worst, second - arrived)
        return worst
