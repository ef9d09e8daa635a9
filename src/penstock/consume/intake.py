"""Back pressure: from which partitions to fetch, and how much at once. Pure.

Two bounds, in records and in bytes, hold for the whole consumer; an equal share of each belongs to
every partition. A batch is at most half a share, and a partition that has half a share in memory
gets no further batch, so none ever takes another's share: a hot key fills its own partition and
delays no other.

Pausing is dear, for librdkafka throws away what it had fetched ahead. So a crowded partition is
first waited for, a tenth of a second at most; only one that stays crowded is paused, and then
resumed when it is down to a quarter of its share. The reason is kept for `inspect()`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.consume.assignment import Assignment

PATIENCE_SECONDS: Final = 0.1

BY_RECORDS: Final = "half its share of buffer_records is in memory"
BY_BYTES: Final = "half its share of buffer_bytes is in memory"
BY_MAP: Final = "the offset map has no room: an early record is unfinished and too many wait behind it"


@dataclass(frozen=True, slots=True)
class Bounds:
    records: int
    bytes: int

    def share(self, partitions: int) -> Bounds:
        """What one of so many partitions may hold; alone it can crowd nobody out, and has twice the whole."""
        if partitions <= 1:
            return Bounds(2 * self.records, 2 * self.bytes)
        return Bounds(max(2, self.records // partitions), max(2, self.bytes // partitions))


@dataclass(slots=True)
class Steering:
    """What the client proxy is to do before its next poll."""

    pause: list[Assignment] = field(default_factory=list)
    resume: list[Assignment] = field(default_factory=list)
    wait: bool = False  # some partition is crowded, and may be about to empty by itself


def crowding(assignment: Assignment, current: Assignment, share: Bounds) -> str | None:
    """Why this partition should get no further batch now, or None."""
    if current.held:
        return BY_MAP
    part = 4 if assignment.paused else 2  # resume only at a quarter, or pausing would flutter
    if (assignment.handed - assignment.received + len(current.unfinished)) * part >= share.records:
        return BY_RECORDS
    if current.bytes_unfinished * part >= share.bytes:
        return BY_BYTES
    return None


def steer(
    assignments: Iterable[Assignment],
    share: Bounds,
    now: float,
    latest: Callable[[Assignment], Assignment] = lambda assignment: assignment,
) -> Steering:
    """Looks at every partition anew; notes with each why it is paused and since when it is crowded."""
    steering = Steering()
    for assignment in assignments:
        reason = crowding(assignment, latest(assignment), share)
        if reason is None:
            assignment.crowded_since = None
            if assignment.paused is not None:
                steering.resume.append(assignment)
        elif assignment.paused is None:
            if assignment.crowded_since is None:
                assignment.crowded_since = now
            if reason is BY_MAP or now - assignment.crowded_since >= PATIENCE_SECONDS:
                steering.pause.append(assignment)
            else:
                steering.wait = True
                continue
        assignment.paused = reason
    return steering
