"""Folds the events of one subject into its state, and findings.

    state, findings = step(state, event)
    state, findings = advance(state, now_ms)

Events may repeat, and events of different sources may arrive up to `LATENESS_MS` out of order: an event waits
until the newest one is that much later. `advance` does the same when no event comes. So findings depend on
the events alone, not on when and how often they arrive, or on which engine folds them.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.audit.rules import facts as facts_of
from penstock.audit.rules.case import Case
from penstock.audit.rules.catalogue import RULES
from penstock.audit.rules.state import BUFFERED_MAX, LATENESS_MS, SOURCES_MAX, SubjectState
from penstock.model.durability import Heartbeat, Severity, What
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.audit.rules.catalogue import Rule
    from penstock.audit.rules.finding import Finding
    from penstock.model.durability import LogEvent

UNREADABLE: Final = "auditor-silent"


class RuleSet:
    """Rules by the kind of event they are checked on."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.on: dict[What, tuple[Rule, ...]] = {
            what: tuple(rule for rule in rules if what in rule.on) for what in What
        }
        self.waiting = tuple(rule for rule in rules if rule.waits)


ALL: Final = RuleSet()


def step(
    state: SubjectState | None, event: LogEvent, rules: RuleSet = ALL
) -> tuple[SubjectState, list[Finding]]:
    """The state after an event, and the findings that became certain."""
    state = state or SubjectState(event.cluster, event.subject)
    if is_repeat(state, event):
        return state, []
    findings: list[Finding] = []
    if event.time_ms <= state.watermark_ms:  # later than its time allows: processed now
        state = replace(state, late=state.late + 1)
        return _process(state, event, rules, findings), findings
    waiting = list(state.waiting)
    insort(waiting, event, key=_order)
    watermark_ms = max(state.watermark_ms, waiting[-1].time_ms - LATENESS_MS)
    if len(waiting) > BUFFERED_MAX:
        watermark_ms = max(watermark_ms, waiting[len(waiting) - BUFFERED_MAX].time_ms)
    return _release(state, tuple(waiting), watermark_ms, rules, findings), findings


def advance(state: SubjectState, now_ms: int, rules: RuleSet = ALL) -> tuple[SubjectState, list[Finding]]:
    """The state at a time, if no event up to it is still to come but late ones."""
    findings: list[Finding] = []
    watermark_ms = max(state.watermark_ms, now_ms - LATENESS_MS)
    state = _release(state, state.waiting, watermark_ms, rules, findings)
    return _pass_time(state, watermark_ms, rules, findings), findings


def is_repeat(state: SubjectState, event: LogEvent) -> bool:
    if event.sequence <= state.sequences.get(event.source, -1):
        return True
    return any(each.source == event.source and each.sequence == event.sequence for each in state.waiting)


def is_waiting(state: SubjectState) -> bool:
    """Whether `advance` may change more than the time."""
    judged_later = state.rises or state.changes or state.recreated
    return bool(state.waiting or judged_later or isinstance(state.heartbeat, Heartbeat))


def _order(event: LogEvent) -> tuple[int, str, int]:
    return event.order


def _release(
    state: SubjectState,
    waiting: tuple[LogEvent, ...],
    watermark_ms: int,
    rules: RuleSet,
    findings: list[Finding],
) -> SubjectState:
    ready = 0
    while ready < len(waiting) and waiting[ready].time_ms <= watermark_ms:
        ready += 1
    state = replace(state, waiting=waiting[ready:], watermark_ms=watermark_ms)
    for event in waiting[:ready]:
        state = _process(state, event, rules, findings)
    return state


def _process(state: SubjectState, event: LogEvent, rules: RuleSet, findings: list[Finding]) -> SubjectState:
    sequences = {source: number for source, number in state.sequences.items() if source != event.source}
    while len(sequences) >= SOURCES_MAX:
        del sequences[next(iter(sequences))]
    sequences[event.source] = event.sequence
    state = replace(state, sequences=sequences)
    state = _pass_time(state, event.time_ms, rules, findings, judging=event.what)
    try:
        facts = event.read_facts()
    except PenstockError as error:
        case = Case(state, state, None, event.time_ms)
        findings.append(
            case.finding(
                UNREADABLE,
                Severity.WARNING,
                f"unreadable {event.source}/{event.sequence}",
                f"event {event.sequence} of {event.source} cannot be read: {error}",
            )
        )
        return state
    case = Case(state, facts_of.apply(state, facts, event.time_ms), facts, event.time_ms)
    for rule in rules.on[event.what]:
        _check(rule, case, findings)
    return case.state


def _pass_time(
    state: SubjectState, time_ms: int, rules: RuleSet, findings: list[Finding], *, judging: What | None = None
) -> SubjectState:
    """Judge what has waited long enough. A rule that is checked on the event itself comes there."""
    if not is_waiting(state):
        return state
    case = Case(state, state, None, time_ms)
    for rule in rules.waiting:
        if judging is None or judging not in rule.on:
            _check(rule, case, findings)
    return case.state


def _check(rule: Rule, case: Case, findings: list[Finding]) -> None:
    before = case.state
    try:
        findings.extend(list(rule.check(case)))
    except Exception as error:  # noqa: BLE001 - reported as a finding: a broken rule must not pass unnoticed
        case.state = before
        findings.append(
            case.finding(
                rule.name,
                Severity.WARNING,
                f"failed {type(error).__name__}",
                f"the rule itself failed: {type(error).__name__}: {error}",
            )
        )
