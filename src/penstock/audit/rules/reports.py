"""Rules about what scrubs, groups, links, backups and collectors report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.durability import UNKNOWN, Backup, Group, Heartbeat, Link, Scrubbed, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding

SILENT_PERIODS_MAX: Final = 3
SILENT_MS_MIN: Final = 60_000  # a restart or a change of the active auditor takes less
BEHIND_MS_MAX: Final = 60_000
SKEW_MS_MAX: Final = 30_000
VALUES = "one-value-per-offset"
HOLES = "offset-holes"
SEQUENCE = "producer-sequence"
GROUP = "group-offset-outside"
DIVERGED = "link-diverged"
BACKUP = "backup-gap"
SILENT = "auditor-silent"


def one_value_per_offset(case: Case) -> Iterator[Finding]:
    """Every place that has a range has the same batches there, with the right CRCs. The minority is named.

    Replicas of a topic that was compacted before may have been cleaned differently."""
    facts = case.facts
    assert isinstance(facts, Scrubbed)
    range_ = (facts.first, facts.last)
    latest = {
        each.place: each
        for each in case.state.scrubs
        if (each.first, each.last, each.run) == (*range_, facts.run) and each.digest
    }
    damaged = {place for place, each in latest.items() if each.damaged}
    by_digest: dict[str, list[str]] = {}
    for place, each in latest.items():
        if place not in damaged:
            by_digest.setdefault(each.digest, []).append(place)
    if len(by_digest) > 1 and _was_compacted(case):
        by_digest.clear()
    if len(by_digest) < 2 and not damaged:
        return
    ranked = sorted(by_digest.values(), key=len)
    majority = len(ranked) < 2 or len(ranked[-1]) > len(ranked[-2])
    minority = [place for places in (ranked[:-1] if majority else ranked) for place in places]
    wrong = sorted({*minority, *damaged})
    reason = "" if majority else ", and there is no majority"
    yield case.finding(
        VALUES, Severity.CRITICAL, f"{facts.first}-{facts.last}",
        f"offsets {facts.first} to {facts.last} {'are damaged' if damaged else 'differ'} on "
        f"{', '.join(wrong)}{reason}",
        offsets=range_, alert=wrong[0], places=wrong,
    )  # fmt: skip


def _was_compacted(case: Case) -> bool:
    """Whether compaction explains what is missing, though the policy may be another by now."""
    policies = case.state.policies
    return any(each.policy.compacts for each in policies) and not policies[-1].policy.compacts


def offset_holes(case: Case) -> Iterator[Finding]:
    """Offsets are missing only where markers, compaction or aborted records explain it."""
    facts = case.facts
    assert isinstance(facts, Scrubbed)
    if any(each.policy.compacts for each in case.state.policies):
        return  # also if it was compacted before
    for first, last in facts.holes:
        yield case.finding(
            HOLES, Severity.CRITICAL, f"{facts.place}/{first}-{last}",
            f"offsets {first} to {last} are missing on {facts.place}", offsets=(first, last),
            alert=facts.place,
        )  # fmt: skip


def producer_sequence(case: Case) -> Iterator[Finding]:
    """Sequence numbers of an idempotent producer follow one another."""
    facts = case.facts
    assert isinstance(facts, Scrubbed)
    if any(each.policy.compacts for each in case.state.policies):
        return
    for error in facts.sequence_errors:
        yield case.finding(SEQUENCE, Severity.WARNING, error, error, offsets=(facts.first, facts.last))


def group_offset_outside(case: Case) -> Iterator[Finding]:
    """A committed offset is within the log, and falls only when it is reset.

    Behind the start there may be nothing but markers of transactions, which no client reads. So only what was
    acknowledged counts as unread."""
    facts = case.facts
    assert isinstance(facts, Group)
    where = f"group {facts.group!r} has committed {facts.offset}"
    if facts.offset < min(facts.start, case.state.acked_end):
        detail = f"{where}, and the log starts at {facts.start}: it skips what it has not read"
        yield case.finding(
            GROUP, Severity.WARNING, f"{facts.group}/behind", detail,
            offsets=(facts.offset, facts.start - 1), alert=facts.group,
        )  # fmt: skip
    elif facts.end != UNKNOWN and facts.offset > facts.end:
        detail = f"{where}, and the log ends at {facts.end}: records it has read are gone"
        yield case.finding(
            GROUP, Severity.CRITICAL, f"{facts.group}/beyond", detail,
            offsets=(facts.end, facts.offset - 1), alert=facts.group,
        )  # fmt: skip
    elif facts.before > facts.offset and not facts.reset:
        detail = f"{where}, and {facts.before} before, without a recorded reset"
        yield case.finding(
            GROUP, Severity.INFO, f"{facts.group}/fell", detail,  # clients may do that all day: one finding
            offsets=(facts.offset, facts.before - 1), alert=facts.group,
        )  # fmt: skip


def link_diverged(case: Case) -> Iterator[Finding]:
    """A mirror is a part of its source: it ends no later, starts no earlier, and has the same batches."""
    facts = case.facts
    assert isinstance(facts, Link)
    wrong = []
    if facts.end > facts.source_end:
        wrong.append(
            (f"it ends at {facts.end}, the source at {facts.source_end}", facts.source_end, facts.end)
        )
    if not facts.first_start <= facts.start <= max(facts.source_start, facts.first_start):
        wrong.append(
            (
                f"it starts at {facts.start}, the source at {facts.source_start}",
                facts.source_start,
                facts.start,
            )
        )
    if facts.differing != UNKNOWN:
        wrong.append((f"offset {facts.differing} differs", facts.differing, facts.differing + 1))
    for detail, first, last in wrong:
        yield case.finding(
            DIVERGED, Severity.CRITICAL, detail, f"mirror of link {facts.link!r}: {detail}",
            offsets=(first, last - 1), alert=facts.link,
        )  # fmt: skip


def backup_gap(case: Case) -> Iterator[Finding]:
    """The catalogue of a backup has every offset that the backup promises."""
    facts = case.facts
    assert isinstance(facts, Backup)
    for first, last in facts.missing:
        low, high = max(first, facts.promised_first), min(last, facts.promised_last)
        if low <= high:
            yield case.finding(
                BACKUP, Severity.CRITICAL, f"{low}-{high}", f"the backup lacks offsets {low} to {high}",
                offsets=(low, high),
            )  # fmt: skip


def silent_limit_ms(heartbeat: Heartbeat) -> int:
    """How long after a heartbeat the next one is due at the latest."""
    return max(SILENT_PERIODS_MAX * heartbeat.period_ms, SILENT_MS_MIN)


def auditor_silent(case: Case) -> Iterator[Finding]:
    """Collectors send heartbeats without gaps, are up to date, and observe every partition."""
    before, since_ms = case.before.heartbeat, case.before.heartbeat_ms
    facts = case.facts
    if before is not None and not before.stopped:
        silent_ms, limit_ms = case.time_ms - since_ms, silent_limit_ms(before)
        reported = f"{SILENT}/{before.number}"
        if silent_ms > limit_ms and reported not in case.state.marks:
            case.mark(reported, (2,))
            yield case.finding(
                SILENT, Severity.WARNING, f"silent since {since_ms}",
                f"no heartbeat for more than {limit_ms // 1000} s: nothing was observed meanwhile",
                at_ms=since_ms + limit_ms,
            )  # fmt: skip
    if not isinstance(facts, Heartbeat):
        return
    if before is not None and facts.number > before.number + 1:
        yield case.finding(
            SILENT, Severity.WARNING, f"gap {before.number}-{facts.number}",
            f"{facts.number - before.number - 1} heartbeats are missing after number {before.number}",
        )  # fmt: skip
    for key, holds, detail in (
        ("behind", facts.behind_ms > BEHIND_MS_MAX, f"is {facts.behind_ms // 1000} s behind"),
        ("skew", abs(facts.skew_ms) > SKEW_MS_MAX, f"clock differs by {facts.skew_ms} ms"),
        (
            "unseen",
            facts.unseen_count > 0,
            f"did not observe {facts.unseen_count} partitions, among them {', '.join(facts.unseen)}",
        ),
    ):
        if case.confirmed(f"{SILENT}/{key}", holds=holds):
            yield case.finding(SILENT, Severity.WARNING, f"{key} {facts.number}", f"the collector {detail}")
