"""Copies of a stretch of log, compared."""

from __future__ import annotations

from penstock.audit.scrub.comparison import UNREADABLE, Copy, Scanned, compare
from penstock.audit.scrub.progress import Progress, in_order, is_due
from penstock.audit.scrub.sequences import SEQUENCES, SequenceTracker

BATCHES = tuple(Scanned(n * 10, n * 10 + 9, 1000 + n) for n in range(10))


def without(*numbers: int) -> tuple[Scanned, ...]:
    return tuple(each for n, each in enumerate(BATCHES) if n not in numbers)


def damaged(*numbers: int) -> tuple[Scanned, ...]:
    return tuple(
        each._replace(crc=7, intact=False) if n in numbers else each for n, each in enumerate(BATCHES)
    )


def copies(*contents: tuple[Scanned, ...]) -> list[Copy]:
    return [Copy(f"broker {n}", each) for n, each in enumerate(contents, 1)]


def test_equal_copies_are_one_clean_part() -> None:
    (part,) = compare(copies(BATCHES, BATCHES, BATCHES), 0, 99)

    assert (part.first, part.last, part.clean) == (0, 99, True)
    assert len({row.digest for row in part.rows}) == 1


def test_a_stretch_may_begin_within_a_batch() -> None:
    (part,) = compare(copies(BATCHES, BATCHES), 5, 99)

    assert (part.first, part.last, part.clean) == (5, 99, True)


def test_damage_of_one_copy_is_a_part_with_its_offsets() -> None:
    before, problem, after = compare(copies(BATCHES, damaged(4), BATCHES), 0, 99)

    assert before.clean
    assert after.clean
    assert (problem.first, problem.last) == (40, 49)
    assert [(row.place, row.damaged) for row in problem.rows] == [
        ("broker 1", ()), ("broker 3", ()), ("broker 2", ((40, 49),)),
    ]  # fmt: skip
    assert problem.rows[0].digest == problem.rows[1].digest != problem.rows[2].digest


def test_damage_is_reported_even_if_there_is_one_copy() -> None:
    parts = compare(copies(damaged(0)), 0, 99)

    assert [(part.first, part.last, part.clean) for part in parts] == [(0, 9, False), (10, 99, True)]


def test_missing_batches_are_holes_of_the_copy_without_them_and_no_other_value() -> None:
    _, problem, _ = compare(copies(BATCHES, BATCHES, without(4, 5)), 0, 99)

    assert (problem.first, problem.last) == (40, 59)
    assert [(row.place, row.holes) for row in problem.rows if row.holes] == [("broker 3", ((40, 59),))]
    assert problem.rows[-1].digest == ""


def test_different_problems_side_by_side_are_different_parts() -> None:
    other = tuple(each._replace(crc=5) if n == 5 else each for n, each in enumerate(BATCHES))
    parts = compare(copies(BATCHES, without(4), other), 0, 99)

    assert [(part.first, part.last) for part in parts if not part.clean] == [(40, 49), (50, 59)]


def test_what_every_copy_lacks_is_a_hole_of_each() -> None:
    _, problem, _ = compare(copies(without(9 - 2), without(7)), 0, 99)

    assert [row.holes for row in problem.rows] == [((70, 79),), ((70, 79),)]


def test_holes_at_both_ends_are_part_of_the_stretch() -> None:
    parts = compare(copies(without(0, 9)), 0, 99)

    assert [(part.first, part.last, part.clean) for part in parts] == [
        (0, 9, False), (10, 89, True), (90, 99, False),
    ]  # fmt: skip


def test_a_place_that_does_not_promise_every_offset_has_no_holes() -> None:
    stored = Copy("backup", without(4), checks_holes=False)
    rows = [row for part in compare([*copies(BATCHES), stored], 0, 99) for row in part.rows]

    assert not any(row.holes for row in rows)


def test_an_unreadable_copy_is_damaged_everywhere() -> None:
    (part,) = compare([*copies(BATCHES, BATCHES), Copy("broker 3", unreadable=True)], 0, 99)

    assert not part.clean
    assert (part.rows[-1].digest, part.rows[-1].damaged) == (UNREADABLE, ((0, 99),))


def test_batches_with_other_boundaries_are_compared_as_one_part() -> None:
    joined = (Scanned(0, 19, 3), *BATCHES[2:])
    problem, _ = compare(copies(BATCHES, joined, BATCHES), 0, 99)

    assert (problem.first, problem.last, problem.clean) == (0, 19, False)


def test_records_of_compacted_topics_may_be_missing_but_not_different() -> None:
    records = tuple(Scanned(n, n, n) for n in range(10))
    cleaned, changed = records[5:], (*records[:3], records[3]._replace(crc=99), *records[7:])

    (clean,) = compare(copies(records, cleaned), 0, 9, by_record=True)
    parts = compare(copies(records, cleaned, changed), 0, 9, by_record=True)

    assert clean.clean
    assert len({row.digest for row in clean.rows}) == 1
    assert [(part.first, part.last) for part in parts if not part.clean] == [(3, 3)]
    assert not any(row.holes for part in parts for row in part.rows)


def errors(*batches: Scanned) -> list[str]:
    tracker = SequenceTracker()
    return [error for each in batches if (error := tracker.error(each))]


def batch(base: int, sequence: int, *, epoch: int = 0, count: int = 1) -> Scanned:
    return Scanned(base, base + count - 1, 0, True, 7, epoch, sequence)


def test_consecutive_sequences_of_each_epoch_are_fine() -> None:
    marker = Scanned(5, 5, 0, True, 7, 0, -1, control=True)

    assert errors(batch(0, 3, count=5), marker, batch(6, 8), batch(7, 0, epoch=1), batch(8, 1, epoch=1)) == []
    assert errors(batch(0, SEQUENCES - 2, count=2), batch(2, 0)) == []
    assert errors(Scanned(0, 9, 0), Scanned(10, 19, 0)) == []  # not idempotent


def test_gaps_repeats_and_falling_epochs_are_reported() -> None:
    assert errors(batch(0, 0), batch(5, 2)) == ["producer 7: sequence 2 follows 0 at offset 5"]
    assert errors(batch(0, 0), batch(5, 0)) == ["producer 7: sequence 0 follows 0 at offset 5"]
    zombie = Scanned(5, 5, 0, True, 7, 0, -1, control=True)
    assert errors(batch(0, 0, epoch=1), zombie) == ["producer 7: epoch 0 follows epoch 1 at offset 5"]


def test_due_is_what_was_interrupted_or_not_read_for_long() -> None:
    assert is_due(None, 1000, 100)
    assert is_due(Progress(990, 5), 1000, 100)
    assert is_due(Progress(900, 5, finished=True), 1000, 100)
    assert not is_due(Progress(901, 5, finished=True), 1000, 100)


def test_interrupted_passes_come_first_then_new_partitions_then_the_oldest() -> None:
    known = {
        b"a": Progress(500, 9, finished=True), b"b": Progress(100, 9, finished=True), b"c": Progress(900, 4),
    }  # fmt: skip

    assert in_order([b"a", b"b", b"c", b"d"], known) == [b"c", b"d", b"b", b"a"]
