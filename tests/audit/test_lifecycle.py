"""Open, acknowledged, resolved, and open again."""

from __future__ import annotations

import random
from dataclasses import replace

from penstock.audit.lifecycle import FindingLog, handled, handling_of
from penstock.model.durability import FindingHandling, FindingRecord, FindingState, Severity

FINDING = FindingRecord(
    "3f9a000000000000", "tier-lag", Severity.WARNING, "pkc-000000", "partition/T/0", "late", 5, 9,
    "tier-lag/T", 1000, 2000, topic_name="lkc-7hq2mz_orders",
)  # fmt: skip


def acknowledged(finding: FindingRecord = FINDING, *, now_ms: int = 3000) -> FindingHandling:
    return handling_of(finding, FindingState.ACKNOWLEDGED, "ops", "known", now_ms)


def resolved(finding: FindingRecord = FINDING, *, now_ms: int = 3000) -> FindingHandling:
    return handling_of(finding, FindingState.RESOLVED, "ops", "restored", now_ms)


def log_of(*records: FindingRecord | FindingHandling) -> FindingLog:
    log = FindingLog()
    for each in records:
        log.apply(each.key, each.to_bytes())
    return log


def test_a_finding_is_open_until_an_operator_handles_it() -> None:
    assert [each.state for each in log_of(FINDING).current()] == [FindingState.OPEN]
    (after,) = log_of(FINDING, acknowledged()).current()
    assert (after.state, after.actor, after.note) == (FindingState.ACKNOWLEDGED, "ops", "known")


def test_the_auditor_and_an_operator_write_in_any_order_and_neither_overwrites_the_other() -> None:
    """The auditor repeats a finding as it knows it, that is open."""
    records: list[FindingRecord | FindingHandling] = [FINDING, replace(FINDING), acknowledged()]
    for seed in range(6):
        random.Random(seed).shuffle(records)
        assert [each.state for each in log_of(*records).current()] == [FindingState.ACKNOWLEDGED]


def test_an_acknowledged_finding_stays_so_when_it_is_observed_again() -> None:
    again = replace(FINDING, last_seen_ms=9000)
    assert handled(again, acknowledged()).state is FindingState.ACKNOWLEDGED


def test_a_resolved_finding_is_open_again_when_it_is_observed_again() -> None:
    again = replace(FINDING, last_seen_ms=9000)
    assert handled(FINDING, resolved()).state is FindingState.RESOLVED
    assert handled(again, resolved()).is_open
    assert handled(again, resolved(again, now_ms=9500)).state is FindingState.RESOLVED


def test_a_handled_finding_that_becomes_more_severe_is_open_again() -> None:
    worse = replace(FINDING, severity=Severity.CRITICAL)
    assert handled(worse, acknowledged()).is_open
    assert handled(worse, resolved()).is_open


def test_a_clock_that_is_behind_resolves_what_it_sees() -> None:
    assert handled(FINDING, resolved(now_ms=10)).state is FindingState.RESOLVED


def test_a_deleted_record_is_gone() -> None:
    log = log_of(FINDING, acknowledged())
    log.apply(acknowledged().key, None)
    assert [each.state for each in log.current()] == [FindingState.OPEN]
    log.apply(FINDING.key, None)
    assert log.current() == []


def test_the_most_severe_and_newest_comes_first() -> None:
    later = replace(FINDING, id="1" * 16, last_seen_ms=5000)
    critical = replace(FINDING, id="2" * 16, severity=Severity.CRITICAL)
    assert log_of(FINDING, later, critical).current() == [critical, later, FINDING]
