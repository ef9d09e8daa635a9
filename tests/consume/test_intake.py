"""Back pressure: shares, patience before pausing, resuming at a quarter."""

from __future__ import annotations

from penstock.consume.assignment import Assignment
from penstock.consume.intake import BY_BYTES, BY_RECORDS, PATIENCE_SECONDS, Bounds, steer

SHARE = Bounds(1_000, 10_000)


def with_records(count: int, size: int = 1) -> Assignment:
    made = Assignment("t", 0, 1)
    return holding(made, count, size)


def holding(partition: Assignment, count: int, size: int = 1) -> Assignment:
    partition.unfinished = dict.fromkeys(range(count))  # type: ignore[assignment]  # only how many matters
    partition.bytes_unfinished = count * size
    return partition


def test_shares_never_add_up_to_more_than_the_whole() -> None:
    assert Bounds(1_000, 5_000).share(4) == Bounds(250, 1_250)


def test_a_partition_alone_is_held_by_the_whole_only() -> None:
    assert steer([with_records(999)], Bounds(1_000, 5_000).share(1), 0.0).pause == []


def test_a_crowded_partition_is_waited_for_before_it_is_paused() -> None:
    partition = with_records(500)
    first = steer([partition], SHARE, 7.0)
    assert (first.wait, first.pause, partition.paused) == (True, [], None)
    later = steer([partition], SHARE, 7.01 + PATIENCE_SECONDS)
    assert (later.wait, later.pause, partition.paused) == (False, [partition], BY_RECORDS)


def test_one_that_empties_in_time_is_never_paused() -> None:
    partition = with_records(500)
    steer([partition], SHARE, 7.0)
    steer([holding(partition, 10)], SHARE, 7.01)
    again = steer([holding(partition, 500)], SHARE, 7.01 + PATIENCE_SECONDS)
    assert (again.wait, again.pause) == (True, [])


def test_a_paused_partition_is_resumed_at_a_quarter_of_its_share() -> None:
    partition = with_records(500)
    partition.paused = BY_RECORDS
    assert steer([holding(partition, 251)], SHARE, 8.0).resume == []
    assert steer([holding(partition, 249)], SHARE, 9.0).resume == [partition]
    assert partition.paused is None


def test_records_still_in_the_mail_count() -> None:
    partition = with_records(0)
    partition.handed, partition.received = 600, 100
    assert steer([partition], SHARE, 0.0).wait


def test_bytes_count_too() -> None:
    partition = with_records(10, size=1_000)
    steer([partition], SHARE, 0.0)
    steer([partition], SHARE, 1.0)
    assert partition.paused == BY_BYTES
