"""The offset controller: which offset to commit, and which offset map to store with it. Pure.

It tracks received records, not consecutive offsets. An offset without a record (compacted, aborted,
or a transaction marker) therefore delays nothing. The offset to commit is that of the first
unfinished record; the offset map lists what is finished beyond it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.model import offset_map

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.assignment import Assignment
    from penstock.consume.record import Record


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """One partition's part of a commit."""

    assignment: Assignment
    offset: int
    metadata: str
    finished: int  # finished records of the assignment that this commit covers


def receive(assignment: Assignment, records: list[Record]) -> list[Record]:
    """Tracks these records, in offset order; returns those that were not done before a restart."""
    fresh = records
    restored = assignment.restored_map
    if restored is not None and records[0].offset < restored.end:
        fresh = [record for record in records if not restored.done(record.offset)]
    unfinished = assignment.unfinished
    for record in fresh:
        unfinished[record.offset] = record
    advance(assignment, records[-1].offset + 1)
    return fresh


def advance(assignment: Assignment, offset: int) -> None:
    """Notes that the client has read up to `offset`: no further record comes below it."""
    if offset > assignment.position:
        assignment.position = offset
    restored = assignment.restored_map
    if restored is not None and assignment.position >= restored.end:
        assignment.highest_finished = max(assignment.highest_finished, restored.end - 1)
        assignment.restored_map = None


def commit_offset(assignment: Assignment) -> int:
    """The first offset that is not done, which is the one to commit."""
    for offset in assignment.unfinished:
        return offset
    if assignment.restored_map is not None:
        unread = (offset for offset in assignment.restored_map.unfinished if offset >= assignment.position)
        return min(unread, default=assignment.restored_map.end)
    return assignment.position


def pending_commit(assignment: Assignment) -> PartitionCommit | None:
    """What to commit for this partition now; None if Kafka stores just that."""
    offset = commit_offset(assignment)
    if offset < 0:
        return None
    end = assignment.highest_finished + 1
    unfinished = list(takewhile(lambda each: each < end, assignment.unfinished))
    restored = assignment.restored_map
    if restored is not None:
        # Part of the previous owner's map was not received again yet; its map still applies there.
        unfinished = [each for each in assignment.unfinished if each < restored.end]
        unfinished += sorted(each for each in restored.unfinished if each >= assignment.position)
        end = max(end, restored.end)
    metadata = offset_map.encode(offset, end, unfinished) if end > offset else ""
    if offset == assignment.committed and metadata == assignment.committed_metadata:
        return None
    return PartitionCommit(assignment, offset, metadata, assignment.finished)


def acknowledge(commits: Iterable[PartitionCommit]) -> int:
    """Records that Kafka stores these commits; returns how many more finished records they cover."""
    gained = 0
    for each in commits:
        assignment = each.assignment
        assignment.committed, assignment.committed_metadata = each.offset, each.metadata
        if assignment.live:
            gained += each.finished - assignment.finished_committed
            assignment.finished_committed = each.finished
    return gained


def admissible(assignment: Assignment, records: list[Record]) -> int:
    """How many of these newest records may start so that the offset map fits in the worst case."""
    if assignment.restored_map is not None:
        return len(records)  # they are the unfinished records of a map that did fit
    start = commit_offset(assignment)
    running = len(assignment.unfinished) - len(assignment.waiting_for_map) - len(records)
    if offset_map.fits(records[-1].offset + 1 - start, running + len(records)):
        return len(records)
    # fits() is monotonic: adding records only turns it false.
    return bisect_left(
        range(1, len(records)),
        True,
        key=lambda count: not offset_map.fits(records[count - 1].offset + 1 - start, running + count),
    )
