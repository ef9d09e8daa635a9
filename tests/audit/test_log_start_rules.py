"""Rises and falls of the log start: what is a loss, and what only looks like one."""

from __future__ import annotations

import pytest

from penstock.audit.rules.log_start import weakened
from penstock.model.durability import Deleted, Intent, Policy, Removed, Segment, Severity
from tests.audit.history import DAY_MS, HOUR_MS, History, findings_of, fold

UNEXPLAINED = ("log-start-unexplained", 0, 299)


def filled(**policy: object) -> History:
    """1,200 records, the first of which retention must keep."""
    history = History()
    if policy:
        history.events.clear()
        history.policy = Policy(**policy)  # type: ignore[arg-type]  # keywords of a test
        history.__post_init__()
    return history.sweep(start=0, end=1200, size=12_000_000, kept_offset=0)


# --- incidents ------------------------------------------------------------------------------------


def test_a_leader_that_lost_its_prefix_is_reported_with_its_offsets() -> None:
    history = filled()
    history.sweep(brokers=[1], start=300, end=1200, size=9_000_000)

    assert findings_of(history) == [UNEXPLAINED]


def test_a_restarted_follower_that_lost_its_prefix_is_reported_before_it_leads() -> None:
    history = filled()
    history.place(isr=(1, 2)).place(isr=(1, 2, 3), after_ms=HOUR_MS)
    history.sweep(brokers=[1, 2], start=0, end=1200, kept_offset=0)
    history.sweep(brokers=[3], start=300, end=1200, after_ms=0)

    (finding,) = fold(history.events)[1]

    assert (finding.rule, finding.first, finding.last) == UNEXPLAINED
    assert finding.evidence["broker"] == 3
    assert finding.evidence["leads"] is False
    assert finding.evidence["keeping"] == [1, 2]


def test_followers_that_a_trimmed_leader_drags_along_are_the_same_finding() -> None:
    history = filled()
    history.sweep(brokers=[1], start=300, end=1200)
    history.sweep(start=300, end=1300, after_ms=60_000)

    assert findings_of(history) == [UNEXPLAINED]


def test_size_retention_that_leaves_too_few_bytes_is_reported() -> None:
    """As KAFKA-20732, which counts local bytes twice."""
    history = filled(retention_bytes=16 << 20)
    history.sweep(start=600, end=1200, size=6_000_000)

    assert findings_of(history) == [("log-start-unexplained", 0, 599)]


def test_a_retention_cut_and_reverted_within_a_second_is_reported_with_what_it_deleted() -> None:
    history = filled(retention_ms=-1)
    history.configure(retention_bytes=3 << 20, after_ms=3000)
    history.configure(retention_bytes=-1, after_ms=900)
    history.sweep(start=900, end=1200, size=3_200_000)

    findings = fold(history.events)[1]

    assert {each.rule for each in findings} == {"config-drift"}
    assert len({each.id for each in findings}) == 1
    assert [(each.severity, each.first, each.last) for each in findings][-1] == (Severity.CRITICAL, 0, 899)


def test_a_log_start_raised_by_a_false_leader_is_reported() -> None:
    history = filled()
    history.sweep(start=1000, end=1200, size=12_000_000)

    assert findings_of(history) == [("log-start-unexplained", 0, 999)]


def test_a_deletion_without_any_retention_is_reported() -> None:
    history = filled(cleanup="compact")
    history.sweep(start=300, end=1200)

    assert findings_of(history) == [UNEXPLAINED]


# --- legal ----------------------------------------------------------------------------------------


def test_records_older_than_retention_expire_legally() -> None:
    history = filled()
    history.sweep(start=0, end=1200, kept_offset=400, after_ms=7 * DAY_MS)
    history.sweep(start=400, end=1200, kept_offset=400)

    assert findings_of(history) == []


def test_records_with_old_timestamps_expire_at_once() -> None:
    """They were appended after the last sweep, so that no record is known that retention had to keep."""
    history = History().sweep(start=0, end=0)
    history.sweep(start=1200, end=1200, size=0)

    assert findings_of(history) == []


def test_retention_raised_after_a_deletion_does_not_make_it_illegal() -> None:
    history = History().sweep(start=0, end=1200, kept_offset=500)
    history.sweep(start=500, end=1200)
    history.configure(retention_ms=30 * DAY_MS)
    history.sweep(start=500, end=1200, kept_offset=500)

    assert findings_of(history) == []


def test_retention_raised_just_before_the_deletion_was_seen_is_judged_by_the_loosest() -> None:
    history = History().sweep(start=0, end=1200, kept_offset=500)
    history.configure(retention_ms=30 * DAY_MS)
    history.sweep(start=500, end=1200)

    assert findings_of(history) == []


@pytest.mark.parametrize("late_ms", [-2000, 2000])
def test_delete_records_explains_a_rise_even_if_its_clock_is_ahead(late_ms: int) -> None:
    history = filled()
    history.sweep(start=300, end=1200)
    history.now_ms += late_ms
    history.add(Deleted(300, "User:shop"), source="gateway-1")

    assert findings_of(history) == []


def test_only_what_delete_records_does_not_explain_is_reported() -> None:
    history = filled()
    history.add(Deleted(100, "User:shop"))
    history.sweep(start=300, end=1200)

    assert findings_of(history) == [("log-start-unexplained", 100, 299)]


def test_size_retention_that_leaves_enough_bytes_is_legal() -> None:
    history = filled(retention_bytes=8 << 20)
    history.sweep(start=300, end=1200, size=9_000_000)

    assert findings_of(history) == []


def test_remote_segments_count_for_size_retention() -> None:
    history = filled(retention_bytes=16 << 20, tiered=True)
    for number in range(2):
        start = 600 + 300 * number
        history.add(Segment(f"s{number}", 0, start, start + 299, bytes=8_000_000))
        history.add(Segment(f"s{number}", 1))
    history.sweep(start=600, end=1300, local_start=1200, tiered=1199, size=1_000_000)

    assert findings_of(history) == []


def test_compaction_may_remove_the_record_that_retention_had_to_keep() -> None:
    history = filled(cleanup="compact,delete", retention_ms=7 * DAY_MS)
    history.sweep(start=300, end=1200)

    assert findings_of(history) == []


def test_a_retention_cut_with_a_recorded_intent_is_legal() -> None:
    history = filled()
    history.add(Intent("config", "User:shop"), source="gateway-1")
    history.configure(retention_ms=1000)
    history.sweep(start=1200, end=1200, size=0)

    assert findings_of(history) == []


def test_a_restore_may_lower_and_raise_the_log_start() -> None:
    history = filled()
    history.add(Intent("restore", "User:admin", history.now_ms + HOUR_MS))
    history.sweep(start=600, end=1200).sweep(start=0, end=1200).sweep(start=0, end=1200)

    assert findings_of(history) == []


def test_a_mirror_follows_the_log_start_of_its_source() -> None:
    history = filled()
    history.add(Intent("link", "link:west", history.now_ms + HOUR_MS))
    history.sweep(start=600, end=1200)

    assert findings_of(history) == []


def test_a_replica_outside_the_isr_is_not_judged_while_it_is_rebuilt() -> None:
    history = filled().add(Deleted(500, "User:shop")).sweep(start=500, end=1200)
    history.place(isr=(1, 2))
    history.sweep(brokers=[3], start=0, end=0).sweep(brokers=[3], start=500, end=600)
    history.place(isr=(1, 2, 3))
    history.sweep(start=500, end=1200).sweep(start=500, end=1200)

    assert findings_of(history) == []


def test_a_replica_that_was_dropped_and_fetched_again_may_start_earlier() -> None:
    """The way a trimmed replica is healed."""
    history = filled()
    history.sweep(brokers=[3], start=300, end=1200)
    history.place(isr=(1, 2)).place(isr=(1, 2, 3))
    history.sweep(start=0, end=1200).sweep(start=0, end=1200)

    assert findings_of(history) == [UNEXPLAINED]


def test_kafka_itself_prunes_the_state_of_share_groups() -> None:
    history = filled(retention_ms=-1)
    history.place(topic="__share_group_state")
    history.sweep(start=900, end=1200, size=3_000_000)

    assert findings_of(history) == []


def test_the_only_replica_may_recover_from_an_older_checkpoint_after_a_crash() -> None:
    """DeleteRecords, and `kill -9` before the checkpoint of log starts was written."""
    history = History().place(replicas=(1,), isr=(1,)).sweep(brokers=[1], start=0, end=50)
    history.add(Deleted(30, "User:shop")).sweep(brokers=[1], start=30, end=50)
    history.place(leader=-1).place(leader=1)
    history.sweep(brokers=[1], start=0, end=50).sweep(brokers=[1], start=0, end=50)

    assert findings_of(history) == []


def test_a_deleted_topic_has_nothing_to_keep() -> None:
    history = filled()
    history.sweep(start=300, end=1200)
    history.add(Removed())

    assert findings_of(history) == []


def test_an_outdated_sample_shows_nothing() -> None:
    history = filled()
    history.sweep(start=300, end=1200, after_ms=HOUR_MS)

    assert findings_of(history) == []


# --- falls ----------------------------------------------------------------------------------------


def test_a_log_start_that_falls_and_stays_low_is_reported() -> None:
    history = History().sweep(start=500, end=1200)
    history.sweep(brokers=[2], start=200, end=1200).sweep(brokers=[2], start=200, end=1200)

    assert findings_of(history) == [("log-start-falls", 200, 499)]


def test_a_log_start_that_is_back_at_the_next_sweep_is_dropped_and_counted() -> None:
    history = History().sweep(start=500, end=1200)
    history.sweep(brokers=[2], start=200, end=1200).add(Deleted(500, "a"))
    history.sweep(brokers=[2], start=500, end=1200)

    state, findings = fold(history.events)

    assert findings == []
    assert state.dropped == 1


# --- configurations -------------------------------------------------------------------------------


def test_a_weaker_configuration_without_an_intent_is_reported_even_if_nothing_was_deleted() -> None:
    history = History().configure(retention_ms=HOUR_MS, min_isr=1)

    (finding,) = fold(history.events)[1]

    assert finding.rule == "config-drift"
    assert finding.severity is Severity.WARNING
    assert "min.insync.replicas 2 to 1" in finding.detail


def test_a_stronger_configuration_is_not_reported() -> None:
    assert findings_of(History().configure(retention_ms=-1, min_isr=3)) == []


def test_every_setting_that_protects_records_is_compared() -> None:
    before = Policy(retention_ms=-1, min_isr=2)
    after = Policy(retention_ms=1, retention_bytes=5, min_isr=1, unclean=True, cleanup="compact")

    assert len(weakened(before, after)) == 5
    assert weakened(after, before) == ["cleanup.policy compact to delete"]
