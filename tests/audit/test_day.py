"""The daily report."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.audit.day import LEAD_IN_MS, SETTLED_MS, DayFold, day_of, report
from penstock.audit.report_page import page
from penstock.model.durability import (
    Acked,
    Deleted,
    FindingRecord,
    Heartbeat,
    Intent,
    Placement,
    Replica,
    Severity,
)
from penstock.model.errors.audit import DayUnfinished
from tests.audit.history import DAY_MS, HOUR_MS, event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.durability import Facts

DATE = date(2026, 11, 17)
BEGIN_MS = int(datetime(2026, 11, 17, tzinfo=UTC).timestamp() * 1000)
AFTER_MS = BEGIN_MS + DAY_MS + SETTLED_MS
DAY = day_of(DATE, AFTER_MS, so_far=False)
SHOP, PLATFORM = "partition/AAAAAAAAAAAAAAAAAAAAAQ/0", "partition/AAAAAAAAAAAAAAAAAAAAAg/0"
TENANT = "lkc-7hq2mz"


def placed(topic: str, **more: Any) -> Placement:
    return Placement(topic, (1, 2), (1, 2), 1, 0, **{"partition_epoch": 0} | more)


def leader(high_watermark: int, *, size: int = -1) -> Replica:
    return Replica(1, 0, high_watermark, high_watermark=high_watermark, size=size)


def folded(events: Iterable[tuple[int, str, Facts]]) -> DayFold:
    """Events by time since the day began, subject and facts."""
    fold = DayFold(DAY)
    for number, (at_ms, subject, facts) in enumerate(events):
        fold.add(event(number, BEGIN_MS + at_ms, facts, subject=subject))
    return fold


def coverage(events: Iterable[tuple[int, str, Facts]]) -> dict[str, dict[str, Any]]:
    members = report(folded(events), "pkc-000000", [])
    return {row["tenant"]: row for row in members["coverage"]}


@pytest.mark.parametrize("now_ms", [BEGIN_MS - 1, BEGIN_MS + HOUR_MS, AFTER_MS - 1])
def test_a_day_that_is_not_over_is_refused(now_ms: int) -> None:
    with pytest.raises(DayUnfinished, match="2026-11-17"):
        day_of(DATE, now_ms, so_far=False)


def test_a_day_so_far_ends_now_and_one_that_has_not_begun_is_refused_still() -> None:
    so_far = day_of(DATE, BEGIN_MS + HOUR_MS, so_far=True)
    assert (so_far.begin_ms, so_far.end_ms, so_far.finished) == (BEGIN_MS, BEGIN_MS + HOUR_MS, False)
    assert day_of(DATE, AFTER_MS, so_far=True) == DAY
    with pytest.raises(DayUnfinished):
        day_of(DATE, BEGIN_MS - 1, so_far=True)


def test_coverage_is_the_share_of_appended_bytes_with_evidence_by_tenant() -> None:
    rows = coverage([
        (-LEAD_IN_MS, SHOP, placed(f"{TENANT}_orders")),
        (-HOUR_MS, SHOP, leader(100, size=1_000)),
        (-HOUR_MS, PLATFORM, placed("_penstock.usage")),
        (-HOUR_MS, PLATFORM, leader(5, size=50)),
        (10, SHOP, Acked(100, 399, 300, 3_000)),
        (20, SHOP, leader(500, size=5_000)),
        (30, PLATFORM, leader(15, size=150)),
    ])  # fmt: skip

    assert rows[TENANT] | {} == {
        "tenant": TENANT, "partitions": 1, "appended_offsets": 400, "acked_offsets": 300,
        "appended_bytes": 4_000, "acked_bytes": 3_000, "share": 0.75,
    }  # fmt: skip
    assert (rows[""]["appended_offsets"], rows[""]["share"]) == (10, 0.0)


def test_what_was_appended_before_the_day_and_after_it_does_not_count() -> None:
    rows = coverage([
        (-HOUR_MS, SHOP, placed(f"{TENANT}_orders")),
        (-HOUR_MS, SHOP, Acked(0, 99, 100, 1_000)),
        (-10, SHOP, leader(100)),
        (DAY_MS - 1, SHOP, leader(150)),
        (DAY_MS, SHOP, leader(900)),
        (DAY_MS, SHOP, Acked(150, 899, 750, 7_500)),
    ])  # fmt: skip

    assert (rows[TENANT]["appended_offsets"], rows[TENANT]["acked_bytes"]) == (50, 0)


def test_a_partition_that_was_created_in_the_day_began_empty() -> None:
    rows = coverage([(10, SHOP, placed(f"{TENANT}_new")), (20, SHOP, leader(70))])
    assert rows[TENANT]["appended_offsets"] == 70


def test_a_partition_that_the_audit_met_in_the_day_counts_from_there() -> None:
    rows = coverage([
        (10, SHOP, placed(f"{TENANT}_old", snapshot=True)),
        (20, SHOP, leader(70)),
        (30, SHOP, leader(90)),
    ])  # fmt: skip
    assert rows[TENANT]["appended_offsets"] == 20


def test_a_topic_whose_placement_did_not_change_is_named_by_the_state_of_the_audit() -> None:
    fold = folded([(-10, SHOP, leader(10)), (20, SHOP, leader(20))])
    fold.name_topics({SHOP: f"{TENANT}_orders"})
    assert [row["tenant"] for row in report(fold, "c", [])["coverage"]] == [TENANT]


def test_collectors_show_their_age_longest_gap_and_what_they_could_not_observe() -> None:
    minute = 60_000
    members = report(
        folded([
            (-minute, "collector/auditor", Heartbeat(1, 10_000)),
            (minute, "collector/auditor", Heartbeat(2, 10_000, disabled=("tier-coverage: no right",))),
            (9 * minute, "collector/auditor", Heartbeat(3, 10_000, unseen_count=4)),
        ]),
        "pkc-000000", [],
    )  # fmt: skip

    (row,) = members["collectors"]
    assert row["age_seconds"] == 24 * 3600 - 9 * 60
    assert row["gap_seconds_max"] == row["age_seconds"]
    assert (row["heartbeats"], row["unseen_partitions_max"]) == (2, 4)
    reasons = {each["rule"]: each["reason"] for each in members["disabled"]}
    assert reasons["tier-coverage"] == "collector/auditor: no right"


def test_findings_of_the_day_and_actions_and_intents_are_listed() -> None:
    def finding(name: str, first_ms: int, last_ms: int) -> FindingRecord:
        return FindingRecord(
            name, "tier-lag", Severity.WARNING, "c", SHOP, "<late>", 1, 2, "a",
            BEGIN_MS + first_ms, BEGIN_MS + last_ms, topic_name=f"{TENANT}_orders",
        )  # fmt: skip

    fold = folded([
        (10, "named/orders/0", Deleted(5, "User:shop")),
        (20, "named/orders", Intent("config", "link west")),
        (30, "named/orders", Intent("config", "link west")),
        (40, "named/orders/0", Intent("heal-demote", "audit")),
        (40, SHOP, Intent("config", "link west")),  # the same, as the auditor resolves it
    ])  # fmt: skip
    findings = [
        finding("1", 5, 6), finding("2", -9, -8), finding("3", -9, 8), finding("4", DAY_MS, DAY_MS),
    ]  # fmt: skip

    members = report(fold, "pkc-000000", findings)

    assert [each["id"] for each in members["findings"]] == ["3", "1"]
    assert members["open_before"] == 1
    assert members["intents"] == [
        {"actor": "User:shop", "action": "log-start", "count": 1},
        {"actor": "link west", "action": "config", "count": 2},
    ]
    assert [(each["action"], each["subject"]) for each in members["actions"]] == [("demote", "orders/0")]
    written = page(members)
    assert "&lt;late&gt;" in written
    assert "<late>" not in written
    assert "demote" in written
    assert TENANT in written


def test_an_empty_day_has_a_page() -> None:
    written = page(report(DayFold(DAY), "pkc-000000", []))
    assert "the audit did not run" in written
    assert "no findings" in written
