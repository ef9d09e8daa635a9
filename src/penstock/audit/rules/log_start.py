"""Rules about the start of a log and the policies that may move it.

A rise of the log start waits `SLACK_MS` for evidence that explains it, because gateways and collectors write
independently. These explain a rise: a restore or a link in progress; DeleteRecords, or that a mirror follows
its source; a rise that was legal on another replica; time retention, unless it had to keep a record that is
known; size retention, if enough bytes are left. A rise is judged by the loosest policy in force since the
replica was last observed.
Where evidence is missing, nothing is reported: that shows as coverage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.audit.rules.state import SLACK_MS
from penstock.model.durability import UNKNOWN, UNLIMITED, Replica, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.audit.rules.case import Case
    from penstock.audit.rules.finding import Finding
    from penstock.audit.rules.state import Rise, Since, SubjectState
    from penstock.model.durability import Policy

UNEXPLAINED = "log-start-unexplained"
FALLS = "log-start-falls"
DRIFT = "config-drift"
# The share coordinator deletes what later records replace.
PRUNED_BY_KAFKA = frozenset(("__share_group_state",))


def log_start_falls(case: Case) -> Iterator[Finding]:
    """A replica that stayed in the ISR never starts its log earlier than before, except for a restore."""
    facts = case.facts
    assert isinstance(facts, Replica)
    seen = case.before.replicas.get(str(facts.broker))
    key = f"{FALLS}/{facts.broker}"
    mark = case.state.marks.get(key)
    if not case.state.in_sync(facts.broker) or seen is None:
        return
    if mark is not None:
        highest = mark[0]
        case.unmark(key)
        if facts.start >= highest or seen.left:
            case.drop()
        else:
            yield case.finding(
                FALLS, Severity.CRITICAL, f"{highest}-{facts.start}",
                f"log start fell from {highest} to {facts.start} on broker {facts.broker}",
                offsets=(facts.start, highest - 1), broker=facts.broker,
            )  # fmt: skip
        return
    restoring = any(case.state.intends(action, case.time_ms) for action in ("restore", "link"))
    if facts.start < seen.replica.start and not seen.left and not restoring:
        case.mark(key, (seen.replica.start,))


def log_start_unexplained(case: Case) -> Iterator[Finding]:
    """Judge the rises whose time for an explanation is over."""
    due = [rise for rise in case.state.rises if rise.time_ms + SLACK_MS <= case.time_ms]
    if not due:
        return
    case.state = replace(case.state, rises=tuple(each for each in case.state.rises if each not in due))
    for rise in due:
        yield from _judge(case, rise)


def _judge(case: Case, rise: Rise) -> Iterator[Finding]:
    state = case.state
    if explanation(state, rise):
        case.state = replace(state, legal_to=max(state.legal_to, rise.to))
        return
    first = max(rise.first, min(state.deleted_to, rise.to), min(state.legal_to, rise.to))
    for known in state.known:
        if known[0] <= first <= known[1]:
            first = known[1] + 1
    if first >= rise.to:
        return  # reported already, for another replica or by another rule
    case.report_loss(first, rise.to - 1)
    offsets, lost = (first, rise.to - 1), f"offsets {first} to {rise.to - 1}"
    cut = _unintended_cut(state, rise)
    if cut is not None:
        yield case.finding(
            DRIFT, Severity.CRITICAL, str(cut.time_ms),
            f"a configuration change without a recorded intent deleted {lost}: {_described(cut.policy)}",
            offsets=offsets, at_ms=rise.time_ms, broker=rise.broker, changed_ms=cut.time_ms,
        )  # fmt: skip
        return
    leads = state.leads(rise.broker)
    keeping = sorted(int(b) for b, seen in state.replicas.items() if seen.replica.start <= first)
    yield case.finding(
        UNEXPLAINED, Severity.CRITICAL, f"{first}-{rise.to}",
        f"log start rose from {rise.first} to {rise.to} on broker {rise.broker}"
        f"{', the leader,' if leads else ''} without a reason: {lost} are gone there",
        offsets=offsets, alert=f"broker {rise.broker}", at_ms=rise.time_ms, broker=rise.broker, leads=leads,
        keeping=keeping,
    )  # fmt: skip


def explanation(state: SubjectState, rise: Rise) -> str:
    """Why a rise was legal; empty if nothing explains it."""
    if state.topic_name in PRUNED_BY_KAFKA:
        return "pruned by its coordinator"
    for action in ("restore", "link"):
        if state.intends(action, rise.time_ms):
            return f"{action} in progress"
    if rise.to <= state.deleted_to:
        return "DeleteRecords, link or restore"
    if rise.to <= state.legal_to:
        return "legal on another replica"
    policies = _in_force(state, rise)
    if not policies:
        return "no configuration is known"
    for number, since in enumerate(policies):
        intended = number == 0 or state.intends("config", since.time_ms)
        reason = allowed_by(state, rise, since.policy) if intended else ""
        if reason:
            return reason
    return ""


def _in_force(state: SubjectState, rise: Rise) -> list[Since]:
    policies = state.policies_between(rise.since_ms, rise.time_ms)
    return [each for each in state.policies if any(each.policy is policy for policy in policies)]


def _unintended_cut(state: SubjectState, rise: Rise) -> Since | None:
    """The policy that allowed the rise, if no one is recorded to have intended it."""
    return next((each for each in _in_force(state, rise)[1:] if allowed_by(state, rise, each.policy)), None)


def allowed_by(state: SubjectState, rise: Rise, policy: Policy) -> str:
    """The retention that may have moved the start so far; empty if neither did."""
    if not policy.deletes:
        return ""
    if policy.retention_ms != UNLIMITED and _expired(state, rise, policy):
        return "retention.ms"
    if policy.retention_bytes != UNLIMITED:
        left = _bytes_left(state, rise)
        if left == UNKNOWN or left >= policy.retention_bytes:
            return "retention.bytes"
    return ""


def _expired(state: SubjectState, rise: Rise, policy: Policy) -> bool:
    """Whether no record is known that time retention had to keep. Compaction may remove such a record."""
    if policy.compacts:
        return True
    return all(
        rise.to <= sample.offset
        for sample in state.samples
        if sample.time_ms <= rise.time_ms <= sample.until_ms and sample.retention_ms <= policy.retention_ms
    )


def _bytes_left(state: SubjectState, rise: Rise) -> int:
    if rise.size == UNKNOWN or state.unknown_size:
        return UNKNOWN
    seen = state.replicas.get(str(rise.broker))
    local_start = seen.replica.local_start if seen is not None else UNKNOWN
    remote = (
        each.segment.bytes
        for each in state.segments.values()
        if each.segment.state == 1 and (local_start == UNKNOWN or each.segment.end < local_start)
    )
    return rise.size + sum(remote)


def config_drift(case: Case) -> Iterator[Finding]:
    """Judge the changes that weaken durability and whose time for a recorded intent is over."""
    due = [time_ms for time_ms in case.state.changes if time_ms + SLACK_MS <= case.time_ms]
    if not due:
        return
    waiting = tuple(time_ms for time_ms in case.state.changes if time_ms not in due)
    case.state = replace(case.state, changes=waiting)
    for before, after in zip(case.state.policies, case.state.policies[1:]):
        if after.time_ms not in due or case.state.intends("config", after.time_ms):
            continue
        weaker = weakened(before.policy, after.policy)
        if weaker:
            yield case.finding(
                DRIFT, Severity.WARNING, str(after.time_ms),
                f"changed without a recorded intent: {', '.join(weaker)}",
                at_ms=after.time_ms, changed_ms=after.time_ms,
            )  # fmt: skip


def weakened(before: Policy, after: Policy) -> list[str]:
    """The settings that protect records less than before."""
    result = []
    for name, shown in (("retention_ms", "retention.ms"), ("retention_bytes", "retention.bytes")):
        old, new = getattr(before, name), getattr(after, name)
        if new != UNLIMITED and (old == UNLIMITED or new < old):
            result.append(f"{shown} {old} to {new}")
    if after.min_isr < before.min_isr:
        result.append(f"min.insync.replicas {before.min_isr} to {after.min_isr}")
    if after.unclean and not before.unclean:
        result.append("unclean.leader.election.enable to true")
    if after.cleanup != before.cleanup:
        result.append(f"cleanup.policy {before.cleanup} to {after.cleanup}")
    return result


def _described(policy: Policy) -> str:
    return f"retention.ms {policy.retention_ms}, retention.bytes {policy.retention_bytes}"
