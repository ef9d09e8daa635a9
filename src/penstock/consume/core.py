"""The whole consumer as a pure state machine: events in, decisions out.

Composes the offset controller, the parallelism coordinator and back pressure. The orchestrator
feeds it what the client and the runners report; the hypothesis machine in the tests feeds it any
interleaving there is. Nothing here waits, reads a clock or talks to Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.consume import offsets
from penstock.consume.assignment import Assignment
from penstock.consume.schedule import Coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.intake import Bounds
    from penstock.consume.offsets import Mark
    from penstock.consume.record import Record


@dataclass(slots=True)
class Counts:
    """What happened since the consumer was made; all only ever grow."""

    received: int = 0
    received_bytes: int = 0
    skipped: int = 0  # done before a restart, by the offset map
    finished: int = 0
    failed: int = 0  # attempts, not records
    dead_lettered: int = 0
    filtered: int = 0
    late: int = 0  # results of partitions that were gone
    abandoned: int = 0  # records started here whose result no commit will cover: they run again elsewhere
    commits: int = 0
    commit_failures: int = 0
    restarts: int = 0


class Core:
    """One incarnation: from joining the group to leaving it or failing."""

    def __init__(self, bounds: Bounds, exposure: int, counts: Counts | None = None) -> None:
        self.bounds = bounds
        self.exposure = exposure
        self.counts = counts or Counts()
        self.coordinator = Coordinator(exposure)
        self.assignments: dict[tuple[str, int], Assignment] = {}
        self.renewed: dict[Assignment, Assignment] = {}
        # Left memory for good; the client proxy subtracts these from what it handed over.
        self.gone_records = 0
        self.gone_bytes = 0
        self._committed_at = self.counts.finished

    # What the client reports

    def assign(self, assignment: Assignment) -> None:
        self.assignments[assignment.key] = assignment
        self.coordinator.assign(assignment)

    def receive(self, assignment: Assignment, records: list[Record]) -> None:
        """A batch of one partition, in offset order, as the client delivered it."""
        descent = _descent(records)
        if descent:
            self.receive(assignment, records[:descent])
            self.receive(assignment, records[descent:])
            return
        assignment.received += len(records)
        if assignment in self.renewed or records[0].offset < assignment.position:
            assignment = self._renew(assignment, records)
        size = sum([record.size for record in records])
        self.counts.received += len(records)
        self.counts.received_bytes += size
        if not assignment.live:
            self.gone_records += len(records)
            self.gone_bytes += size
            return
        fresh = offsets.receive(assignment, records)
        assignment.bytes_unfinished += size
        assignment.bytes_booked += size
        if len(fresh) != len(records):
            self.counts.skipped += len(records) - len(fresh)
            assignment.bytes_unfinished -= size - sum(record.size for record in fresh)
            self.gone_records += len(records) - len(fresh)
            if not fresh:
                return
        if assignment.held:
            assignment.held.extend(fresh)
            return
        count = offsets.admissible(assignment, fresh)
        if count < len(fresh):
            assignment.held.extend(fresh[count:])
            fresh = fresh[:count]
        self.coordinator.put(assignment, fresh)

    def reach(self, assignment: Assignment, offset: int) -> None:
        assignment = self.latest(assignment)
        if assignment.live:
            offsets.reach(assignment, offset)

    def close(self, assignment: Assignment) -> None:
        """The partition is about to go: nothing more of it is started, what runs may still finish."""
        self.coordinator.withdraw(self.latest(assignment))

    def drop(self, assignment: Assignment, *, flushed: bool = False) -> int:
        """The partition is no longer ours. Returns how many of its records were left unfinished."""
        assignment = self.latest(assignment)
        if not assignment.live:
            return 0
        left = len(assignment.unfinished)
        self.coordinator.bury(assignment)
        self.counts.abandoned += assignment.started
        if not flushed:
            self.counts.abandoned += assignment.finished - assignment.covered
        self.coordinator.credit += assignment.finished - assignment.covered
        assignment.bytes_unfinished = 0
        self.gone_records += left
        self._book(assignment)
        assignment.unfinished.clear()
        assignment.live = False
        if self.assignments.get(assignment.key) is assignment:
            del self.assignments[assignment.key]
        return left

    def latest(self, assignment: Assignment) -> Assignment:
        """The assignment that took this one's place when its partition was read from an earlier offset."""
        return self.renewed.get(assignment, assignment)

    # What the runners report

    def finish(self, record: Record) -> None:
        """The record is done for good: handled, filtered out or dead-lettered.

        The busiest path there is: offsets and lane in one go, totals only when they are asked for.
        """
        assignment = record.assignment
        if not assignment.live:
            self.late(record)
            self.coordinator.release(record)
            return
        offset, lane = record.offset, record.lane
        del assignment.unfinished[offset]
        assignment.started -= 1
        assignment.finished += 1
        assignment.bytes_unfinished -= record.size
        if offset > assignment.top:
            assignment.top = offset
        if lane is not None:
            lanes = assignment.lanes
            waiting = lanes.get(lane)
            if waiting:
                ready = assignment.ready
                if not ready:
                    self.coordinator.turns.append(assignment)
                ready.append(waiting.popleft())
            else:
                lanes.pop(lane, None)

    def settle_books(self) -> None:
        """Brings the totals up to date with what partitions have finished; cheap, done once a turn."""
        for assignment in self.assignments.values():
            self._book(assignment)

    @property
    def finished_since_commit(self) -> int:
        return self.counts.finished - self._committed_at

    def _book(self, assignment: Assignment) -> None:
        records = assignment.finished - assignment.booked
        if records:
            assignment.booked = assignment.finished
            self.counts.finished += records
            self.gone_records += records
        size = assignment.bytes_booked - assignment.bytes_unfinished
        if size:
            assignment.bytes_booked = assignment.bytes_unfinished
            self.gone_bytes += size

    def finish_batch(self, batch: list[Record]) -> None:
        """All of these are done; a lane is released once, after its last."""
        last = {(record.assignment, record.lane): record for record in batch if record.lane is not None}
        for record in batch:
            if record.lane is not None and last[record.assignment, record.lane] is not record:
                lane, record.lane = record.lane, None
                self.finish(record)
                record.lane = lane
            else:
                self.finish(record)

    def late(self, record: Record) -> None:
        """A result came after its partition had gone."""
        self.counts.late += 1
        self.coordinator.credit += 1
        record.assignment.started -= 1

    def abandon(self, record: Record) -> None:
        """The record was started and will not be finished here: cancelled, or the consumer gives up.

        While its partition is ours its lane stays taken: what follows it must not overtake it.
        """
        assignment = record.assignment
        self.coordinator.credit += 1
        assignment.started -= 1
        if assignment.live:
            self.counts.abandoned += 1
        else:
            self.coordinator.release(record)

    def retry_at(self, due: float, record: Record) -> None:
        assignment = record.assignment
        if not assignment.live:
            self.late(record)
            self.coordinator.release(record)
        elif assignment.closing:  # the next owner runs it
            self.counts.abandoned += 1
            assignment.started -= 1
            self.coordinator.credit += 1
            self.coordinator.release(record)
        else:
            record.attempt += 1
            self.coordinator.retry_at(due, record)

    # What is to be done

    def admit(self) -> None:
        """Lets in what was held back, as far as the offset map has room again."""
        for assignment in self.assignments.values():
            if assignment.held:
                waiting = list(assignment.held)
                assignment.held.clear()
                count = offsets.admissible(assignment, waiting)
                assignment.held.extend(waiting[count:])
                self.coordinator.put(assignment, waiting[:count])

    def marks(self, assignments: Iterable[Assignment] | None = None) -> list[Mark]:
        """What a commit should say now, for all partitions or for some."""
        chosen = self.assignments.values() if assignments is None else assignments
        if assignments is None:
            self.settle_books()
            self._committed_at = self.counts.finished
        return [found for each in chosen if each.live and (found := offsets.mark(each)) is not None]

    def acknowledge(self, marks: Iterable[Mark]) -> None:
        self.coordinator.credit += offsets.acknowledge(marks)

    def _renew(self, assignment: Assignment, records: list[Record]) -> Assignment:
        """The client went back (topic made anew, offset out of range): what it delivers is a new epoch."""
        current = self.latest(assignment)
        if current.live and records[0].offset < current.position:
            self.drop(current)
            current = Assignment(current.topic, current.partition, current.epoch)
            self.renewed[assignment] = current
            self.assign(current)
        for record in records:
            record.assignment = current
        return current


def _descent(records: list[Record]) -> int:
    """Where in the batch offsets start anew; 0 if they only rise, as they nearly always do."""
    if records[-1].offset - records[0].offset >= len(records) - 1:
        return 0
    for index in range(1, len(records)):
        if records[index].offset <= records[index - 1].offset:
            return index
    return 0
