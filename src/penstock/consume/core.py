"""The whole consumer as a pure state machine: events in, decisions out.

It combines the offset controller and the parallelism coordinator. The orchestrator passes in what
the client and the runners report; `tests/consume/machine.py` passes in arbitrary interleavings.
Nothing here waits, reads a clock or calls Kafka.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.consume import offset_controller
from penstock.consume.assignment import Assignment
from penstock.consume.schedule import Coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.back_pressure import Bounds
    from penstock.consume.offset_controller import PartitionCommit
    from penstock.consume.record import Record
    from penstock.model.errors.consume import ConsumeError


@dataclass(slots=True)
class Counts:
    """Counters since the consumer was created; they never decrease."""

    received: int = 0
    received_bytes: int = 0
    skipped: int = 0  # done before a restart, according to the offset map
    finished: int = 0
    failed: int = 0  # attempts, not records
    dead_lettered: int = 0
    delayed: int = 0  # written to a delayed-retry topic
    filtered: int = 0
    late: int = 0  # results that arrived after their partition was revoked or lost
    abandoned: int = 0  # records started here that no commit will cover: they run again elsewhere
    commits: int = 0
    commit_failures: int = 0
    restarts: int = 0


class Core:
    """The state of one incarnation: from joining the group to leaving it or failing."""

    def __init__(
        self,
        bounds: Bounds,
        uncommitted_max: int,
        counts: Counts | None = None,
        previous: Core | None = None,
    ) -> None:
        self.bounds = bounds
        self.counts = counts or Counts()
        self.coordinator: Coordinator = Coordinator(
            uncommitted_max, previous.coordinator if previous else None
        )
        # Records whose outputs Kafka refused in an aborted transaction, by topic, partition and offset; None:
        # of a batch, in which any record may be the cause.
        self.refused_outputs: dict[tuple[str, int, int], ConsumeError | None] = (
            previous.refused_outputs if previous else {}
        )
        self.assignments: dict[tuple[str, int], Assignment] = {}
        # Replaced when the client went back to an earlier offset.
        self.rewound: dict[Assignment, Assignment] = {}
        # No longer in memory; the client proxy subtracts these from what it polled.
        self.released_records = 0
        self.released_bytes = 0
        self._committed_at = self.counts.finished

    # What the client reports

    def assign(self, assignment: Assignment) -> None:
        self.assignments[assignment.key] = assignment
        self.coordinator.assign(assignment)

    def receive(self, assignment: Assignment, records: list[Record]) -> None:
        """Takes one partition's records of a poll, in offset order."""
        rewind = _rewind_index(records)
        if rewind:
            self.receive(assignment, records[:rewind])
            self.receive(assignment, records[rewind:])
            return
        assignment.received += len(records)
        if assignment in self.rewound or records[0].offset < assignment.position:
            assignment = self._rewind(assignment, records)
        size = sum([record.size for record in records])
        self.counts.received += len(records)
        self.counts.received_bytes += size
        if not assignment.live:
            self.released_records += len(records)
            self.released_bytes += size
            return
        fresh = offset_controller.receive(assignment, records)
        assignment.bytes_unfinished += size
        assignment.bytes_counted += size
        if len(fresh) != len(records):
            self.counts.skipped += len(records) - len(fresh)
            assignment.bytes_unfinished -= size - sum(record.size for record in fresh)
            self.released_records += len(records) - len(fresh)
            if not fresh:
                return
        if assignment.waiting_for_map or assignment.delay_seconds:
            assignment.waiting_for_map.extend(fresh)
            return
        count = offset_controller.admissible(assignment, fresh)
        if count < len(fresh):
            assignment.waiting_for_map.extend(fresh[count:])
            fresh = fresh[:count]
        self.coordinator.put(assignment, fresh)

    def advance(self, assignment: Assignment, offset: int) -> None:
        assignment = self.latest(assignment)
        if assignment.live:
            offset_controller.advance(assignment, offset)

    def close(self, assignment: Assignment) -> None:
        """Starts no more records of a partition that is being revoked; running ones may finish."""
        self.coordinator.withdraw(self.latest(assignment))

    def drop(self, assignment: Assignment, *, flushed: bool = False) -> None:
        """Forgets a revoked or lost partition; `flushed`: its finished records were sent for commit."""
        assignment = self.latest(assignment)
        if not assignment.live:
            return
        self.coordinator.remove(assignment)
        self.counts.abandoned += assignment.in_flight
        if not flushed:
            self.counts.abandoned += assignment.finished - assignment.finished_committed
        self.coordinator.credit += assignment.finished - assignment.finished_committed
        assignment.bytes_unfinished = 0
        self.released_records += len(assignment.unfinished)
        self._update_totals(assignment)
        assignment.unfinished.clear()
        assignment.live = False
        if self.assignments.get(assignment.key) is assignment:
            del self.assignments[assignment.key]

    def latest(self, assignment: Assignment) -> Assignment:
        """The assignment that replaced this one when the client went back to an earlier offset, or itself."""
        return self.rewound.get(assignment, assignment)

    # What the runners report

    def finish(self, record: Record) -> None:
        """Marks the record done: handled, filtered out or dead-lettered.

        This is the hottest path, so it inlines `release` and leaves the totals to `update_totals`.
        """
        assignment = record.assignment
        if not assignment.live:
            self._late(record)
            return
        offset, queue_key = record.offset, record.queue_key
        del assignment.unfinished[offset]
        assignment.in_flight -= 1
        assignment.finished += 1
        assignment.bytes_unfinished -= record.size
        if offset > assignment.highest_finished:
            assignment.highest_finished = offset
        if queue_key is not None:
            waiting = assignment.queues.get(queue_key)
            if waiting:
                ready = assignment.ready
                if not ready:
                    self.coordinator.ready_partitions.append(assignment)
                ready.append(waiting.popleft())
            else:
                assignment.queues.pop(queue_key, None)

    def update_totals(self) -> None:
        """Adds what each partition finished since the last call to the totals."""
        for assignment in self.assignments.values():
            self._update_totals(assignment)

    @property
    def finished_since_commit(self) -> int:
        return self.counts.finished - self._committed_at

    def _update_totals(self, assignment: Assignment) -> None:
        records = assignment.finished - assignment.finished_counted
        if records:
            assignment.finished_counted = assignment.finished
            self.counts.finished += records
            self.released_records += records
        size = assignment.bytes_counted - assignment.bytes_unfinished
        if size:
            assignment.bytes_counted = assignment.bytes_unfinished
            self.released_bytes += size

    def finish_batch(self, batch: list[Record]) -> None:
        """Marks all of these done; releases each queue once, after its last record."""
        last = {(each.assignment, each.queue_key): each for each in batch if each.queue_key is not None}
        for record in batch:
            if record.queue_key is not None and last[record.assignment, record.queue_key] is not record:
                queue_key, record.queue_key = record.queue_key, None
                self.finish(record)
                record.queue_key = queue_key
            else:
                self.finish(record)

    def _late(self, record: Record) -> None:
        """Counts a result that arrived after its partition was revoked or lost."""
        self.counts.late += 1
        self.coordinator.credit += 1
        record.assignment.in_flight -= 1
        self.coordinator.release(record)

    def abandon(self, record: Record) -> None:
        """Gives up a started record: it was cancelled, or the consumer is shutting down.

        While this member owns the partition, the record keeps its queue blocked, so that no later
        record overtakes it.
        """
        assignment = record.assignment
        self.coordinator.credit += 1
        assignment.in_flight -= 1
        if assignment.live:
            self.counts.abandoned += 1
        else:
            self.coordinator.release(record)

    def retry_at(self, due: float, record: Record) -> None:
        assignment = record.assignment
        if not assignment.live:
            self._late(record)
        elif assignment.closing:  # the partition's next owner runs it
            self.counts.abandoned += 1
            assignment.in_flight -= 1
            self.coordinator.credit += 1
            self.coordinator.release(record)
        else:
            record.attempt += 1
            self.coordinator.retry_at(due, record)

    # Decisions

    def admit(self, now: float) -> None:
        """Makes waiting records startable if their delay has passed and the offset map has room again.

        `now` is in seconds since the epoch, as are the records' timestamps.
        """
        for assignment in self.assignments.values():
            if assignment.waiting_for_map:
                due = now - assignment.delay_seconds if assignment.delay_seconds else math.inf
                waiting = list(assignment.waiting_for_map)
                assignment.waiting_for_map.clear()
                startable = waiting[: _count_until(waiting, due)]
                count = offset_controller.admissible(assignment, startable) if startable else 0
                assignment.waiting_for_map.extend(waiting[count:])
                self.coordinator.put(assignment, waiting[:count])

    def pending_commits(self, assignments: Iterable[Assignment] | None = None) -> list[PartitionCommit]:
        """What to commit now, for all partitions or for these."""
        chosen = self.assignments.values() if assignments is None else assignments
        if assignments is None:
            self.update_totals()
            self._committed_at = self.counts.finished
        commits = [offset_controller.pending_commit(each) for each in chosen if each.live]
        return [commit for commit in commits if commit is not None]

    def acknowledge(self, commits: Iterable[PartitionCommit]) -> None:
        self.coordinator.credit += offset_controller.acknowledge(commits)

    def _rewind(self, assignment: Assignment, records: list[Record]) -> Assignment:
        """Starts a new assignment after the client went back: topic recreated, or offset out of range."""
        current = self.latest(assignment)
        if current.live and records[0].offset < current.position:
            self.drop(current)
            current = Assignment(
                current.topic, current.partition, current.epoch, delay_seconds=current.delay_seconds
            )
            self.rewound[assignment] = current
            self.assign(current)
        for record in records:
            record.assignment = current
        return current


def _count_until(records: list[Record], due: float) -> int:
    """How many of the first records were written by then; a record without a timestamp counts as old."""
    if due == math.inf:
        return len(records)
    return sum(1 for _ in takewhile(lambda each: (each.timestamp or 0.0) <= due, records))


def _rewind_index(records: list[Record]) -> int:
    """The index at which offsets fall back within the batch; 0 if they only rise, the usual case."""
    if records[-1].offset - records[0].offset >= len(records) - 1:
        return 0
    for index in range(1, len(records)):
        if records[index].offset <= records[index - 1].offset:
            return index
    return 0
