"""The offset controller: what may be committed, and what a commit says beside it.

Tracks the records that were received, never arithmetic successors: a hole left by compaction, an
aborted transaction or a marker is no record and holds nothing up. The offset to commit is that of
the first unfinished record; what is finished beyond it goes into the offset map. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.model import offsetmap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.consume.assignment import Assignment
    from penstock.consume.record import Record


@dataclass(frozen=True, slots=True)
class Mark:
    """One partition's part of a commit."""

    assignment: Assignment
    offset: int
    metadata: str
    finished: int  # the assignment's count of finished records that this mark covers


def receive(assignment: Assignment, records: list[Record]) -> list[Record]:
    """Takes note of records in offset order; returns those to run, without the ones done before a restart."""
    fresh = records
    resumed = assignment.resumed
    if resumed is not None and records[0].offset < resumed.end:
        fresh = [record for record in records if not resumed.done(record.offset)]
    unfinished = assignment.unfinished
    for record in fresh:
        unfinished[record.offset] = record
    reach(assignment, records[-1].offset + 1)
    return fresh


def reach(assignment: Assignment, offset: int) -> None:
    """The client has read up to `offset`, past markers and holes: nothing more is to come below it."""
    if offset > assignment.position:
        assignment.position = offset
    resumed = assignment.resumed
    if resumed is not None and assignment.position >= resumed.end:
        assignment.top = max(assignment.top, resumed.end - 1)
        assignment.resumed = None


def base(assignment: Assignment) -> int:
    """The first offset that is not done: what a commit says."""
    for offset in assignment.unfinished:
        return offset
    if assignment.resumed is not None:
        rest = (offset for offset in assignment.resumed.unfinished if offset >= assignment.position)
        return min(rest, default=assignment.resumed.end)
    return assignment.position


def mark(assignment: Assignment) -> Mark | None:
    """What to commit for this partition now, if that differs from what Kafka has."""
    offset = base(assignment)
    if offset < 0:
        return None
    end = assignment.top + 1
    unfinished = list(takewhile(lambda each: each < end, assignment.unfinished))
    resumed = assignment.resumed
    if resumed is not None:
        # Not all of what the last owner left has come in again; its map stays in force for the rest.
        unfinished = [each for each in assignment.unfinished if each < resumed.end]
        unfinished += sorted(each for each in resumed.unfinished if each >= assignment.position)
        end = max(end, resumed.end)
    metadata = offsetmap.encode(offset, end, unfinished) if end > offset else ""
    if offset == assignment.committed and metadata == assignment.committed_metadata:
        return None
    return Mark(assignment, offset, metadata, assignment.finished)


def acknowledge(marks: Iterable[Mark]) -> int:
    """Kafka has these; returns how many more finished records are now safe."""
    gained = 0
    for each in marks:
        assignment = each.assignment
        assignment.committed, assignment.committed_metadata = each.offset, each.metadata
        if assignment.live:
            gained += each.finished - assignment.covered
            assignment.covered = each.finished
    return gained


def admissible(assignment: Assignment, records: list[Record]) -> int:
    """How many of these records, received last, may run without the offset map ever growing too large."""
    if assignment.resumed is not None:
        return len(records)  # they are unfinished ones of a map that did fit
    start = base(assignment)
    running = len(assignment.unfinished) - len(assignment.held) - len(records)
    if offsetmap.fits(records[-1].offset + 1 - start, running + len(records)):
        return len(records)
    low, high = 0, len(records) - 1
    while low < high:  # fits() only ever turns false as records are added
        middle = (low + high + 1) // 2
        if offsetmap.fits(records[middle - 1].offset + 1 - start, running + middle):
            low = middle
        else:
            high = middle - 1
    return low
