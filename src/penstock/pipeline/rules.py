"""Rules of the audit: pure functions over the ordered events of one subject.

    def no_rollback(history: Sequence[LoggedEvent]) -> Iterator[Finding]: ...
    RULE = Rule("no-rollback", no_rollback)

A rule sees each event once, in log order, with repeats (same id) taken out. It keeps no state of
its own between subjects, and says what is wrong by the event at which it shows. An exception that
a rule raises is a finding, too: an audit that falls silent would look like one that found nothing.
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

    def facts(self) -> dict[str, Any]:
        """The whole event, with `before` and `after`; parsed when asked for."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class Finding(NamedTuple):
    event: LoggedEvent
    detail: str


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: Callable[[Sequence[LoggedEvent]], Iterator[Finding]]


def judged(rules: Sequence[Rule], history: Sequence[LoggedEvent]) -> Iterator[tuple[str, Finding]]:
    """What every rule finds in a subject's history."""
    first: dict[str, LoggedEvent] = {}
    for event in history:
        first.setdefault(event.id, event)
    once = list(first.values())
    for rule in rules:
        try:
            yield from ((rule.name, finding) for finding in rule.check(once))
        except Exception as error:  # noqa: BLE001 - reported as a finding: a rule must not fall silent
            yield rule.name, Finding(once[-1], f"the rule itself failed: {type(error).__name__}: {error}")


def log_start_falls(history: Sequence[LoggedEvent]) -> Iterator[Finding]:
    """A log's start only ever rises: what was deleted cannot come back, so a fall is a lost record of it."""
    highest: int | None = None
    for event in history:
        if not event.operation.startswith("log-start."):
            continue
        now = (event.facts().get("after") or {}).get("log_start")
        if not isinstance(now, int):
            yield Finding(event, f"`after.log_start` is {now!r}")
            continue
        if highest is not None and now < highest:
            yield Finding(event, f"log start fell from {highest} to {now}")
        highest = now if highest is None else max(highest, now)


RULES: Final = (Rule("log-start-falls", log_start_falls),)
