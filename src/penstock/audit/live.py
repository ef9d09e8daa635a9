"""The live engine: the states of all subjects, and the findings so far. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.audit.rules.finding import merged
from penstock.audit.rules.fold import advance, is_waiting, step
from penstock.audit.rules.log_start import FALLS
from penstock.audit.rules.reports import silent_limit_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.audit.rules.finding import Finding
    from penstock.audit.rules.state import SubjectState
    from penstock.model.durability import FindingRecord, LogEvent


@dataclass(slots=True)
class LiveEngine:
    """`changed` are the subjects whose state is not stored yet; the caller clears it."""

    states: dict[bytes, SubjectState] = field(default_factory=dict)
    findings: dict[str, FindingRecord] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)
    events: int = 0
    _waiting: set[bytes] = field(default_factory=set)

    def load(self, states: Iterable[SubjectState], findings: Iterable[FindingRecord]) -> None:
        self.states = {state.key: state for state in states}
        self.findings = {finding.id: finding for finding in findings}
        self._waiting = {key for key, state in self.states.items() if is_waiting(state)}
        self.changed.clear()

    def fold(self, events: Iterable[LogEvent]) -> list[FindingRecord]:
        """The findings that are new or have changed."""
        result: list[Finding] = []
        for event in events:
            state, findings = step(self.states.get(event.key), event)
            self._keep(state)
            result += findings
            self.events += 1
        return self._merge(result)

    def advance(self, now_ms: int) -> list[FindingRecord]:
        """Judge what has waited long enough."""
        result: list[Finding] = []
        for key in list(self._waiting):
            state, findings = advance(self.states[key], now_ms)
            self._keep(state)
            result += findings
        return self._merge(result)

    def suspected(self) -> set[str]:
        """Subjects that the next sweep should report even if nothing changed: before a finding is raised."""
        return {self.states[key].subject for key in self._waiting if is_suspected(self.states[key])}

    def forget(self, key: bytes) -> None:
        """Remove the state of a deleted topic's partition."""
        self.states.pop(key, None)
        self._waiting.discard(key)

    @property
    def dropped(self) -> int:
        return sum(state.dropped for state in self.states.values())

    def _keep(self, state: SubjectState) -> None:
        key = state.key
        self.states[key] = state
        self.changed.add(key)
        if is_waiting(state) or is_suspected(state):
            self._waiting.add(key)
        else:
            self._waiting.discard(key)

    def _merge(self, findings: Iterable[Finding]) -> list[FindingRecord]:
        changed: dict[str, FindingRecord] = {}
        for finding in findings:
            before = self.findings.get(finding.id)
            after = merged(before, finding.record())
            if after != before:
                self.findings[finding.id] = changed[finding.id] = after
        return list(changed.values())


def is_suspected(state: SubjectState) -> bool:
    """Whether a rule has observed a violation once, and waits for a second observation."""
    return any(
        (value[0] == 1 and len(value) == 2) or key.startswith(FALLS) for key, value in state.marks.items()
    )


def is_gone(state: SubjectState) -> bool:
    """Whether the topic of a partition was deleted, and nothing about it waits."""
    known = state.placement is not None or state.policies or state.waiting
    return state.subject.startswith("partition/") and not known


def is_running(states: Iterable[SubjectState], now_ms: int, stored_ms: int) -> bool:
    """Whether a collector's heartbeat is not overdue: a dead audit cannot report itself.

    States are stored every `stored_ms`, so the newest heartbeat may be so much older."""
    return any(
        each.heartbeat is not None
        and not each.heartbeat.stopped
        and now_ms - each.heartbeat_ms <= silent_limit_ms(each.heartbeat) + stored_ms
        for each in states
    )
