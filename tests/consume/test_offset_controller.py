"""What to commit: the finished prefix, missing offsets, the previous owner's map, the map's size."""

from __future__ import annotations

from penstock.consume import offset_controller
from penstock.consume.assignment import Assignment
from penstock.consume.back_pressure import BY_MAP, Bounds, plan_fetch
from penstock.consume.core import Core
from penstock.consume.record import Record
from penstock.consume.testing import MemoryMessage
from penstock.model import offset_map


def core_of(assignment: Assignment) -> Core:
    core = Core(Bounds(1_000_000, 1 << 30), 1_000_000)
    core.assign(assignment)
    return core


def received(core: Core, assignment: Assignment, *numbers: int) -> dict[int, Record]:
    records = [
        Record(MemoryMessage(("t", 0), number, b"v"), assignment, number, None, None, 1) for number in numbers
    ]
    core.receive(assignment, records)
    return {record.offset: record for record in records}


def finish(core: Core, records: dict[int, Record], *numbers: int) -> None:
    while core.coordinator.take():
        pass
    for number in numbers:
        core.finish(records[number])


def test_finishing_34_commits_nothing_until_33_is_finished() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    records = received(core, assignment, 33, 34)
    finish(core, records, 34)
    assert offset_controller.commit_offset(assignment) == 33
    finish(core, records, 33)
    assert offset_controller.commit_offset(assignment) == 35


def test_offsets_without_records_delay_nothing() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    records = received(core, assignment, 5, 9, 100)
    finish(core, records, 5, 9, 100)
    assert offset_controller.commit_offset(assignment) == 101


def test_the_commit_moves_past_markers_to_the_end_of_the_partition() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    finish(core, received(core, assignment, 5), 5)
    core.advance(assignment, 9)
    assert offset_controller.commit_offset(assignment) == 9


def test_records_finished_by_the_previous_owner_stay_finished() -> None:
    text = offset_map.encode(33, 100, [33, 50])
    assignment = Assignment("t", 0, 1, 33, text)
    core = core_of(assignment)
    received(core, assignment, 33, 34, 35)
    commit = offset_controller.pending_commit(assignment)
    assert commit is None, "nothing is new: Kafka has this very map"
    received(core, assignment, *range(36, 100))
    assert set(assignment.unfinished) == {33, 50}
    core.advance(assignment, 100)
    commit = offset_controller.pending_commit(assignment)
    assert commit is None or offset_map.decode(commit.offset, commit.metadata) == offset_map.decode(33, text)


def test_the_map_merges_the_previous_owners_with_new_results() -> None:
    assignment = Assignment("t", 0, 1, 33, offset_map.encode(33, 100, [33, 50]))
    core = core_of(assignment)
    records = received(core, assignment, *range(33, 110))
    finish(core, records, 105, 33)
    commit = offset_controller.pending_commit(assignment)
    assert commit is not None
    decoded = offset_map.decode(commit.offset, commit.metadata)
    assert commit.offset == 50
    assert decoded is not None
    assert decoded.unfinished == frozenset({50, 100, 101, 102, 103, 104})


def test_a_stuck_record_pauses_fetching_before_the_map_overflows() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    stuck = received(core, assignment, 0)
    sparse = received(core, assignment, *range(100_000, 400_000, 100))  # every one far from the next
    assert assignment.waiting_for_map, "too many unfinished over too wide a span"
    plan_fetch([assignment], core.bounds, 0.0)
    assert assignment.paused == BY_MAP
    taken = []
    while (record := core.coordinator.take()) is not None:
        taken.append(record)
    for record in taken[2::2]:  # the worst pattern: every other one
        core.finish(record)
    commit = offset_controller.pending_commit(assignment)
    assert commit is not None
    assert len(commit.metadata) <= offset_map.METADATA_CHARS_MAX
    for record in (*taken[1::2], stuck[0]):
        core.finish(record)
    core.admit(0.0)
    assert len(assignment.waiting_for_map) < len(sparse)


def test_one_stuck_record_lets_hundreds_of_thousands_pass() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    received(core, assignment, 0)
    stuck = core.coordinator.take()
    for start in range(1, 300_000, 600):
        records = received(core, assignment, *range(start, start + 600))
        core.admit(0.0)
        assert not assignment.waiting_for_map
        finish(core, records, *records)
    assert stuck is not None
    assert offset_controller.commit_offset(assignment) == 0
    commit = offset_controller.pending_commit(assignment)
    assert commit is not None
    assert len(commit.metadata) < 60


def test_a_partition_read_from_an_earlier_offset_is_a_new_epoch() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    old = received(core, assignment, 98, 99)
    core.coordinator.take()
    new = received(core, assignment, 0, 1)
    assert not assignment.live
    assert new[0].assignment.live
    core.finish(old[98])
    assert core.counts.late == 1
    assert offset_controller.commit_offset(core.assignments["t", 0]) == 0


def test_a_batch_whose_offsets_fall_back_is_split() -> None:
    assignment = Assignment("t", 0, 1)
    core = core_of(assignment)
    records = received(core, assignment, 98, 99, 0, 1)
    assert records[0].assignment.live
    assert offset_controller.commit_offset(core.assignments["t", 0]) == 0
