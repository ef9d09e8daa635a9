"""Back pressure: which partitions to fetch from, and how much at once. Pure.

The consumer holds a bounded number of records and bytes; each partition has an equal share of both.
A batch is at most half a share, and a partition with half its share in memory gets no further batch.
A hot key therefore fills its own partition's share and delays no other partition.

Pausing is expensive: librdkafka discards what it prefetched. The proxy first waits up to a tenth of
a second for a partition over its share, and pauses it only after that. It resumes the partition
at a quarter of its share. `inspect()` shows the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.consume.assignment import Assignment

PAUSE_DELAY_SECONDS: Final = 0.1

BY_RECORDS: Final = "half of its share of buffer_records is in memory"
BY_BYTES: Final = "half of its share of buffer_bytes is in memory"
BY_MAP: Final = "the offset map is full: too many records are unfinished behind an early one"


BY_DELAY: Final = "its records wait for their delayed retry"
AT_ONCE: Final = (BY_MAP, BY_DELAY)


@dataclass(frozen=True, slots=True)
class Bounds:
    records: int
    bytes: int

    def share(self, partitions: int) -> Bounds:
        """What one of `partitions` may hold in memory. A single partition gets twice the bound.

        It competes with no other, so half its share is then the whole bound.
        """
        if partitions <= 1:
            return Bounds(2 * self.records, 2 * self.bytes)
        return Bounds(max(2, self.records // partitions), max(2, self.bytes // partitions))


@dataclass(slots=True)
class FetchPlan:
    """What the client proxy does before its next poll."""

    pause: list[Assignment] = field(default_factory=list)
    resume: list[Assignment] = field(default_factory=list)
    wait: bool = False  # a partition is over its share and may soon drain


def pause_reason(assignment: Assignment, current: Assignment, share: Bounds) -> str | None:
    """Why this partition gets no further batch now; None if it may."""
    if current.waiting_for_map:
        return BY_DELAY if current.delay_seconds else BY_MAP
    divisor = 4 if assignment.paused else 2  # resume at a quarter, so that it does not pause again at once
    if (assignment.polled - assignment.received + len(current.unfinished)) * divisor >= share.records:
        return BY_RECORDS
    if current.bytes_unfinished * divisor >= share.bytes:
        return BY_BYTES
    return None


def plan_fetch(
    assignments: Iterable[Assignment],
    share: Bounds,
    now: float,
    latest: Callable[[Assignment], Assignment] = lambda assignment: assignment,
) -> FetchPlan:
    """Decides for every partition; records on each why it is paused and since when it is over its share."""
    plan = FetchPlan()
    for assignment in assignments:
        reason = pause_reason(assignment, latest(assignment), share)
        if reason is None:
            assignment.over_share_since = None
            if assignment.paused is not None:
                plan.resume.append(assignment)
        elif assignment.paused is None:
            if assignment.over_share_since is None:
                assignment.over_share_since = now
            if reason in AT_ONCE or now - assignment.over_share_since >= PAUSE_DELAY_SECONDS:
                plan.pause.append(assignment)
            else:
                plan.wait = True
                continue
        assignment.paused = reason
    return plan
