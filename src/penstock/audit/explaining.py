"""Why each change of a partition was legal, in words; or which finding it led to. Pure.

The same rules as in the audit give the findings. The reasons are derived again from the whole history: the
state of the audit keeps only the newest intents.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.audit.rules import facts as facts_of
from penstock.audit.rules.fold import advance, step
from penstock.audit.rules.log_start import explanation, weakened
from penstock.audit.rules.state import LATENESS_MS, SLACK_MS, Recorded, SubjectState
from penstock.model.durability import UNKNOWN, Deleted, Intent, Placement, Policy, Replica
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.audit.rules.finding import Finding
    from penstock.model.durability import Facts, LogEvent

UNEXPLAINED: Final = "UNEXPLAINED"


@dataclass(frozen=True, slots=True)
class Explained:
    """An event; what it changed and why that was legal; findings that its time has."""

    event: LogEvent
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def explained(events: Sequence[LogEvent]) -> list[Explained]:
    """The history of one partition, in order."""
    findings = _findings(events)
    evidence = _Evidence.of(events)
    state: SubjectState | None = None
    result = []
    for event in events:
        state = state or SubjectState(event.cluster, event.subject)
        try:
            facts = event.read_facts()
        except PenstockError as error:
            result.append(Explained(event, (f"not readable: {error}",)))
            continue
        after = facts_of.apply(state, facts, event.time_ms)
        reasons, legal_to = _rises(evidence, after)
        reasons += _change(evidence.at(state, event.time_ms), facts, event.time_ms)
        raised = tuple(each for each in findings if each.time_ms == event.time_ms)
        findings = [each for each in findings if each not in raised]
        result.append(Explained(event, tuple(reasons), raised))
        state = replace(after, rises=(), legal_to=legal_to)
    return result


@dataclass(frozen=True, slots=True)
class _Evidence:
    """All that the history has of what may explain a change; the state of a subject keeps the newest only."""

    intents: tuple[Recorded, ...]
    deletions: tuple[tuple[int, int], ...]  # when, and where the log may start from then on

    @classmethod
    def of(cls, events: Sequence[LogEvent]) -> _Evidence:
        intents: list[Recorded] = []
        deletions = []
        for event in events:
            with contextlib.suppress(PenstockError):  # facts of a newer version excuse nothing
                match event.read_facts():
                    case Intent() as intent:
                        intents.append(facts_of.recorded(intent, event.time_ms))
                    case Deleted() as deleted:
                        deletions.append((event.time_ms, deleted.before))
                    case _:
                        pass
        return cls(tuple(intents), tuple(deletions))

    def at(self, state: SubjectState, time_ms: int) -> SubjectState:
        """The state, with what was recorded soon after that time too."""
        allowed = [before for recorded_ms, before in self.deletions if recorded_ms <= time_ms + SLACK_MS]
        return replace(state, intents=self.intents, deleted_to=max(allowed, default=0))


def _findings(events: Sequence[LogEvent]) -> list[Finding]:
    state: SubjectState | None = None
    findings: list[Finding] = []
    for event in events:
        state, raised = step(state, event)
        findings += raised
    if state is not None:
        last_ms = max(event.time_ms for event in events)
        findings += advance(state, last_ms + LATENESS_MS + SLACK_MS)[1]
    return findings


def _rises(evidence: _Evidence, after: SubjectState) -> tuple[list[str], int]:
    """Why the log start rose, and up to where that was legal."""
    reasons, legal_to = [], after.legal_to
    for rise in after.rises:
        state = replace(evidence.at(after, rise.time_ms), legal_to=legal_to)
        reason = explanation(state, rise)
        if reason:
            legal_to = max(legal_to, rise.to)
        reasons.append(f"log start {rise.first} to {rise.to}: {reason or UNEXPLAINED}")
    return reasons, legal_to


def _change(before: SubjectState, facts: Facts, time_ms: int) -> list[str]:
    match facts:
        case Placement():
            return _placement(before, facts, time_ms)
        case Policy() if before.policy is not None and before.policy != facts:
            return [_policy(before, before.policy, facts, time_ms)]
        case Replica():
            return _replica(before, facts)
        case Deleted():
            return [f"the log may start at {facts.before}, by {facts.actor}"]
        case Intent():
            return [f"intent of {facts.actor}: {facts.action}"]
        case _:
            return []


def _placement(state: SubjectState, after: Placement, time_ms: int) -> list[str]:
    before = state.placement
    if before is None or after.snapshot:
        return []
    reasons = []
    if after.leader != before.leader:
        reasons.append(_election(state, before, after, time_ms))
    if lost := _shown(set(before.isr) - set(after.isr)):
        reasons.append(f"broker {lost} left the ISR: {_why_left(before, after)}")
    if gained := _shown(set(after.isr) - set(before.isr)):
        reasons.append(f"broker {gained} joined the ISR: caught up with the leader")
    if after.replicas != before.replicas:
        reasons.append(f"replicas {list(before.replicas)} to {list(after.replicas)}: reassigned")
    return reasons


def _why_left(before: Placement, after: Placement) -> str:
    gone = set(before.isr) - set(after.isr)
    if not gone & set(after.replicas):
        return "no replica any more"
    return f"stopped or behind; {len(after.isr)} in-sync replicas are left"


def _election(state: SubjectState, before: Placement, after: Placement, time_ms: int) -> str:
    change = f"leader {before.leader} to {after.leader}"
    if after.leader == UNKNOWN:
        return f"{change}: no replica in the ISR is alive"
    if after.leader in before.isr:
        return f"{change}: elected from the ISR"
    if after.leader in before.elr:
        return f"{change}: elected from the ELR"
    if state.intends("unclean-election", time_ms):
        return f"{change}: unclean election, intended"
    return f"{change}: unclean election, {UNEXPLAINED}"


def _policy(state: SubjectState, before: Policy, after: Policy, time_ms: int) -> str:
    weaker = weakened(before, after)
    if not weaker:
        return "configuration changed: protects records no less than before"
    actors = sorted(
        {
            each.actor
            for each in state.intents
            if each.action == "config" and each.time_ms - SLACK_MS <= time_ms <= each.until_ms + SLACK_MS
        }
    )
    why = f"intended by {', '.join(actors)}" if actors else UNEXPLAINED
    return f"{', '.join(weaker)}: {why}"


def _replica(before: SubjectState, facts: Replica) -> list[str]:
    if not before.in_sync(facts.broker):
        return [f"broker {facts.broker} is not in the ISR: not judged"]
    seen = before.replicas.get(str(facts.broker))
    if seen is None:
        return []
    if facts.end < seen.replica.end and not seen.left:
        return [f"log end {seen.replica.end} to {facts.end} on broker {facts.broker}: truncated"]
    return []


def _shown(brokers: set[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))
