"""What a rule gets to judge: the state before and after one event, and what it may remember."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.audit.rules.finding import Finding
from penstock.audit.rules.state import KNOWN_MAX, MARKS_MAX, SubjectState
from penstock.model.durability import UNKNOWN, Severity

if TYPE_CHECKING:
    from penstock.model.durability import Facts


@dataclass(slots=True)
class Case:
    """One step. `state` is after the event; marks and known losses are changed through the methods here."""

    before: SubjectState
    state: SubjectState
    facts: Facts | None  # None: only time has passed
    time_ms: int

    @property
    def topic(self) -> str:
        """The topic id, for alerts that join the partitions of a topic."""
        return self.state.subject.rpartition("/")[0] or self.state.subject

    def finding(
        self,
        rule: str,
        severity: Severity,
        cause: str,
        detail: str,
        *,
        offsets: tuple[int, int] = (UNKNOWN, UNKNOWN),
        alert: str = "",
        at_ms: int | None = None,
        **evidence: Any,
    ) -> Finding:
        return Finding(
            rule=rule,
            cluster=self.state.cluster,
            subject=self.state.subject,
            cause=cause,
            severity=severity,
            time_ms=self.time_ms if at_ms is None else at_ms,
            detail=detail,
            alert=f"{rule}/{alert or self.topic}",
            first=offsets[0],
            last=offsets[1],
            evidence=evidence,
            topic_name=self.state.topic_name,
        )

    def mark(self, key: str, value: tuple[int, ...]) -> None:
        marks = {**self.state.marks, key: value}
        if len(marks) > MARKS_MAX:
            del marks[next(iter(marks))]
        self.state = replace(self.state, marks=marks)

    def unmark(self, key: str) -> None:
        if key in self.state.marks:
            marks = {each: value for each, value in self.state.marks.items() if each != key}
            self.state = replace(self.state, marks=marks)

    def drop(self, count: int = 1) -> None:
        """Count suspicions that turned out to be none."""
        self.state = replace(self.state, dropped=self.state.dropped + count)

    def report_loss(self, first: int, last: int) -> None:
        """Remember a reported range, so that no other rule reports the same loss."""
        known = (*self.state.known, (first, last))[-KNOWN_MAX:]
        self.state = replace(self.state, known=known)

    def confirmed(self, key: str, *, holds: bool) -> bool:
        """Whether a violation is observed for the second time in a row. True once."""
        mark = self.state.marks.get(key)
        if not holds:
            if mark is not None:
                self.unmark(key)
                self.drop(1 if mark[0] == 1 else 0)
            return False
        if mark is None:
            self.mark(key, (1, self.time_ms))
            return False
        if mark[0] == 1 and self.time_ms > mark[1]:
            self.mark(key, (2, self.time_ms))
            return True
        return False

    def lasted(self, key: str, *, holds: bool, ms: int) -> bool:
        """Whether a violation has been observed for at least `ms`. True once."""
        mark = self.state.marks.get(key)
        if not holds:
            self.unmark(key)
            return False
        if mark is None:
            self.mark(key, (self.time_ms, 0))
            return False
        if not mark[1] and self.time_ms - mark[0] >= ms:
            self.mark(key, (mark[0], 1))
            return True
        return False
