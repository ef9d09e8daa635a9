"""Remote segments, their objects, and what is deleted locally."""

from __future__ import annotations

from typing import Any

from penstock.audit.live import is_suspected
from penstock.audit.rules.tier import first_gap
from penstock.model.durability import Intent, Segment, Stored
from tests.audit.history import HOUR_MS, History, findings_of, fold

TIERED: dict[str, Any] = {"local_start": 1100, "tiered": 1199}


def tiered() -> History:
    history = History().configure(tiered=True)
    history.add(Intent("config", "User:shop"))
    for start in range(0, 1200, 300):
        history.add(Segment(f"s{start}", 0, start, start + 299, history.now_ms, 3_000_000))
        history.add(Segment(f"s{start}", 1))
    return history.sweep(start=0, end=1300, size=1_000_000, **TIERED)


def delete(history: History, *starts: int) -> History:
    for start in starts:
        history.add(Segment(f"s{start}", 2)).add(Segment(f"s{start}", 3))
    return history


def test_remote_segments_deleted_below_the_log_start_are_legal() -> None:
    history = tiered()
    delete(history, 0).sweep(start=300, end=1300, **TIERED).sweep(start=300, end=1300, **TIERED)

    assert findings_of(history) == []


def test_delete_states_that_another_program_wrote_are_reported_once() -> None:
    """Kora, table 1: tier metadata diverges. A later election also raises the log start."""
    history = tiered()
    delete(history, 0, 300).sweep(start=0, end=1300, **TIERED).sweep(start=0, end=1300, **TIERED)
    history.place(leader=2).sweep(start=600, end=1300, **TIERED).sweep(start=600, end=1300, **TIERED)

    assert findings_of(history) == [("tier-coverage", 0, 599)]


def test_a_deletion_makes_sweeps_report_the_partition_again_until_its_leader_was_observed() -> None:
    history = delete(tiered(), 0)
    deleted, _ = fold(history.events)
    history.sweep(start=300, end=1300, **TIERED)
    explained, _ = fold(history.events)

    assert is_suspected(deleted)
    assert not is_suspected(explained)


def test_a_gap_that_is_explained_by_the_next_sweep_is_dropped() -> None:
    history = tiered()
    delete(history, 0).sweep(start=0, end=1300, **TIERED).sweep(start=300, end=1300, **TIERED)

    state, findings = fold(history.events)

    assert findings == []
    assert state.dropped == 1


def test_gaps_between_ranges() -> None:
    assert first_gap([(0, 9), (10, 19)], 0, 19) is None
    assert first_gap([(0, 9), (5, 30)], 3, 19) is None
    assert first_gap([(5, 9)], 0, 19) == (0, 4)
    assert first_gap([(0, 9)], 0, 19) == (10, 19)
    assert first_gap([], 5, 4) is None


def test_a_missing_object_of_a_finished_segment_is_reported() -> None:
    history = tiered().add(Stored("s300", ("log",)))

    assert findings_of(history) == [("tier-object-wrong", 300, 599)]


def test_an_object_of_a_segment_that_is_being_deleted_may_be_missing() -> None:
    history = tiered().add(Segment("s300", 2)).add(Stored("s300", ("log",))).add(Stored("s600"))

    assert findings_of(history) == []


def test_local_records_deleted_before_they_were_tiered_are_reported() -> None:
    history = tiered()
    for _ in range(2):
        history.sweep(start=0, end=1300, local_start=1250, tiered=1199)

    assert findings_of(history) == [("local-deleted-before-tiered", 1200, 1249)]


def test_local_records_may_be_deleted_if_copying_is_disabled() -> None:
    history = tiered().configure(copy_disabled=True)
    for _ in range(2):
        history.sweep(start=1250, end=1300, local_start=1250, tiered=1199)

    assert "local-deleted-before-tiered" not in {rule for rule, _, _ in findings_of(history)}


def test_a_segment_that_stays_between_states_is_reported_once() -> None:
    history = tiered().add(Segment("s1200", 0, 1200, 1249))
    for _ in range(3):
        history.sweep(brokers=[1], start=0, end=1300, after_ms=HOUR_MS, **TIERED)

    assert findings_of(history) == [("segment-stuck", 1200, 1249)]


def test_a_segment_that_returns_from_deletion_is_reported() -> None:
    history = tiered().add(Segment("s0", 2)).add(Segment("s0", 1))

    assert [rule for rule, _, _ in findings_of(history)] == ["segment-stuck"]


def test_closed_segments_that_are_not_copied_are_reported() -> None:
    history = tiered()
    history.configure(segment_bytes=1_000_000)
    for number in range(5):
        size = 1_000_000 * (number + 1)
        history.sweep(
            brokers=[1], start=0, end=1300 + number, pending=1200, size=size, after_ms=HOUR_MS // 2, **TIERED
        )

    assert [rule for rule, _, _ in findings_of(history)] == ["tier-lag"]


def test_a_first_offset_that_is_not_tiered_is_no_suspicion() -> None:
    history = tiered().sweep(brokers=[1], start=0, end=900, local_start=0, pending=1, size=10)

    assert not is_suspected(fold(history.events)[0])


def test_the_active_segment_of_an_idle_partition_is_no_lag() -> None:
    history = tiered()
    for _ in range(5):
        history.sweep(brokers=[1], start=0, end=1300, pending=1200, size=1000, after_ms=HOUR_MS, **TIERED)

    assert findings_of(history) == []
