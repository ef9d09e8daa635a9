"""Positions, acknowledged records, sizes, epochs, the ISR and topic ids."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.audit.live import is_suspected
from penstock.model.durability import Acked, Broker, Intent, Segment, Topic
from tests.audit.history import HOUR_MS, History, event, findings_of, fold


def rules_of(history: History) -> list[str]:
    return [each.rule for each in fold(history.events)[1]]


@pytest.mark.parametrize(
    "positions",
    [
        {"start": 10, "end": 5},
        {"start": 10, "end": 50, "local_start": 5},
        {"start": 0, "end": 50, "local_start": 60},
        {"start": 0, "end": 50, "stable": 40, "high_watermark": 30},
        {"start": 0, "end": 50, "high_watermark": 60},
        {"start": 0, "end": 50, "tiered": 50},
    ],
)
def test_positions_out_of_order_are_reported(positions: dict[str, Any]) -> None:
    history = History().sweep(brokers=[1], **positions).sweep(brokers=[1], **positions)

    assert "offsets-ordered" in rules_of(history)


def test_positions_out_of_order_for_one_sweep_are_not_reported() -> None:
    history = History().sweep(start=10, end=5).sweep(start=10, end=50)

    assert rules_of(history) == []


def test_unknown_positions_are_not_compared() -> None:
    history = History().sweep(start=10, end=50).sweep(start=10, end=50)

    assert rules_of(history) == []


def test_acknowledged_offsets_beyond_the_leader_s_end_are_reported() -> None:
    history = History().sweep(start=0, end=100).add(Acked(0, 149, 150))
    history.sweep(start=0, end=120).sweep(start=0, end=120).sweep(start=0, end=130)

    assert findings_of(history) == [("acked-unreadable", 120, 149)]


def test_acknowledged_offsets_of_a_busy_partition_are_judged_too() -> None:
    """Several gateways report ranges more often than a range needs to settle."""
    history = History().sweep(start=0, end=100)
    for number in range(5):
        history.add(Acked(100 * number, 100 * number + 99, 100), after_ms=3_000)
    for number in range(4):  # 380 offsets are gone, and 10 of them are written again
        history.add(Acked(120 + 10 * number, 129 + 10 * number, 10), after_ms=1_500)
        history.sweep(start=0, end=130 + 10 * number, after_ms=1_500)

    (finding,) = findings_of(history)

    assert (finding[0], finding[2]) == ("acked-unreadable", 499)


def test_a_busy_partition_without_a_loss_is_not_reported() -> None:
    history = History()
    for number in range(30):
        history.add(Acked(100 * number, 100 * number + 99, 100), after_ms=2_000)
        history.sweep(start=0, end=100 * number + 100, after_ms=500)

    assert findings_of(history) == []


def test_a_suspicion_about_a_broker_that_leaves_the_isr_is_dropped() -> None:
    """It would be swept every second for ever."""
    history = History().sweep(brokers=[3], start=10, end=5, end_epoch=9).sweep(brokers=[1], start=0, end=5)
    assert is_suspected(fold(history.events)[0])

    history.place(isr=(1, 2)).sweep(brokers=[1], start=0, end=5)

    assert not is_suspected(fold(history.events)[0])


def test_a_sweep_that_began_before_the_acknowledgement_shows_nothing() -> None:
    history = History().sweep(start=0, end=100).add(Acked(0, 149, 150))
    history.sweep(start=0, end=120, after_ms=1000).sweep(start=0, end=150)

    assert findings_of(history) == []


def test_acknowledged_offsets_that_a_restore_removed_are_not_reported() -> None:
    history = History().sweep(start=0, end=100).add(Acked(0, 149, 150))
    history.add(Intent("restore", "User:admin", history.now_ms + HOUR_MS))
    history.sweep(start=0, end=120).sweep(start=0, end=120)
    history.sweep(start=0, end=120, after_ms=2 * HOUR_MS).sweep(start=0, end=120)

    assert findings_of(history) == []


def test_acknowledged_offsets_that_expired_are_not_reported() -> None:
    history = History().add(Acked(0, 149, 150)).sweep(start=0, end=150).sweep(start=150, end=150)

    assert findings_of(history) == []


def test_a_log_that_stays_larger_than_retention_allows_is_reported() -> None:
    history = History().configure(retention_bytes=1000, segment_bytes=100)
    history.add(Intent("config", "User:shop"))
    for _ in range(8):
        history.sweep(brokers=[1], start=0, end=50, size=2000, after_ms=HOUR_MS // 4)

    assert rules_of(history) == ["retention-exceeded"]


def test_a_log_that_is_too_large_until_the_next_check_is_not_reported() -> None:
    history = History().configure(retention_bytes=1000, segment_bytes=100)
    history.add(Intent("config", "User:shop"))
    history.sweep(brokers=[1], start=0, end=50, size=2000, after_ms=HOUR_MS)
    history.sweep(brokers=[1], start=0, end=60, size=1100, after_ms=HOUR_MS // 12)

    assert rules_of(history) == []


def test_a_remote_segment_that_is_kept_too_long_is_reported() -> None:
    history = History().configure(tiered=True, retention_ms=HOUR_MS)
    history.add(Intent("config", "User:shop"))
    history.add(Segment("s1", 0, 0, 49, history.now_ms)).add(Segment("s1", 1))
    for _ in range(4):
        history.sweep(brokers=[1], start=0, end=50, local_start=0, tiered=49, after_ms=HOUR_MS)

    assert findings_of(history) == [("retention-exceeded", 0, 49)]


def test_an_epoch_with_two_leaders_is_reported() -> None:
    history = History()
    history.place(leader=2)
    history.place(leader=3, leader_epoch=history.placement.leader_epoch)

    assert rules_of(history) == ["epochs-agree"]


def test_an_epoch_that_falls_is_reported() -> None:
    assert rules_of(History().place(leader=2).place(leader=1, leader_epoch=0)) == ["epochs-agree"]


def test_a_replica_with_a_later_epoch_than_its_partition_is_reported() -> None:
    history = History().sweep(brokers=[1], start=0, end=5, end_epoch=3)
    history.sweep(brokers=[1], start=0, end=5, end_epoch=3)

    assert rules_of(history) == ["epochs-agree"]


def test_a_replica_that_learned_an_epoch_before_the_auditor_is_not_reported() -> None:
    history = History().sweep(brokers=[2], start=0, end=5, end_epoch=1).place(leader=2)
    history.sweep(brokers=[2], start=0, end=5, end_epoch=1)

    assert rules_of(history) == []


@pytest.mark.parametrize(
    "changes", [{"isr": (1, 4)}, {"elr": (2,)}, {"isr": (2, 3)}, {"partition_epoch": 7}, {"elr": (9,)}]
)
def test_illegal_isr_changes_are_reported(changes: dict[str, Any]) -> None:
    assert set(rules_of(History().place(**changes))) == {"isr-legal"}


def test_shrinking_growing_and_moving_leadership_is_legal() -> None:
    history = History().place(isr=(2, 3), leader=2).place(isr=(2,), elr=(3,)).place(isr=(3, 2, 1), elr=())
    history.place(leader=1).place(isr=(2, 3), leader=-1).place(leader=2)

    assert rules_of(history) == []


def test_changes_that_only_a_snapshot_shows_are_not_counted() -> None:
    assert rules_of(History().place(partition_epoch=90, snapshot=True)) == []


def test_an_unclean_election_is_reported() -> None:
    history = History().place(isr=(1,)).place(leader=3, isr=(3,), recovering=True)

    assert rules_of(history) == ["possible-loss-window"]


def test_an_election_from_the_elr_or_an_intended_unclean_one_is_legal() -> None:
    history = History().place(isr=(1,), elr=(3,)).place(leader=3, isr=(3,), elr=())
    history.add(Intent("unclean-election", "User:admin")).place(leader=2, isr=(2,), recovering=True)

    assert rules_of(history) == []


def test_replicas_of_one_log_with_different_sizes_are_reported() -> None:
    """As after a batch in the middle of a follower's log was removed."""
    history = History()
    for _ in range(3):
        history.sweep(brokers=[1, 2], start=0, end=50, size=5000)
        history.sweep(brokers=[3], start=0, end=50, size=4900, after_ms=0)

    assert rules_of(history) == ["replicas-disagree"]


def test_sizes_of_a_log_that_grows_or_was_compacted_are_not_compared() -> None:
    growing, compacted = History(), History().configure(cleanup="compact")
    compacted.add(Intent("config", "User:shop"))
    for number in range(4):
        growing.sweep(brokers=[1], start=0, end=50 + number, size=5000 + number)
        growing.sweep(brokers=[3], start=0, end=50 + number, size=4000 + number, after_ms=0)
        compacted.sweep(brokers=[1], start=0, end=50, size=5000)
        compacted.sweep(brokers=[3], start=0, end=50, size=4000, after_ms=0)

    assert rules_of(growing) == rules_of(compacted) == []


def test_an_offline_log_directory_is_reported() -> None:
    (finding,) = fold([event(0, 1, Broker(("/data/2",)), subject="broker/3")])[1]

    assert (finding.rule, finding.alert) == ("replicas-disagree", "replicas-disagree/broker/3")


def topic_events(*ids: str, intended: bool = False) -> list[str]:
    events = []
    for number, topic_id in enumerate(ids):
        if intended and not topic_id:
            events.append(
                event(number, 1000 * number, Intent("topic-delete", "a"), subject="topic/t", source="g")
            )
        # Created again long after the deletion.
        time_ms = 1000 * number + (HOUR_MS if number > 1 else 0)
        events.append(event(number, time_ms, Topic(topic_id), subject="topic/t"))
    return [each.rule for each in fold(events)[1]]


def test_a_topic_that_was_created_again_is_reported() -> None:
    assert topic_events("A", "", "B") == ["topic-id-changed"]


def test_a_topic_that_was_deleted_on_purpose_is_not_reported() -> None:
    assert topic_events("A", "", "B", intended=True) == []
    assert topic_events("A", "A") == []
