"""Rules about tiered storage: remote segments, their objects, and what is deleted locally."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.audit.rules.facts import COPY_FINISHED, DELETE_STARTED
from penstock.model.durability import UNKNOWN, Replica, Segment, Severity, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding

STUCK_MS: Final = 60 * 60 * 1000
TIER_LAG_MS: Final = 60 * 60 * 1000
COPY_STARTED: Final = 0
COVERAGE = "tier-coverage"
DELETED = "tier-coverage/deleted"
OBJECT = "tier-object-wrong"
UNTIERED = "local-deleted-before-tiered"
STUCK = "segment-stuck"
LAG = "tier-lag"
NEXT_STATES: Final = {COPY_STARTED: {1, 2}, COPY_FINISHED: {2}, DELETE_STARTED: {3}}


def tier_coverage(case: Case) -> Iterator[Finding]:
    """Finished segments cover everything from the log start to the last tiered offset.

    A deletion alone changes no replica, and sweeps repeat what has not changed once an hour: the mark makes
    them look at once.
    """
    facts, state = case.facts, case.state
    if isinstance(facts, Segment):
        if facts.state == DELETE_STARTED:
            case.mark(DELETED, (1, case.time_ms))
        return
    assert isinstance(facts, Replica)
    if not state.leads(facts.broker):
        return
    case.unmark(DELETED)
    if facts.tiered == UNKNOWN:
        return
    ranges = (
        (each.segment.start, each.segment.end)
        for each in state.segments.values()
        if each.segment.state == COPY_FINISHED
    )
    gap = first_gap(ranges, facts.start, facts.tiered)
    new = gap is not None and not state.is_known(*gap)
    if case.confirmed(COVERAGE, holds=new):
        case.unmark(COVERAGE)
        assert gap is not None
        first, last = gap
        local = facts.local_start != UNKNOWN and facts.local_start <= first
        case.report_loss(first, last)
        yield case.finding(
            COVERAGE, Severity.WARNING if local else Severity.CRITICAL, f"{first}-{last}",
            f"no finished remote segment has offsets {first} to {last}"
            f"{', which are still stored locally' if local else ''}",
            offsets=gap,
        )  # fmt: skip


def first_gap(ranges: Iterable[tuple[int, int]], start: int, last: int) -> tuple[int, int] | None:
    """The first offsets between `start` and `last` that no range has."""
    position = start
    for first, end in sorted(ranges):
        if first > position:
            return (position, min(first - 1, last)) if position <= last else None
        position = max(position, end + 1)
    return (position, last) if position <= last else None


def tier_object_wrong(case: Case) -> Iterator[Finding]:
    """Every finished segment has all its objects, each of them sound."""
    facts = case.facts
    assert isinstance(facts, Stored)
    tiered = case.state.segments.get(facts.segment)
    if tiered is None or tiered.segment.state != COPY_FINISHED:
        return  # deleted meanwhile, or still being copied
    problems = [*(f"{name} is missing" for name in facts.missing), *facts.wrong]
    if problems:
        segment = tiered.segment
        case.report_loss(segment.start, segment.end)
        yield case.finding(
            OBJECT, Severity.CRITICAL, facts.segment,
            f"remote segment {facts.segment}: {', '.join(problems)}", offsets=(segment.start, segment.end),
        )  # fmt: skip


def local_deleted_before_tiered(case: Case) -> Iterator[Finding]:
    """While copying is enabled, no local segment is deleted before it is tiered."""
    facts, policy = case.facts, case.state.policy
    assert isinstance(facts, Replica)
    if policy is None or not policy.tiered or policy.copy_disabled or not case.state.leads(facts.broker):
        return
    first = max(facts.start, facts.tiered + 1)
    holds = facts.local_start > first
    if case.confirmed(UNTIERED, holds=holds and not case.state.is_known(first, facts.local_start - 1)):
        case.report_loss(first, facts.local_start - 1)
        yield case.finding(
            UNTIERED, Severity.CRITICAL, f"{first}-{facts.local_start}",
            f"offsets {first} to {facts.local_start - 1} are neither local nor tiered",
            offsets=(first, facts.local_start - 1), broker=facts.broker,
        )  # fmt: skip


def segment_stuck(case: Case) -> Iterator[Finding]:
    """Segments move from copied to deleted, never back, and stay in no state in between."""
    facts = case.facts
    if isinstance(facts, Segment):
        before = case.before.segments.get(facts.id)
        old = None if before is None else before.segment.state
        if old is not None and facts.state != old and facts.state not in NEXT_STATES[old]:
            yield case.finding(
                STUCK, Severity.WARNING, f"{facts.id}/{old}-{facts.state}",
                f"remote segment {facts.id} went from state {old} to {facts.state}",
            )  # fmt: skip
        return
    assert isinstance(facts, Replica)
    if not case.state.leads(facts.broker):
        return
    for key, tiered in case.state.segments.items():
        if tiered.segment.state == COPY_FINISHED or case.time_ms - tiered.time_ms < STUCK_MS:
            continue
        mark = f"{STUCK}/{key}/{tiered.segment.state}"
        if mark not in case.state.marks:
            case.mark(mark, (2,))
            doing = "copied" if tiered.segment.state == COPY_STARTED else "deleted"
            yield case.finding(
                STUCK, Severity.WARNING, f"{key}/{tiered.segment.state}",
                f"remote segment {key} has been being {doing} for more than {STUCK_MS // 60_000} minutes",
                offsets=(tiered.segment.start, tiered.segment.end),
            )  # fmt: skip


def tier_lag(case: Case) -> Iterator[Finding]:
    """Closed segments are copied within `TIER_LAG_MS`.

    The first offset that is not tiered may stay the same for ever on an idle partition. It counts only if the
    local log has grown by two segments meanwhile."""
    facts, policy = case.facts, case.state.policy
    assert isinstance(facts, Replica)
    if policy is None or not policy.tiered or policy.copy_disabled or not case.state.leads(facts.broker):
        return
    if UNKNOWN in (facts.pending, facts.size):
        return
    mark = case.state.marks.get(LAG)
    if mark is None or mark[0] != facts.pending or mark[1] > facts.size:
        case.mark(LAG, (facts.pending, facts.size, case.time_ms, 0))
        return
    pending, size, since_ms, reported = mark
    grown = facts.size - size >= 2 * policy.segment_bytes
    if grown and not reported and case.time_ms - since_ms >= TIER_LAG_MS:
        case.mark(LAG, (pending, size, since_ms, 1))
        yield case.finding(
            LAG, Severity.WARNING, str(pending),
            f"offsets from {pending} have not been tiered for {TIER_LAG_MS // 60_000} minutes, while "
            f"{facts.size - size} bytes were appended",
            offsets=(pending, facts.end - 1),
        )  # fmt: skip
