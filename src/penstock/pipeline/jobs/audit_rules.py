"""Audit rules: pure functions over the ordered events of one subject.

    def no_rollback(history: Sequence[LoggedEvent]) -> Iterator[Finding]: ...
    RULE = Rule("no-rollback", no_rollback)

A rule sees each event once, in log order; repeated events (same id) are removed. It keeps no state
between subjects, and reports each violation with the event that shows it. If a rule raises, that is a
finding too: otherwise a broken rule would look like a clean audit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class LoggedEvent(NamedTuple):
    cluster: str
    subject_kind: str
    subject: str
    id: str
    time_ms: int
    source: str
    sequence: int
    operation: str
    actor: str
    outcome: str
    offset: int
    body: str

    def fields(self) -> dict[str, Any]:
        """The whole event, with `before` and `after`; parsed on demand."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


class Finding(NamedTuple):
    event: LoggedEvent
    detail: str


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: Callable[[Sequence[LoggedEvent]], Iterator[Finding]]


def apply_rules(rules: Sequence[Rule], history: Sequence[LoggedEvent]) -> Iterator[tuple[str, Finding]]:
    """The findings of every rule in one subject's history."""
    by_id: dict[str, LoggedEvent] = {}
    for event in history:
        by_id.setdefault(event.id, event)
    events = list(by_id.values())
    for rule in rules:
        try:
            yield from ((rule.name, finding) for finding in rule.check(events))
        except Exception as error:  # noqa: BLE001 - reported as a finding: a broken rule must not pass unnoticed
            yield rule.name, Finding(events[-1], f"the rule itself failed: {type(error).__name__}: {error}")


def log_start_falls(history: Sequence[LoggedEvent]) -> Iterator[Finding]:
    """A log start offset never decreases: a decrease means that an event was lost."""
    highest: int | None = None
    for event in history:
        if not event.operation.startswith("log-start."):
            continue
        now = (event.fields().get("after") or {}).get("log_start")
        if not isinstance(now, int):
            yield Finding(event, f"`after.log_start` is {now!r}")
            continue
        if highest is not None and now < highest:
            yield Finding(event, f"log start fell from {highest} to {now}")
        highest = now if highest is None else max(highest, now)


RULES: Final = (Rule("log-start-falls", log_start_falls),)
