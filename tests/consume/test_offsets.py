"""What may be committed: prefix, holes, what the last owner left, and the size of the map."""

from __future__ import annotations

from penstock.consume import offsets
from penstock.consume.assignment import Assignment
from penstock.consume.core import Core
from penstock.consume.intake import BY_MAP, Bounds, steer
from penstock.consume.record import Record
from penstock.model import offsetmap
from tests.consume.machine import FakeMessage


def core_of(assignment: Assignment) -> Core:
    core = Core(Bounds(1_000_000, 1 << 30), 1_000_000)
    core.assign(assignment)
    return core


def received(core: Core, assignment: Assignment, *numbers: int) -> dict[int, Record]:
    records = [Record(FakeMessage(b"v"), assignment, number, None, None, 1) for number in numbers]
    core.receive(assignment, records)
    return {record.offset: record for record in records}


def finish(core: Core, records: dict[int, Record], *numbers: int) -> None:
    while core.coordinator.take():
        pass
    for number in numbers:
        core.finish(records[number])


def test_34_before_33_is_held_back_and_33_releases_both() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    records = received(core, home, 33, 34)
    finish(core, records, 34)
    assert offsets.base(home) == 33
    finish(core, records, 33)
    assert offsets.base(home) == 35


def test_holes_hold_nothing_back() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    records = received(core, home, 5, 9, 100)
    finish(core, records, 5, 9, 100)
    assert offsets.base(home) == 101


def test_the_end_reached_past_markers_is_what_is_committed() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    finish(core, received(core, home, 5), 5)
    core.reach(home, 9)
    assert offsets.base(home) == 9


def test_what_the_last_owner_finished_stays_finished_over_two_restarts() -> None:
    text = offsetmap.encode(33, 100, [33, 50])
    home = Assignment("t", 0, 1, 33, text)
    core = core_of(home)
    received(core, home, 33, 34, 35)
    mark = offsets.mark(home)
    assert mark is None, "nothing is new: Kafka has this very map"
    received(core, home, *range(36, 100))
    assert set(home.unfinished) == {33, 50}
    core.reach(home, 100)
    found = offsets.mark(home)
    assert found is None or offsetmap.decode(found.offset, found.metadata) == offsetmap.decode(33, text)


def test_the_map_follows_while_old_and_new_finish_in_any_order() -> None:
    home = Assignment("t", 0, 1, 33, offsetmap.encode(33, 100, [33, 50]))
    core = core_of(home)
    records = received(core, home, *range(33, 110))
    finish(core, records, 105, 33)
    found = offsets.mark(home)
    assert found is not None
    decoded = offsetmap.decode(found.offset, found.metadata)
    assert found.offset == 50
    assert decoded is not None
    assert decoded.unfinished == frozenset({50, 100, 101, 102, 103, 104})


def test_a_stuck_record_stops_intake_before_the_map_could_overflow() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    stuck = received(core, home, 0)
    sparse = received(core, home, *range(100_000, 400_000, 100))  # every one far from the next
    assert home.held, "too many unfinished over too wide a span"
    steer([home], core.bounds, 0.0)
    assert home.paused == BY_MAP
    taken = []
    while (record := core.coordinator.take()) is not None:
        taken.append(record)
    for record in taken[2::2]:  # the worst pattern: every other one
        core.finish(record)
    found = offsets.mark(home)
    assert found is not None
    assert len(found.metadata) <= offsetmap.METADATA_CHARS_MAX
    for record in (*taken[1::2], stuck[0]):
        core.finish(record)
    core.admit()
    assert len(home.held) < len(sparse)


def test_one_stuck_record_lets_hundreds_of_thousands_pass() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    received(core, home, 0)
    stuck = core.coordinator.take()
    for start in range(1, 300_000, 600):
        records = received(core, home, *range(start, start + 600))
        core.admit()
        assert not home.held
        finish(core, records, *records)
    assert stuck is not None
    assert offsets.base(home) == 0
    found = offsets.mark(home)
    assert found is not None
    assert len(found.metadata) < 60


def test_a_partition_read_from_an_earlier_offset_is_a_new_epoch() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    old = received(core, home, 98, 99)
    core.coordinator.take()
    new = received(core, home, 0, 1)
    assert not home.live
    assert new[0].assignment.live
    core.finish(old[98])
    assert core.counts.late == 1
    assert offsets.base(core.assignments["t", 0]) == 0


def test_offsets_that_start_anew_within_one_batch_are_two_batches() -> None:
    home = Assignment("t", 0, 1)
    core = core_of(home)
    records = received(core, home, 98, 99, 0, 1)
    assert records[0].assignment.live
    assert offsets.base(core.assignments["t", 0]) == 0
