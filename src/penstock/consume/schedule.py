"""The parallelism coordinator: which record may run next. Pure.

Each record belongs to a queue, by the order option: one queue for the partition, one for each key of
the partition, or none. Records of a queue run one at a time, in offset order; queues are independent.
Partitions are served round robin, record by record, so that a full one never delays another.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from penstock.consume.record import PARTITION_QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.assignment import Assignment
    from penstock.consume.record import Record


class Order(StrEnum):
    """Which records run one at a time, in offset order."""

    KEY = "key"
    PARTITION = "partition"
    UNORDERED = "unordered"


class NullKeys(StrEnum):
    """How Order.KEY treats records without a key."""

    UNORDERED = "unordered"  # independent of each other
    TOGETHER = "together"  # as if they shared one key in their partition


def queue_key_of(key: Any, order: Order, null_keys: NullKeys) -> Any:
    """The queue of a record, from its raw key; None if it may run beside any other."""
    if order is Order.PARTITION or (order is Order.KEY and key is None and null_keys is NullKeys.TOGETHER):
        return PARTITION_QUEUE
    return key if order is Order.KEY else None


class Coordinator:
    """Queues records and hands out those that may run.

    `credit` is how many more records may start before a commit is needed. Queues that records of the
    `previous` incarnation still run in stay blocked until those end.
    """

    def __init__(self, credit: int, previous: Coordinator | None = None) -> None:
        self.credit = credit
        self.retries: list[tuple[float, int, Record]] = []
        self.alone: set[Record] = set()  # of a failed batch, which one of them may have caused
        # Shared with the previous incarnation: each partition with a ready record, once; the assignment of
        # each partition; revoked assignments with a record still running.
        self.ready_partitions: deque[Assignment] = previous.ready_partitions if previous else deque()
        self._current: dict[tuple[str, int], Assignment] = previous._current if previous else {}
        self._revoked: dict[tuple[str, int], list[Assignment]] = previous._revoked if previous else {}
        self._sequence = 0

    def assign(self, assignment: Assignment) -> None:
        """Makes this the current assignment of its partition.

        A queue stays blocked while a record of an earlier assignment runs in it, so that two records
        of one key never run at once, even across a rebalance.
        """
        self._current[assignment.key] = assignment
        for revoked in self._revoked.get(assignment.key, ()):
            for queue_key in revoked.queues:
                assignment.queues[queue_key] = None

    def put(self, assignment: Assignment, records: Iterable[Record]) -> None:
        queues, ready = assignment.queues, assignment.ready
        was_idle = not ready
        for record in records:
            queue_key = record.queue_key
            if queue_key is None:
                ready.append(record)
            elif queue_key in queues:
                waiting = queues[queue_key]
                if waiting is None:
                    queues[queue_key] = deque((record,))
                else:
                    waiting.append(record)
            else:
                queues[queue_key] = None
                ready.append(record)
        if was_idle and ready:
            self.ready_partitions.append(assignment)

    def take(self) -> Record | None:
        """The next record to run; None if none is ready or too many are uncommitted."""
        ready_partitions = self.ready_partitions
        if not ready_partitions or self.credit <= 0:
            return None
        self.credit -= 1
        assignment = ready_partitions.popleft()
        assignment.in_flight += 1
        ready = assignment.ready
        record = ready.popleft()
        if ready:
            ready_partitions.append(assignment)
        return record

    def halt(self) -> None:
        """Hands out no more records; running ones may finish."""
        self.credit -= 1 << 62  # so that take() needs one comparison for both reasons

    def unhalt(self) -> None:
        self.credit += 1 << 62

    def startable(self, limit: int) -> int:
        """How many records a batch of at most `limit` could have now."""
        count = 0
        for assignment in self.ready_partitions:
            for record in assignment.ready:
                waiting = None if record.queue_key is None else assignment.queues.get(record.queue_key)
                count += 1 + len(waiting or ())
                if count >= limit:
                    return limit
        return count

    def take_batch(self, size: int) -> list[Record]:
        """Up to `size` records to run together; those of one queue are in order.

        A record that failed before, alone or in a batch, comes alone, so that it fails no other.
        """
        batch: list[Record] = []
        while len(batch) < size:
            record = self.take()
            if record is None:
                break
            if self.runs_alone(record):
                if batch:
                    self.credit += 1
                    record.assignment.in_flight -= 1
                    self._make_ready(record, first=True)
                    break
                self.alone.discard(record)
                return [record]
            batch.append(record)
            if record.queue_key is None:
                continue
            waiting = record.assignment.queues[record.queue_key]
            while waiting and not self.runs_alone(waiting[0]) and len(batch) < size and self.credit > 0:
                self.credit -= 1
                record.assignment.in_flight += 1
                batch.append(waiting.popleft())
        return batch

    def runs_alone(self, record: Record) -> bool:
        return record.attempt > 1 or record in self.alone

    def release(self, record: Record) -> None:
        """Lets the next record of this record's queue run."""
        queue_key = record.queue_key
        if queue_key is None:
            return
        assignment = record.assignment
        if not assignment.live:
            self._release_revoked(assignment, queue_key)
            return
        waiting = assignment.queues.get(queue_key)
        if waiting:
            self._make_ready(waiting.popleft())
        else:
            assignment.queues.pop(queue_key, None)

    def put_back(self, batch: list[Record], *, alone: bool = False) -> None:
        """Returns the records of a batch, each queue in order; `alone`: they run one by one."""
        followers: dict[tuple[Assignment, Any], list[Record]] = {}
        for record in batch:
            self.credit += 1
            record.assignment.in_flight -= 1
            if not record.assignment.live or record.assignment.closing:
                self.release(record)
                continue
            if alone:
                self.alone.add(record)
            if record.queue_key is None:
                self._make_ready(record)
            elif (record.assignment, record.queue_key) in followers:
                followers[record.assignment, record.queue_key].append(record)
            else:
                followers[record.assignment, record.queue_key] = []
                self._make_ready(record)
        for (assignment, queue_key), records in followers.items():
            if records:
                waiting = assignment.queues[queue_key] or deque()
                waiting.extendleft(reversed(records))
                assignment.queues[queue_key] = waiting

    def retry_at(self, due: float, record: Record) -> None:
        """Runs the record again at `due`; its queue stays blocked, so that order holds."""
        self._sequence += 1
        self.credit += 1
        record.assignment.in_flight -= 1
        heapq.heappush(self.retries, (due, self._sequence, record))

    def wake_retries(self, now: float) -> None:
        """Makes the records whose retry is due ready."""
        while self.retries and self.retries[0][0] <= now:
            record = heapq.heappop(self.retries)[2]
            if record.assignment.live:
                self._make_ready(record)

    def withdraw(self, assignment: Assignment) -> None:
        """Drops the waiting records of a partition that is being revoked.

        A running record keeps its queue blocked until it ends.
        """
        for record in assignment.ready:
            assignment.queues.pop(record.queue_key, None)
        for _, _, record in self.retries:
            if record.assignment is assignment:
                assignment.queues.pop(record.queue_key, None)
        self.retries = [entry for entry in self.retries if entry[2].assignment is not assignment]
        heapq.heapify(self.retries)
        self.alone = {record for record in self.alone if record.assignment is not assignment}
        if assignment.ready:
            self.ready_partitions.remove(assignment)
        assignment.ready.clear()
        assignment.waiting_for_map.clear()
        assignment.closing = True
        # A queue that an older assignment still blocks is released by that one.
        older = {key for revoked in self._revoked.get(assignment.key, ()) for key in revoked.queues}
        assignment.queues = dict.fromkeys(key for key in assignment.queues if key not in older)

    def remove(self, assignment: Assignment) -> None:
        """Removes a revoked partition; remembers the queues in which a record still runs."""
        self.withdraw(assignment)
        if self._current.get(assignment.key) is assignment:
            del self._current[assignment.key]
        if assignment.queues:
            self._revoked.setdefault(assignment.key, []).append(assignment)

    def keep_blocked(self, running: Iterable[Record]) -> None:
        """Unblocks every queue of a revoked partition in which none of these records runs."""
        blocked = {(record.assignment, record.queue_key) for record in running}
        for key, assignments in list(self._revoked.items()):
            for assignment in assignments:
                kept = (each for each in assignment.queues if (assignment, each) in blocked)
                assignment.queues = dict.fromkeys(kept)
            self._revoked[key] = [each for each in assignments if each.queues]

    @property
    def has_ready(self) -> bool:
        return bool(self.ready_partitions) and self.credit > 0

    @property
    def ready_count(self) -> int:
        return sum(len(assignment.ready) for assignment in self.ready_partitions)

    def _make_ready(self, record: Record, *, first: bool = False) -> None:
        assignment = record.assignment
        if not assignment.ready:
            self.ready_partitions.append(assignment)
        if first:
            assignment.ready.appendleft(record)
        else:
            assignment.ready.append(record)

    def _release_revoked(self, revoked: Assignment, queue_key: Any) -> None:
        assignments = self._revoked.get(revoked.key, [])
        if queue_key not in revoked.queues:
            return
        del revoked.queues[queue_key]
        if not revoked.queues and revoked in assignments:
            assignments.remove(revoked)
            if not assignments:
                del self._revoked[revoked.key]
        current = self._current.get(revoked.key)
        if current is None or queue_key not in current.queues:
            return
        waiting = current.queues[queue_key]
        if waiting:
            self._make_ready(waiting.popleft())
        else:
            del current.queues[queue_key]
