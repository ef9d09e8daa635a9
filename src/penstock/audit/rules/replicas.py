"""Rules about replicas and acknowledged records: positions, ends, sizes, epochs, the ISR."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.audit.rules.state import SLACK_MS
from penstock.model.durability import UNKNOWN, UNLIMITED, Broker, Placement, Replica, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding
    from penstock.audit.rules.state import Seen

# Kafka checks retention every 5 minutes by default, and deletes files a minute later.
EXCEEDED_MS: Final = 30 * 60 * 1000
ORDERED = "offsets-ordered"
EXCEEDED = "retention-exceeded"
UNREADABLE = "acked-unreadable"
EPOCHS = "epochs-agree"
ISR = "isr-legal"
LOSS_WINDOW = "possible-loss-window"
DISAGREE = "replicas-disagree"
TOPIC_ID = "topic-id-changed"


def offsets_ordered(case: Case) -> Iterator[Finding]:
    """start <= stable <= high watermark <= end; local start in between; tiered below the end."""
    facts = case.facts
    assert isinstance(facts, Replica)
    if not case.state.in_sync(facts.broker):
        return
    pairs = (
        ("log start", facts.start, "log end", facts.end),
        ("log start", facts.start, "local log start", facts.local_start),
        ("local log start", facts.local_start, "log end", facts.end),
        ("log start", facts.start, "last stable offset", facts.stable),
        ("last stable offset", facts.stable, "high watermark", facts.high_watermark),
        ("high watermark", facts.high_watermark, "log end", facts.end),
        ("last tiered offset", facts.tiered, "log end", facts.end - 1),
    )
    for name, low, other, high in pairs:
        holds = UNKNOWN not in (low, high) and low > high
        if case.confirmed(f"{ORDERED}/{facts.broker}/{name}/{other}", holds=holds):
            yield case.finding(
                ORDERED, Severity.CRITICAL, f"{facts.broker}/{name}/{other}",
                f"{name} {low} is above {other} {high} on broker {facts.broker}", broker=facts.broker,
            )  # fmt: skip


def acked_unreadable(case: Case) -> Iterator[Finding]:
    """The leader has every offset that was acknowledged with acks=all."""
    facts, state = case.facts, case.state
    assert isinstance(facts, Replica)
    if not state.leads(facts.broker):
        return
    if state.intends("restore", case.time_ms):
        case.state = state.known_end(facts.end)
        return
    if case.confirmed(UNREADABLE, holds=facts.end < state.acked_by(case.time_ms)):
        first, last = facts.end, state.acked_end - 1
        case.unmark(UNREADABLE)
        case.state = case.state.known_end(facts.end)
        if not case.state.is_known(first, last):
            case.report_loss(first, last)
            yield case.finding(
                UNREADABLE, Severity.CRITICAL, f"{first}-{last}",
                f"offsets {first} to {last} were acknowledged, and the log of the leader, broker "
                f"{facts.broker}, ends at {facts.end}",
                offsets=(first, last), broker=facts.broker,
            )  # fmt: skip


def retention_exceeded(case: Case) -> Iterator[Finding]:
    """Records do not stay much longer than the strictest policy allows."""
    facts, policy = case.facts, case.state.policy
    assert isinstance(facts, Replica)
    if policy is None or not case.state.leads(facts.broker) or not policy.deletes:
        return
    settled = case.time_ms - case.state.policies[-1].time_ms >= EXCEEDED_MS
    limit = policy.retention_bytes + 2 * policy.segment_bytes
    too_large = policy.retention_bytes != UNLIMITED and not policy.tiered and facts.size > limit
    if case.lasted(f"{EXCEEDED}/bytes", holds=settled and too_large, ms=EXCEEDED_MS):
        yield case.finding(
            EXCEEDED, Severity.WARNING, "bytes",
            f"{facts.size} bytes are kept, retention.bytes is {policy.retention_bytes}", bytes=facts.size,
        )  # fmt: skip
    oldest = next(iter(case.state.segments.values()), None)
    too_old = (
        policy.retention_ms != UNLIMITED
        and oldest is not None
        and oldest.segment.state == 1
        and 0 <= oldest.segment.max_timestamp_ms < case.time_ms - policy.retention_ms - EXCEEDED_MS
    )
    if case.lasted(f"{EXCEEDED}/ms", holds=settled and too_old, ms=EXCEEDED_MS) and oldest is not None:
        segment = oldest.segment
        yield case.finding(
            EXCEEDED, Severity.WARNING, f"segment {segment.id}",
            f"remote segment {segment.id} is older than retention.ms {policy.retention_ms} allows",
            offsets=(segment.start, segment.end),
        )  # fmt: skip


def epochs_agree(case: Case) -> Iterator[Finding]:
    """Leader epochs only rise, each has one leader, and no replica has a later one than the partition."""
    facts, before = case.facts, case.before.placement
    if isinstance(facts, Placement):
        if before is None or facts.snapshot:
            return
        if facts.leader_epoch < before.leader_epoch:
            yield case.finding(
                EPOCHS, Severity.CRITICAL, f"{before.leader_epoch}-{facts.leader_epoch}",
                f"the leader epoch fell from {before.leader_epoch} to {facts.leader_epoch}",
            )  # fmt: skip
        leaders = {facts.leader, before.leader} - {UNKNOWN}
        if facts.leader_epoch == before.leader_epoch and len(leaders) > 1:
            yield case.finding(
                EPOCHS, Severity.CRITICAL, f"leaders of {facts.leader_epoch}",
                f"epoch {facts.leader_epoch} has two leaders, brokers {sorted(leaders)}",
            )  # fmt: skip
        return
    assert isinstance(facts, Replica)
    placement = case.state.placement
    if placement is None or not case.state.in_sync(facts.broker):
        return
    if case.confirmed(f"{EPOCHS}/{facts.broker}", holds=facts.end_epoch > placement.leader_epoch):
        yield case.finding(
            EPOCHS, Severity.CRITICAL, f"replica {facts.broker}/{facts.end_epoch}",
            f"broker {facts.broker} has epoch {facts.end_epoch}, the partition {placement.leader_epoch}",
            broker=facts.broker,
        )  # fmt: skip


def isr_legal(case: Case) -> Iterator[Finding]:
    """Each change raises the partition epoch by one; ISR and ELR are disjoint parts of the replicas."""
    facts, before = case.facts, case.before.placement
    assert isinstance(facts, Placement)
    replicas, isr, elr = set(facts.replicas), set(facts.isr), set(facts.elr)
    wrong = []
    if not isr <= replicas:
        wrong.append(f"ISR {sorted(isr)} is not within the replicas {sorted(replicas)}")
    if not elr <= replicas or elr & isr:
        wrong.append(f"ELR {sorted(elr)} is not disjoint from the ISR {sorted(isr)} within the replicas")
    if facts.leader not in isr | {UNKNOWN}:
        wrong.append(f"leader {facts.leader} is not in the ISR {sorted(isr)}")
    if before is not None and not facts.snapshot and facts != before:
        expected = before.partition_epoch + 1
        if facts.partition_epoch != expected:
            wrong.append(f"partition epoch is {facts.partition_epoch}, expected {expected}")
    for detail in wrong:
        yield case.finding(ISR, Severity.CRITICAL, f"{facts.partition_epoch}/{detail}", detail)


def possible_loss_window(case: Case) -> Iterator[Finding]:
    """A leader that was not in the ISR or ELR may lack acknowledged records."""
    facts, before = case.facts, case.before.placement
    assert isinstance(facts, Placement)
    if before is None or case.state.intends("unclean-election", case.time_ms):
        return
    eligible = {*before.isr, *before.elr, UNKNOWN}
    moved = facts.leader != before.leader and not facts.snapshot
    unclean = moved and facts.leader not in eligible
    if unclean or (facts.recovering and not before.recovering):
        yield case.finding(
            LOSS_WINDOW, Severity.CRITICAL, f"epoch {facts.leader_epoch}",
            f"broker {facts.leader} was elected uncleanly in epoch {facts.leader_epoch}; "
            f"ISR before: {list(before.isr)}",
            alert=f"broker {facts.leader}", broker=facts.leader,
        )  # fmt: skip


def replicas_disagree(case: Case) -> Iterator[Finding]:
    """Replicas in the ISR with the same whole log have the same size; every log directory is online."""
    facts = case.facts
    if isinstance(facts, Broker):
        for path in facts.offline_dirs:
            yield case.finding(
                DISAGREE, Severity.CRITICAL, f"offline {path}", f"log directory {path} is offline",
                alert=case.state.subject,
            )  # fmt: skip
        return
    assert isinstance(facts, Replica)
    state, placement, policy = case.state, case.state.placement, case.state.policy
    if placement is None or policy is None or policy.compacts or policy.tiered:
        return
    if not state.in_sync(facts.broker) or facts.broker == placement.leader:
        return
    leader = state.replicas.get(str(placement.leader))
    idle = _is_idle(leader, case.before.replicas.get(str(facts.broker)), facts)
    if case.confirmed(f"{DISAGREE}/{facts.broker}", holds=idle):
        assert leader is not None
        yield case.finding(
            DISAGREE, Severity.CRITICAL, f"{facts.broker}/{facts.end}",
            f"broker {facts.broker} has {facts.size} bytes and the leader {leader.replica.size}, "
            f"both of offsets 0 to {facts.end - 1}",
            offsets=(0, facts.end - 1), broker=facts.broker,
        )  # fmt: skip


def _is_idle(leader: Seen | None, before: Seen | None, facts: Replica) -> bool:
    """Whether leader and follower have the same range, nothing was appended meanwhile, and sizes differ."""
    if leader is None or before is None:
        return False
    same_range = (leader.replica.start, leader.replica.end) == (facts.start, facts.end) == (0, facts.end)
    unchanged = (before.replica.end, before.replica.size) == (facts.end, facts.size)
    known = UNKNOWN not in (leader.replica.size, facts.size)
    return same_range and unchanged and known and leader.replica.size != facts.size


def topic_id_changed(case: Case) -> Iterator[Finding]:
    """A topic keeps its id; a new one means that all its records are gone, unless that was intended.

    A gateway records a deletion after it has happened, so this waits for the intent."""
    due = [each for each in case.state.recreated if each.time_ms + SLACK_MS <= case.time_ms]
    if not due:
        return
    waiting = tuple(each for each in case.state.recreated if each not in due)
    case.state = replace(case.state, recreated=waiting)
    for each in due:
        deleted = case.state.intends("topic-delete", each.deleted_ms)
        if deleted or case.state.intends("topic-restore", each.time_ms):
            continue
        yield case.finding(
            TOPIC_ID, Severity.WARNING, each.after,
            f"the topic was deleted and created again: id {each.before} became {each.after}",
            at_ms=each.time_ms, before=each.before, after=each.after,
        )  # fmt: skip
