"""Which record runs next: lanes, turns, retries, and lanes that outlive their partition."""

from __future__ import annotations

from penstock.consume.assignment import Assignment
from penstock.consume.record import Record
from penstock.consume.schedule import Coordinator, NullKeys, Order, lane_of
from tests.consume.machine import FakeMessage


def records(assignment: Assignment, keys: str, start: int = 0) -> list[Record]:
    made = []
    for index, letter in enumerate(keys):
        key = letter.encode()
        made.append(Record(FakeMessage(key), assignment, start + index, key, key, 1))
    return made


def assigned(coordinator: Coordinator, partition: int = 0, epoch: int = 1) -> Assignment:
    assignment = Assignment("t", partition, epoch)
    coordinator.assign(assignment)
    return assignment


def taken(coordinator: Coordinator) -> list[Record]:
    found = []
    while record := coordinator.take():
        found.append(record)
    return found


def test_one_record_of_each_key_runs_at_a_time() -> None:
    coordinator = Coordinator(100)
    home = assigned(coordinator)
    coordinator.put(home, records(home, "aabbc"))
    assert [record.offset for record in taken(coordinator)] == [0, 2, 4]


def test_the_next_record_of_a_key_follows_when_the_first_is_released() -> None:
    coordinator = Coordinator(100)
    home = assigned(coordinator)
    coordinator.put(home, records(home, "aaa"))
    first = taken(coordinator)[0]
    coordinator.release(first)
    assert [record.offset for record in taken(coordinator)] == [1]


def test_partitions_take_turns_however_full_one_of_them_is() -> None:
    coordinator = Coordinator(100)
    full, thin = assigned(coordinator, 0), assigned(coordinator, 1)
    coordinator.put(full, records(full, "abcdefgh"))
    coordinator.put(thin, records(thin, "xy"))
    assert [record.partition for record in taken(coordinator)][:4] == [0, 1, 0, 1]


def test_nothing_starts_once_too_much_is_uncommitted() -> None:
    coordinator = Coordinator(2)
    home = assigned(coordinator)
    coordinator.put(home, records(home, "abc"))
    assert len(taken(coordinator)) == 2
    assert not coordinator.has_ready


def test_a_retry_keeps_its_lane_and_runs_before_its_followers() -> None:
    coordinator = Coordinator(100)
    home = assigned(coordinator)
    coordinator.put(home, records(home, "aa"))
    coordinator.retry_at(5.0, taken(coordinator)[0])
    coordinator.wake(4.9)
    assert taken(coordinator) == []
    coordinator.wake(5.0)
    assert [record.offset for record in taken(coordinator)] == [0]


def test_a_failed_batch_runs_again_in_its_old_order() -> None:
    coordinator = Coordinator(100)
    home = assigned(coordinator)
    coordinator.put(home, records(home, "aaaa"))
    coordinator.put_back(coordinator.take_batch(3))
    seen = []
    while record := coordinator.take():
        seen.append(record.offset)
        coordinator.release(record)
    assert seen == [0, 1, 2, 3]


def test_a_key_that_still_runs_for_a_gone_partition_waits_under_the_new_assignment() -> None:
    coordinator = Coordinator(100)
    old = assigned(coordinator)
    coordinator.put(old, records(old, "a"))
    running = taken(coordinator)[0]
    coordinator.bury(old)
    old.live = False
    new = assigned(coordinator, epoch=2)
    coordinator.put(new, records(new, "ab"))
    assert [record.key for record in taken(coordinator)] == [b"b"]
    coordinator.release(running)
    assert [record.key for record in taken(coordinator)] == [b"a"]


def test_a_lane_held_through_two_rebalances_is_released_by_the_record_that_holds_it() -> None:
    coordinator = Coordinator(100)
    first = assigned(coordinator)
    coordinator.put(first, records(first, "a"))
    running = taken(coordinator)[0]
    coordinator.bury(first)
    first.live = False
    second = assigned(coordinator, epoch=2)
    coordinator.put(second, records(second, "a"))
    coordinator.bury(second)
    second.live = False
    third = assigned(coordinator, epoch=3)
    coordinator.put(third, records(third, "a"))
    coordinator.release(running)
    assert [record.assignment for record in taken(coordinator)] == [third]
    assert not coordinator._ghosts


def test_lanes_by_order() -> None:
    assert lane_of(b"k", Order.KEY, NullKeys.UNORDERED) == b"k"
    assert lane_of(None, Order.KEY, NullKeys.UNORDERED) is None
    assert lane_of(None, Order.KEY, NullKeys.TOGETHER) == lane_of(b"k", Order.PARTITION, NullKeys.TOGETHER)
    assert lane_of(b"k", Order.UNORDERED, NullKeys.TOGETHER) is None
