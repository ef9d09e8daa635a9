"""What healing does about a leader whose log has lost its beginning, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.audit.healing import ACTIONS_MAX, HOUR_MS, Suspect, accused, decide, to_restore
from penstock.model.durability import FindingRecord, FindingState, Severity

NOW_MS = 1_800_000_000_000
FINDING = FindingRecord(
    "3f9a000000000000", "log-start-unexplained", Severity.CRITICAL, "c", "partition/AAAAAAAAAAAAAAAAAAAAAQ/0",
    "offsets 0 to 99 are gone", 0, 99, "a", 1, 1, evidence={"broker": 1}, topic_name="orders",
)  # fmt: skip
# Broker 1 leads and starts at 100; the others have everything.
CORRUPT = Suspect(FINDING, 1, 1, (1, 2, 3), (1, 2, 3), 2, {1: 100, 2: 0, 3: 0})


def reason(suspect: Suspect, **more: Any) -> str:
    """Why nothing is done; raises if something is."""
    values: dict[str, Any] = {"demoted": (), "acted_ms": (), "now_ms": NOW_MS}
    verdict = decide([suspect], **(values | more))
    assert verdict.demotion is None
    return verdict.withheld[suspect.finding.id]


def test_a_leader_without_the_beginning_is_demoted_while_two_others_have_it() -> None:
    verdict = decide([CORRUPT], (), (), NOW_MS)

    assert verdict.demotion is not None
    assert (verdict.demotion.broker, verdict.withheld) == (1, {})
    assert verdict.demotion.reason == "audit: 3f9a000000000000"
    assert verdict.demotion.commands == ('penstock broker demote 1 --reason "audit finding 3f9a0000"',)


def test_a_broker_that_would_lead_next_is_demoted_too() -> None:
    verdict = decide([replace(CORRUPT, leader=2)], (), (), NOW_MS)
    assert verdict.demotion is not None


def test_all_partitions_of_a_broker_are_one_action() -> None:
    other = replace(CORRUPT, finding=replace(FINDING, id="4" * 16))
    verdict = decide([other, CORRUPT], (), (), NOW_MS)
    assert verdict.demotion is not None
    assert [each.id for each in verdict.demotion.findings] == [FINDING.id, "4" * 16]


@pytest.mark.parametrize(
    "harmless",
    [
        replace(CORRUPT, leader=2, replicas=(2, 1, 3)),  # it neither leads nor is preferred
        replace(CORRUPT, starts={1: 0, 2: 0, 3: 0}),  # it has fetched everything again
        replace(CORRUPT, isr=(2, 3), leader=2),  # it cannot be elected
    ],
)
def test_a_replica_that_is_no_danger_is_left_alone(harmless: Suspect) -> None:
    verdict = decide([harmless], (), (), NOW_MS)
    assert (verdict.demotion, verdict.withheld) == (None, {})


def test_followers_that_were_dragged_along_save_nothing() -> None:
    dragged = replace(CORRUPT, starts={1: 100, 2: 100, 3: 0})
    assert reason(dragged) == "brokers 1, 2 all lack offset 0"


def test_one_against_one_is_no_majority() -> None:
    pair = replace(CORRUPT, replicas=(1, 2), isr=(1, 2), min_isr=1, starts={1: 100, 2: 0})
    assert reason(pair) == "1 in-sync replicas have offset 0, 2 are needed"


def test_no_partition_falls_below_its_minimum_of_in_sync_replicas() -> None:
    assert reason(replace(CORRUPT, min_isr=3)) == "2 in-sync replicas have offset 0, 3 are needed"


def test_a_replica_that_does_not_report_proves_nothing() -> None:
    assert reason(replace(CORRUPT, starts={1: 100, 2: 0})) == "broker 3 does not report where its log starts"
    assert reason(replace(CORRUPT, starts={2: 0, 3: 0})) == "broker 1 does not report where its log starts"


def test_a_partition_that_is_moved_restored_or_mirrored_is_left_to_that() -> None:
    assert reason(replace(CORRUPT, busy="restore works on orders-0")) == "restore works on orders-0"


def test_one_broker_of_a_cluster_is_demoted_at_a_time() -> None:
    second = replace(
        CORRUPT, finding=replace(FINDING, id="4" * 16), broker=2, leader=2, starts={1: 0, 2: 9, 3: 0}
    )

    both = decide([CORRUPT, second], (), (), NOW_MS)

    assert both.demotion is None
    assert set(both.withheld.values()) == {"brokers 1, 2 are accused at once"}
    assert reason(second, demoted=(1,)) == "broker 1 is demoted already"


def test_healing_acts_at_most_so_often_within_an_hour() -> None:
    recent = [NOW_MS - HOUR_MS + 1] * ACTIONS_MAX

    assert reason(CORRUPT, acted_ms=recent) == "healing has acted 10 times within an hour"
    assert decide([CORRUPT], (), recent[1:], NOW_MS).demotion is not None
    assert decide([CORRUPT], (), [NOW_MS - HOUR_MS] * ACTIONS_MAX, NOW_MS).demotion is not None


def test_a_broker_that_is_demoted_is_not_demoted_again() -> None:
    verdict = decide([CORRUPT], (1,), (), NOW_MS)
    assert (verdict.demotion, verdict.withheld) == (None, {})


def test_only_an_open_finding_about_a_log_start_accuses_a_broker() -> None:
    assert accused(FINDING) == 1
    assert accused(replace(FINDING, state=FindingState.ACKNOWLEDGED)) is None
    assert accused(replace(FINDING, rule="tier-lag")) is None
    assert accused(replace(FINDING, evidence={})) is None


def test_a_broker_is_restored_once_no_open_finding_accuses_it() -> None:
    resolved = replace(FINDING, state=FindingState.RESOLVED)
    of_two = replace(resolved, id="4" * 16, evidence={"broker": 2})
    assert to_restore([FINDING, of_two], (1, 2)) == [2]
    assert to_restore([FINDING, resolved], (1,)) == []
    assert to_restore([resolved, of_two], (1, 2)) == [1, 2]


def test_a_broker_stays_demoted_while_its_finding_cannot_be_seen() -> None:
    """It would lead again, and make the others delete what it lacks."""
    assert to_restore([], (1,)) == []
    assert to_restore([], (1,), off=True) == [1]
    assert to_restore([FINDING], (1,), off=True) == []
