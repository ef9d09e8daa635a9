"""Acknowledged offsets become evidence: merged, bounded, numbered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.limits.ack_ranges import (
    BYTES_PER_SECOND_MIN,
    HEARTBEAT_MS,
    INGRESS_SHARE_MAX,
    MERGE_MS,
    PIECES_MAX,
    RANGES_OPEN_MAX,
    RANGES_PER_RECORD_MAX,
    Acks,
    OpenRange,
)
from penstock.gateway.limits.metering import Source
from penstock.model.ids import PhysicalClusterId

if TYPE_CHECKING:
    from penstock.model.events import AckRanges

SOURCE = Source(PhysicalClusterId("pkc-000001"), "gw", "run")
ID = bytes(15) + b"\x07"
PLENTY = 1 << 40  # bytes received, enough for any evidence


def batch(first: int, last: int, size: int = 100, timestamp: int = 5, log_start: int = 0) -> OpenRange:
    return OpenRange(first, last, size, timestamp, log_start)


def taken(acks: Acks, ingress_bytes: int = PLENTY, after_ms: int = MERGE_MS) -> AckRanges | None:
    acks.now_ms += after_ms
    return acks.take(SOURCE, ingress_bytes)


def rows(record: AckRanges | None) -> list[tuple[int, int, int, int]]:
    assert record is not None
    return [(one.partition, one.first, one.last, one.records) for one in record]


def started() -> Acks:
    """After the first record, which announces the incarnation."""
    acks = Acks()
    assert acks.take(SOURCE, 0) is not None
    return acks


def test_contiguous_batches_are_one_range_with_their_bytes_and_largest_timestamp() -> None:
    acks = started()
    sent = [(b"n", 0, 300, 4, 90), (b"n", 1, 100, 0, 91), (b"n", 2, 200, 0, 92)]

    responded = [(b"n", 0, 0, 10, -1, 3), (b"n", 1, 6, -1, -1, -1), (b"n", 2, 0, 7, -1, -1)]
    acks.record(-1, sent, responded, {b"n": ID})
    acks.record(-1, [(b"n", 0, 50, 4, 80)], [(b"n", 0, 0, 15, -1, 4)], {b"n": ID})
    record = taken(acks)

    assert rows(record) == [(0, 10, 19, 10), (2, 7, 7, 1)]
    assert record is not None
    one = next(iter(record))
    assert (one.bytes, one.max_timestamp_ms, one.log_start, one.acks) == (350, 90, 4, -1)
    assert not acks.partitions
    assert acks.open == 0


def test_the_brokers_append_time_is_the_timestamp_if_it_sets_one() -> None:
    acks = started()

    acks.record(1, [(ID, 0, 50, 0, 80)], [(ID, 0, 0, 15, 777, 4)], None)

    record = taken(acks)
    assert record is not None
    assert [one.max_timestamp_ms for one in record] == [777]


def test_ranges_are_merged_for_ten_seconds() -> None:
    acks = started()
    acks.add(ID, 0, -1, batch(0, 4))
    early = taken(acks, after_ms=MERGE_MS - 1)
    acks.add(ID, 0, -1, batch(5, 9))

    record = taken(acks, after_ms=1)

    assert early is None
    assert rows(record) == [(0, 0, 9, 10)]


def test_a_range_that_was_taken_is_not_extended() -> None:
    acks = started()
    opened = acks.add(ID, 0, -1, batch(0, 4))
    taken(acks)

    assert opened is not None
    assert opened.last + 1 < 0  # no batch starts there


def test_batches_out_of_order_and_repeated_ones_are_one_range() -> None:
    acks = started()
    for first, last in ((10, 19), (30, 39), (0, 9), (20, 29), (10, 19)):
        acks.add(ID, 0, -1, batch(first, last))

    record = taken(acks)

    assert rows(record) == [(0, 0, 39, 40)]


def test_different_acks_are_never_mixed() -> None:
    acks = started()
    acks.add(ID, 0, -1, batch(0, 4))
    acks.add(ID, 0, 1, batch(5, 9))

    assert rows(taken(acks)) == [(0, 0, 4, 5), (0, 5, 9, 5)]


def test_holes_are_shown_until_there_are_too_many() -> None:
    few, many = started(), started()
    for number in range(PIECES_MAX):
        few.add(ID, 0, -1, batch(10 * number, 10 * number + 4))
    for number in range(PIECES_MAX + 1):
        many.add(ID, 0, -1, batch(10 * number, 10 * number + 4))

    assert rows(taken(few)) == [(0, 10 * n, 10 * n + 4, 5) for n in range(PIECES_MAX)]
    assert rows(taken(many)) == [(0, 0, 10 * PIECES_MAX + 4, 5 * (PIECES_MAX + 1))]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=40))
def test_every_acknowledged_offset_is_covered_and_every_exact_range_was_acknowledged(
    batches: list[tuple[int, int]],
) -> None:
    acks, acknowledged = started(), set()
    for first, delta in batches:
        acks.add(ID, 0, -1, batch(first, first + delta))
        acknowledged |= set(range(first, first + delta + 1))

    ranges = [one for record in acks.last(SOURCE) for one in record]

    assert acknowledged <= {offset for one in ranges for offset in range(one.first, one.last + 1)}
    for one in ranges:
        if one.records == one.offsets:
            assert set(range(one.first, one.last + 1)) <= acknowledged
    assert acks.open == 0


def test_evidence_stays_within_half_a_percent_of_the_bytes_received() -> None:
    """A thousand partitions with one small batch a second each: merged for longer than ten seconds."""
    acks, ingress, seconds, ranges = started(), 0, 300, []
    for second in range(seconds):
        for partition in range(1_000):
            acks.add(ID, partition, -1, batch(second, second))
            ingress += 200
        record = taken(acks, ingress, after_ms=1_000)
        ranges += [] if record is None else rows(record)

    assert ranges
    assert acks.spent_bytes <= INGRESS_SHARE_MAX * ingress + BYTES_PER_SECOND_MIN * seconds
    assert acks.lost == 0
    ranges += [row for record in acks.last(SOURCE) for row in rows(record)]
    assert sum(records for _, _, _, records in ranges) == 1_000 * seconds


def test_a_quiet_gateway_writes_its_few_ranges_all_the_same() -> None:
    acks = started()
    acks.add(ID, 0, -1, batch(0, 0, size=60))

    assert rows(taken(acks, 60)) == [(0, 0, 0, 1)]


def test_batches_without_room_are_counted_in_every_later_record() -> None:
    acks = started()
    for partition in range(RANGES_OPEN_MAX + 3):
        acks.add(ID, partition, -1, batch(0, 0))
    acks.add(ID, 0, -1, batch(1, 1))  # an open range grows all the same

    records = [taken(acks), *acks.last(SOURCE)]

    assert [record.lost for record in records if record is not None] == [3] * len(records)
    assert sum(len(rows(record)) for record in records) == RANGES_OPEN_MAX


def test_one_take_has_bounded_work_and_the_next_second_continues() -> None:
    acks = started()
    for partition in range(RANGES_PER_RECORD_MAX + 1):
        acks.add(ID, partition, -1, batch(0, 0))

    assert len(rows(taken(acks))) == RANGES_PER_RECORD_MAX
    assert len(rows(taken(acks, after_ms=1_000))) == 1


def test_records_are_numbered_and_the_first_and_last_are_written_without_ranges() -> None:
    acks = Acks()
    first = taken(acks, 0)
    acks.add(ID, 0, -1, batch(0, 0))
    records = [first, taken(acks), *acks.last(SOURCE)]

    assert [(record.sequence, record.final) for record in records if record is not None] == [
        (0, False),
        (1, False),
        (2, True),
    ]


def test_an_idle_gateway_shows_that_it_lives() -> None:
    acks = started()

    assert [taken(acks) is not None for _ in range(12)] == ([False] * 5 + [True]) * 2
    assert HEARTBEAT_MS == 6 * MERGE_MS
