"""Which record runs next: queues by key, round robin, retries, and queues blocked across a rebalance."""

from __future__ import annotations

from penstock.consume.assignment import Assignment
from penstock.consume.record import Record
from penstock.consume.schedule import Coordinator, NullKeys, Order, queue_key_of
from penstock.consume.testing import MemoryMessage


def records(assignment: Assignment, keys: str, start: int = 0) -> list[Record]:
    created = []
    for offset, letter in enumerate(keys, start):
        key = letter.encode()
        message = MemoryMessage(("t", assignment.partition), offset, b"v", key)
        created.append(Record(message, assignment, offset, key, key, 1))
    return created


def assigned(coordinator: Coordinator, partition: int = 0, epoch: int = 1) -> Assignment:
    assignment = Assignment("t", partition, epoch)
    coordinator.assign(assignment)
    return assignment


def taken(coordinator: Coordinator) -> list[Record]:
    records = []
    while record := coordinator.take():
        records.append(record)
    return records


def test_one_record_of_each_key_runs_at_a_time() -> None:
    coordinator = Coordinator(100)
    assignment = assigned(coordinator)
    coordinator.put(assignment, records(assignment, "aabbc"))
    assert [record.offset for record in taken(coordinator)] == [0, 2, 4]


def test_the_next_record_of_a_key_follows_when_the_first_is_released() -> None:
    coordinator = Coordinator(100)
    assignment = assigned(coordinator)
    coordinator.put(assignment, records(assignment, "aaa"))
    first = taken(coordinator)[0]
    coordinator.release(first)
    assert [record.offset for record in taken(coordinator)] == [1]


def test_partitions_are_served_round_robin() -> None:
    coordinator = Coordinator(100)
    full, thin = assigned(coordinator, 0), assigned(coordinator, 1)
    coordinator.put(full, records(full, "abcdefgh"))
    coordinator.put(thin, records(thin, "xy"))
    assert [record.partition for record in taken(coordinator)][:4] == [0, 1, 0, 1]


def test_nothing_starts_while_too_many_records_are_uncommitted() -> None:
    coordinator = Coordinator(2)
    assignment = assigned(coordinator)
    coordinator.put(assignment, records(assignment, "abc"))
    assert len(taken(coordinator)) == 2
    assert not coordinator.has_ready


def test_a_retry_blocks_its_queue_and_runs_before_later_records() -> None:
    coordinator = Coordinator(100)
    assignment = assigned(coordinator)
    coordinator.put(assignment, records(assignment, "aa"))
    coordinator.retry_at(5.0, taken(coordinator)[0])
    coordinator.wake_retries(4.9)
    assert taken(coordinator) == []
    coordinator.wake_retries(5.0)
    assert [record.offset for record in taken(coordinator)] == [0]


def test_a_failed_batch_runs_again_in_its_old_order() -> None:
    coordinator = Coordinator(100)
    assignment = assigned(coordinator)
    coordinator.put(assignment, records(assignment, "aaaa"))
    coordinator.put_back(coordinator.take_batch(3))
    seen = []
    while record := coordinator.take():
        seen.append(record.offset)
        coordinator.release(record)
    assert seen == [0, 1, 2, 3]


def test_a_key_still_running_under_a_revoked_assignment_waits_under_the_new_one() -> None:
    coordinator = Coordinator(100)
    old = assigned(coordinator)
    coordinator.put(old, records(old, "a"))
    running = taken(coordinator)[0]
    coordinator.remove(old)
    old.live = False
    new = assigned(coordinator, epoch=2)
    coordinator.put(new, records(new, "ab"))
    assert [record.key for record in taken(coordinator)] == [b"b"]
    coordinator.release(running)
    assert [record.key for record in taken(coordinator)] == [b"a"]


def test_a_queue_blocked_through_two_rebalances_is_released_by_the_running_record() -> None:
    coordinator = Coordinator(100)
    first = assigned(coordinator)
    coordinator.put(first, records(first, "a"))
    running = taken(coordinator)[0]
    coordinator.remove(first)
    first.live = False
    second = assigned(coordinator, epoch=2)
    coordinator.put(second, records(second, "a"))
    coordinator.remove(second)
    second.live = False
    third = assigned(coordinator, epoch=3)
    coordinator.put(third, records(third, "a"))
    coordinator.release(running)
    assert [record.assignment for record in taken(coordinator)] == [third]
    assert not coordinator._revoked


def test_queue_key_by_order() -> None:
    assert queue_key_of(b"k", Order.KEY, NullKeys.UNORDERED) == b"k"
    assert queue_key_of(None, Order.KEY, NullKeys.UNORDERED) is None
    assert queue_key_of(None, Order.KEY, NullKeys.TOGETHER) == queue_key_of(
        b"k", Order.PARTITION, NullKeys.TOGETHER
    )
    assert queue_key_of(b"k", Order.UNORDERED, NullKeys.TOGETHER) is None
