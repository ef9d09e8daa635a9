"""What is wrong with the objects of tiers and backups: decisions on listings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.audit.rules.facts import COPY_FINISHED
from penstock.model.durability import UNKNOWN, Backup, Stored
from penstock.tier.format import INDEXES, LOG, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.audit.rules.state import SubjectState

# The index files come second: without them a segment is whole, but brokers cannot read it.
OBJECTS: Final = (LOG, INDEXES, MANIFEST)
GAPS_MAX: Final = 32  # in one event


class FinishedSegment(NamedTuple):
    """A remote segment as the tier metadata has it."""

    subject: str
    id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Promise:
    """What a backup has of a partition. `archived_end`: exclusive, as its catalogue records it."""

    ranges: tuple[tuple[int, int], ...]  # first and last offset of each sound segment
    recorded_gaps: tuple[tuple[int, int], ...]
    archived_end: int


def finished_segments(states: Iterable[SubjectState], before_ms: int) -> Iterator[FinishedSegment]:
    """Those that were finished before a listing began."""
    for state in states:
        for key, tiered in state.segments.items():
            if tiered.segment.state == COPY_FINISHED and tiered.time_ms < before_ms:
                yield FinishedSegment(state.subject, key, tiered.segment.bytes)


def object_problems(
    segments: Iterable[FinishedSegment], stored: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[str, Stored]]:
    """By segment id: the subject, and what is missing or has a wrong size. `stored`: sizes by suffix."""
    problems = {}
    for segment in segments:
        sizes = stored.get(segment.id, {})
        missing = tuple(suffix for suffix in OBJECTS if suffix not in sizes)
        size = sizes.get(LOG, segment.bytes)
        wrong: tuple[str, ...] = ()
        if segment.bytes != UNKNOWN and size != segment.bytes:
            wrong = (f"{LOG} has {size} of {segment.bytes} bytes",)
        elif any(sizes[suffix] == 0 for suffix in (INDEXES, MANIFEST) if suffix in sizes):
            wrong = tuple(f"{suffix} is empty" for suffix in (INDEXES, MANIFEST) if sizes.get(suffix) == 0)
        if missing or wrong:
            problems[segment.id] = (segment.subject, Stored(segment.id, missing, wrong))
    return problems


def backup_gaps(promise: Promise, log_start: int) -> Backup | None:
    """What the backup lacks from the log start on; None: nothing.

    It promises what follows its first segment, apart from gaps that it has recorded."""
    if not promise.ranges:
        return None
    first = max(min(promise.ranges)[0], log_start)
    last = max(promise.archived_end - 1, *(end for _, end in promise.ranges))
    missing = []
    position = first
    for start, end in sorted((*promise.ranges, *promise.recorded_gaps)):
        if start > position:
            missing.append((position, min(start - 1, last)))
        position = max(position, end + 1)
    if position <= last:
        missing.append((position, last))
    missing = [gap for gap in missing if gap[0] <= gap[1]]
    return Backup(first, last, tuple(missing[:GAPS_MAX])) if missing else None
