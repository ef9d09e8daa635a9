"""The audit rules find planted violations and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.model.events import AuditEvent, Outcome
from penstock.model.ids import PhysicalClusterId
from penstock.pipeline.jobs.audit import AUDIT
from penstock.pipeline.jobs.audit_rules import RULES, Finding, LoggedEvent, Rule, apply_rules
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.pipeline.conftest import PipelineHarness


def event(number: int, subject: int, log_start: int) -> AuditEvent:
    return AuditEvent(
        id=f"e{number}",
        time_ms=1_700_000_000_000 + number,
        source="watcher-1",
        sequence=number,
        cluster=PhysicalClusterId("pkc-000000"),
        operation="log-start.rise",
        subject_kind="partition",
        subject=f"t-{subject}",
        actor="retention",
        outcome=Outcome.DONE,
        after={"log_start": log_start},
    )


def logged(number: int, log_start: object, operation: str = "log-start.rise") -> LoggedEvent:
    body = f'{{"after":{{"log_start":{log_start}}}}}'
    return LoggedEvent(
        "c", "partition", "t-0", f"e{number}", number, "s", number, operation, "a", "done", number, body
    )


def test_a_decreasing_log_start_is_reported_at_the_event_that_shows_it() -> None:
    history = [
        logged(1, 5),
        logged(2, 9),
        logged(3, 0, "topic.create"),
        logged(4, 7),
        logged(5, 9),
        logged(6, "null"),
    ]

    findings = [(rule, f.event.offset, f.detail) for rule, f in apply_rules(RULES, history)]

    assert findings == [
        ("log-start-falls", 4, "log start fell from 9 to 7"),
        ("log-start-falls", 6, "`after.log_start` is None"),
    ]


def test_a_repeated_event_is_checked_once() -> None:
    history = [logged(1, 5), logged(2, 9), logged(1, 5)]

    assert not list(apply_rules(RULES, history))


def test_a_rule_that_fails_is_a_finding() -> None:
    def broken(history: Sequence[LoggedEvent]) -> Iterator[Finding]:
        if history:
            raise ZeroDivisionError("by nothing")
        yield Finding(history[0], "")

    ((name, finding),) = apply_rules((Rule("broken", broken),), [logged(1, 5)])

    assert name == "broken"
    assert "ZeroDivisionError: by nothing" in finding.detail


@pytest.mark.spark
def test_a_planted_violation_is_the_only_finding_among_clean_histories(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    """Also after a run that failed between its table and its checkpoint."""
    topic = harness.make_topic(unique("audit"))
    events = [event(n, subject=n % 50, log_start=n // 50) for n in range(1000)]
    events[749] = event(749, subject=49, log_start=3)
    harness.send(topic, [e.to_bytes() for e in events], keys=[e.key for e in events])
    job = replace(AUDIT, source=replace(AUDIT.source, topic=topic, batch_offsets_max=600))
    with interrupted("pipeline.table.committed", 2):
        harness.run(job)

    harness.run(job)

    findings = harness.rows("platform.audit_findings", "rule", "subject", "detail")
    assert findings == [("log-start-falls", "t-49", "log start fell from 13 to 3")]
