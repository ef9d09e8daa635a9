"""Back pressure: shares, the delay before a pause, resuming at a quarter."""

from __future__ import annotations

from penstock.consume.assignment import Assignment
from penstock.consume.back_pressure import BY_BYTES, BY_RECORDS, PAUSE_DELAY_SECONDS, Bounds, plan_fetch

SHARE = Bounds(1_000, 10_000)


def with_records(count: int, size: int = 1) -> Assignment:
    return holding(Assignment("t", 0, 1), count, size)


def holding(partition: Assignment, count: int, size: int = 1) -> Assignment:
    partition.unfinished = dict.fromkeys(range(count))  # type: ignore[assignment]  # only the count matters
    partition.bytes_unfinished = count * size
    return partition


def test_shares_never_add_up_to_more_than_the_whole() -> None:
    assert Bounds(1_000, 5_000).share(4) == Bounds(250, 1_250)


def test_a_single_partition_may_fill_the_whole_bound() -> None:
    assert plan_fetch([with_records(999)], Bounds(1_000, 5_000).share(1), 0.0).pause == []


def test_a_partition_over_its_share_is_paused_only_after_a_delay() -> None:
    partition = with_records(500)
    first = plan_fetch([partition], SHARE, 7.0)
    assert (first.wait, first.pause, partition.paused) == (True, [], None)
    later = plan_fetch([partition], SHARE, 7.01 + PAUSE_DELAY_SECONDS)
    assert (later.wait, later.pause, partition.paused) == (False, [partition], BY_RECORDS)


def test_a_partition_that_drains_in_time_is_never_paused() -> None:
    partition = with_records(500)
    plan_fetch([partition], SHARE, 7.0)
    plan_fetch([holding(partition, 10)], SHARE, 7.01)
    again = plan_fetch([holding(partition, 500)], SHARE, 7.01 + PAUSE_DELAY_SECONDS)
    assert (again.wait, again.pause) == (True, [])


def test_a_paused_partition_is_resumed_at_a_quarter_of_its_share() -> None:
    partition = with_records(500)
    partition.paused = BY_RECORDS
    assert plan_fetch([holding(partition, 251)], SHARE, 8.0).resume == []
    assert plan_fetch([holding(partition, 249)], SHARE, 9.0).resume == [partition]
    assert partition.paused is None


def test_records_on_their_way_to_the_orchestrator_count() -> None:
    partition = with_records(0)
    partition.polled, partition.received = 600, 100
    assert plan_fetch([partition], SHARE, 0.0).wait


def test_bytes_count_too() -> None:
    partition = with_records(10, size=1_000)
    plan_fetch([partition], SHARE, 0.0)
    plan_fetch([partition], SHARE, 1.0)
    assert partition.paused == BY_BYTES
