"""The parallelism coordinator: which record may run next.

Records of one lane run one at a time and in the order of their offsets; lanes are independent.
What a lane is, the order decides: the whole partition, one key of a partition, or no lane at all.
Partitions take turns, record by record, so that a full one never delays another. Pure: time is
given, nothing is awaited.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.consume.record import PARTITION_LANE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.assignment import Assignment
    from penstock.consume.record import Record


class Order(StrEnum):
    """What is kept in order."""

    KEY = "key"
    PARTITION = "partition"
    UNORDERED = "unordered"


class NullKeys(StrEnum):
    """How records without a key are treated under Order.KEY."""

    UNORDERED = "unordered"  # each for itself
    TOGETHER = "together"  # as if they shared one key in their partition


def lane_of(key: Any, order: Order, null_keys: NullKeys) -> Any:
    """The lane of a record, from its raw key; None means that it may run beside anything."""
    if order is Order.PARTITION or (order is Order.KEY and key is None and null_keys is NullKeys.TOGETHER):
        return PARTITION_LANE
    return key if order is Order.KEY else None


class Coordinator:
    """Holds what waits, hands out what may run. `credit` bounds what is started but not yet committed."""

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.retries: list[tuple[float, int, Record]] = []
        self.turns: deque[Assignment] = deque()  # partitions that have a ready record, each once
        self._current: dict[tuple[str, int], Assignment] = {}
        self._ghosts: dict[tuple[str, int], list[Assignment]] = {}
        self._sequence = 0

    def assign(self, assignment: Assignment) -> None:
        """From now on records of this partition belong to this assignment.

        Lanes in which a record of an earlier assignment still runs stay taken until it ends: no
        two records of one key run at once, even across a rebalance.
        """
        self._current[assignment.key] = assignment
        for ghost in self._ghosts.get(assignment.key, ()):
            for lane in ghost.lanes:
                assignment.lanes[lane] = None

    def put(self, assignment: Assignment, records: Iterable[Record]) -> None:
        lanes, ready = assignment.lanes, assignment.ready
        was_idle = not ready
        for record in records:
            lane = record.lane
            if lane is None:
                ready.append(record)
            elif lane in lanes:
                waiting = lanes[lane]
                if waiting is None:
                    lanes[lane] = deque((record,))
                else:
                    waiting.append(record)
            else:
                lanes[lane] = None
                ready.append(record)
        if was_idle and ready:
            self.turns.append(assignment)

    def take(self) -> Record | None:
        """The next record to run, or None: nothing is ready, or too much is uncommitted."""
        turns = self.turns
        if not turns or self.credit <= 0:
            return None
        self.credit -= 1
        assignment = turns.popleft()
        assignment.started += 1
        ready = assignment.ready
        record = ready.popleft()
        if ready:
            turns.append(assignment)
        return record

    def halt(self) -> None:
        """Nothing is handed out any more; what runs may finish."""
        self.credit -= 1 << 62  # one comparison in take() then answers both questions

    def take_batch(self, size: int) -> list[Record]:
        """Up to `size` records to run together; those of one lane follow each other in order.

        A record that failed before comes alone, so that it fails nobody else.
        """
        batch: list[Record] = []
        while len(batch) < size:
            record = self.take()
            if record is None:
                break
            if record.attempt > 1:
                if batch:
                    self.credit += 1
                    record.assignment.started -= 1
                    self._make_ready(record, first=True)
                    break
                return [record]
            batch.append(record)
            if record.lane is None:
                continue
            waiting = record.assignment.lanes[record.lane]
            while waiting and waiting[0].attempt == 1 and len(batch) < size and self.credit > 0:
                self.credit -= 1
                record.assignment.started += 1
                batch.append(waiting.popleft())
        return batch

    def release(self, record: Record) -> None:
        """The record's lane is free for the next one."""
        lane = record.lane
        if lane is None:
            return
        assignment = record.assignment
        if not assignment.live:
            self._release_ghost(assignment, lane)
            return
        waiting = assignment.lanes.get(lane)
        if waiting:
            if not assignment.ready:
                self.turns.append(assignment)
            assignment.ready.append(waiting.popleft())
        else:
            assignment.lanes.pop(lane, None)

    def put_back(self, batch: list[Record]) -> None:
        """Records taken together are to run again, one by one, each lane in its old order."""
        later: dict[tuple[Assignment, Any], list[Record]] = {}
        for record in batch:
            self.credit += 1
            record.assignment.started -= 1
            if not record.assignment.live or record.assignment.closing:
                self.release(record)
            elif record.lane is None:
                self._make_ready(record)
            elif (record.assignment, record.lane) in later:
                later[record.assignment, record.lane].append(record)
            else:
                later[record.assignment, record.lane] = []
                self._make_ready(record)
        for (assignment, lane), records in later.items():
            if records:
                waiting = assignment.lanes[lane] or deque()
                waiting.extendleft(reversed(records))
                assignment.lanes[lane] = waiting

    def retry_at(self, due: float, record: Record) -> None:
        """The record runs again at `due`; its lane stays taken, so that order holds."""
        self._sequence += 1
        self.credit += 1
        record.assignment.started -= 1
        heapq.heappush(self.retries, (due, self._sequence, record))

    def wake(self, now: float) -> None:
        """Moves the retries that are due to the ready ones."""
        while self.retries and self.retries[0][0] <= now:
            record = heapq.heappop(self.retries)[2]
            if record.assignment.live:
                self._make_ready(record)

    def withdraw(self, assignment: Assignment) -> None:
        """The partition goes: what waits is dropped, what runs keeps its lane until it ends."""
        for record in assignment.ready:
            assignment.lanes.pop(record.lane, None)
        for _, _, record in self.retries:
            if record.assignment is assignment:
                assignment.lanes.pop(record.lane, None)
        self.retries = [entry for entry in self.retries if entry[2].assignment is not assignment]
        heapq.heapify(self.retries)
        if assignment.ready:
            self.turns.remove(assignment)
        assignment.ready.clear()
        assignment.held.clear()
        assignment.closing = True
        # A lane that an older ghost holds is that ghost's to release, not this one's.
        older = {lane for ghost in self._ghosts.get(assignment.key, ()) for lane in ghost.lanes}
        assignment.lanes = dict.fromkeys(lane for lane in assignment.lanes if lane not in older)

    def bury(self, assignment: Assignment) -> None:
        """The partition has gone; lanes in which something still runs are remembered."""
        self.withdraw(assignment)
        if self._current.get(assignment.key) is assignment:
            del self._current[assignment.key]
        if assignment.lanes:
            self._ghosts.setdefault(assignment.key, []).append(assignment)

    @property
    def has_ready(self) -> bool:
        return bool(self.turns) and self.credit > 0

    @property
    def ready_count(self) -> int:
        return sum(len(assignment.ready) for assignment in self.turns)

    def _make_ready(self, record: Record, *, first: bool = False) -> None:
        assignment = record.assignment
        if not assignment.ready:
            self.turns.append(assignment)
        if first:
            assignment.ready.appendleft(record)
        else:
            assignment.ready.append(record)

    def _release_ghost(self, ghost: Assignment, lane: Any) -> None:
        ghosts = self._ghosts.get(ghost.key, [])
        if lane not in ghost.lanes:
            return
        del ghost.lanes[lane]
        if not ghost.lanes and ghost in ghosts:
            ghosts.remove(ghost)
            if not ghosts:
                del self._ghosts[ghost.key]
        current = self._current.get(ghost.key)
        if current is None or lane not in current.lanes:
            return
        waiting = current.lanes[lane]
        if waiting:
            self._make_ready(waiting.popleft())
        else:
            del current.lanes[lane]
