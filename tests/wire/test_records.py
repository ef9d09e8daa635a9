"""Record batches: written, read, checked; damage and bombs are refused."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from penstock.model.errors.wire import BatchCorrupt, BatchTooLarge, BatchTooOld
from penstock.wire.codec import encode
from penstock.wire.compression import Compression, TooLarge, Undecodable, compress, decompress
from penstock.wire.records import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    ControlType,
    Producer,
    Record,
    batches,
    control,
    rebased,
    records,
    write,
)

PARTS = st.one_of(st.none(), st.binary(max_size=80))
ROWS = st.builds(
    Record,
    offset=st.integers(0, 2**31 - 1),
    timestamp_ms=st.integers(0, 2**45),
    key=PARTS,
    value=PARTS,
    headers=st.lists(st.tuples(st.text(max_size=5), PARTS), max_size=3).map(tuple),
)
RISING = st.lists(ROWS, min_size=1, max_size=20, unique_by=lambda row: row.offset).map(
    lambda rows: sorted(rows, key=lambda row: row.offset)
)
SOME = [Record(7, 1000, b"k", b"v", (("h", b"x"), ("n", None))), Record(9, 990, None, None)]


@given(RISING, st.sampled_from(Compression))
def test_records_survive_every_compression(rows: list[Record], compression: Compression) -> None:
    (batch,) = batches(write(rows, compression=compression))

    assert records(batch) == rows
    assert (batch.base_offset, batch.last_offset, batch.count) == (rows[0].offset, rows[-1].offset, len(rows))
    assert batch.max_timestamp_ms == max(row.timestamp_ms for row in rows)
    assert batch.compression is compression


@given(RISING, st.sampled_from([Compression.NONE, Compression.GZIP]), st.booleans())
def test_kafka_python_reads_what_we_write(rows: list[Record], compression: Compression, open_: bool) -> None:
    producer = Producer(77, 3, 5)
    data = write(rows, compression=compression, producer=producer, flags=TRANSACTIONAL if open_ else 0)

    theirs = DefaultRecordBatch(data)

    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (77, 3, 5)
    assert theirs.is_transactional is open_
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == [
        (row.offset, row.timestamp_ms, row.key, row.value, list(row.headers)) for row in rows
    ]


@given(RISING, st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_we_read_what_kafka_python_writes(rows: list[Record], compression: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, compression.value, True, 77, 3, 5, 1 << 20)
    for index, row in enumerate(rows):
        builder.append(index, row.timestamp_ms, row.key, row.value, list(row.headers))

    (batch,) = batches(bytes(builder.build()))

    assert records(batch) == [replace(row, offset=index) for index, row in enumerate(rows)]
    assert batch.producer == Producer(77, 3, 5)
    assert batch.is_transactional


def test_many_batches_are_walked_and_a_cut_one_at_the_end_is_left_out() -> None:
    first, second = write([Record(0, 1, None, b"a")]), write([Record(5, 1, None, b"b")])

    for cut in range(len(second)):
        assert [batch.base_offset for batch in batches(first + second[:cut])] == [0]
    assert [batch.base_offset for batch in batches(first + second)] == [0, 5]


def test_a_compacted_batch_keeps_its_last_offset() -> None:
    (batch,) = batches(write(SOME, last_offset=40))

    assert (batch.last_offset, [row.offset for row in records(batch)]) == (40, [7, 9])


def test_log_append_time_stands_for_every_record() -> None:
    (batch,) = batches(write(SOME, flags=LOG_APPEND_TIME))

    assert batch.is_log_append_time
    assert {row.timestamp_ms for row in records(batch)} == {1000}


def test_offset_and_epoch_can_change_without_a_new_crc() -> None:
    (batch,) = batches(write(SOME, compression=Compression.ZSTD))

    (moved,) = batches(rebased(batch, base_offset=5_000_000_007, leader_epoch=12))

    assert (moved.base_offset, moved.leader_epoch, moved.crc) == (5_000_000_007, 12, batch.crc)
    assert [row.offset for row in records(moved)] == [5_000_000_007, 5_000_000_009]


@pytest.mark.parametrize(
    ("number", "message", "values"),
    [
        (0, "EndTxnMarker", {"CoordinatorEpoch": 4}),
        (1, "EndTxnMarker", {"CoordinatorEpoch": 4}),
        (2, "LeaderChangeMessage", {"Version": 0, "LeaderId": 3, "Voters": [], "GrantingVoters": []}),
        (3, "SnapshotHeaderRecord", {"Version": 0, "LastContainedLogTimestamp": 9}),
        (4, "SnapshotFooterRecord", {"Version": 0}),
        (5, "KRaftVersionRecord", {"Version": 0, "KRaftVersion": 1}),
        (6, "VotersRecord", {"Version": 0, "Voters": []}),
    ],
)
def test_control_records_tell_what_happened(number: int, message: str, values: dict[str, Any]) -> None:
    version = struct.pack(">h", 0) if message == "EndTxnMarker" else b""
    row = Record(0, 1, struct.pack(">hh", 0, number), version + encode(message, 0, values))
    (batch,) = batches(write([row], flags=CONTROL | TRANSACTIONAL))

    told = control(records(batch)[0])

    assert batch.is_control
    assert told is not None
    assert told[0] is ControlType(number)
    assert told[1].items() >= values.items()


def test_a_control_record_of_a_later_kafka_is_passed_over() -> None:
    assert control(Record(0, 1, struct.pack(">hh", 0, 99), b"")) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0", b""), (b"\0\0\0\x02", None), (b"\0\0\0\x02", b"")]
)
def test_a_broken_control_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BatchCorrupt):
        control(Record(0, 1, key, value))


def signed(batch: bytes | bytearray) -> bytes:
    """The batch with a CRC that holds, whatever was done to it."""
    out = bytearray(batch)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def altered(position: int, change: bytes, **keys: Any) -> bytes:
    out = bytearray(write(SOME, **keys))
    out[position : position + len(change)] = change
    return bytes(out)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic: int) -> None:
    with pytest.raises(BatchTooOld, match=f"message format {magic}"):
        list(batches(altered(16, bytes([magic]))))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (altered(16, b"\x03"), "message format 3 is not known"),
        (altered(8, struct.pack(">i", 10)), "a length of 10 bytes"),
        (altered(8, struct.pack(">i", -1)), "a length of -1 bytes"),
        (altered(64, b"\x55"), "its CRC does not hold"),
        (signed(altered(57, struct.pack(">i", -1))), "-1 records"),
        (signed(altered(57, struct.pack(">i", 2**31 - 1))), "2147483647 records are claimed"),
        (signed(altered(57, struct.pack(">i", 1))), "follow the last record"),
        (signed(altered(61, b"\x7e")), "a record cannot be read"),
        (signed(altered(61, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")), "a record cannot be read"),
        (signed(altered(21, b"\x00\x07")), "compression 7 is not known"),
        (signed(altered(22, b"\x01")), "gzip data cannot be read"),
        (signed(altered(22, b"\x02")), "snappy data cannot be read"),
        (signed(altered(22, b"\x03")), "lz4 data cannot be read"),
        (signed(altered(22, b"\x04")), "zstd data cannot be read"),
    ],
)
def test_damage_is_refused_and_named(data: bytes, said: str) -> None:
    with pytest.raises(BatchCorrupt) as corrupt:
        [records(batch) for batch in batches(data)]

    assert said in corrupt.value.message


@pytest.mark.parametrize("compression", [c for c in Compression if c])
def test_a_bomb_is_stopped_at_the_limit(compression: Compression) -> None:
    (batch,) = batches(write([Record(0, 1, None, bytes(1 << 20))], compression=compression))

    with pytest.raises(BatchTooLarge):
        records(batch, size_max=100_000)
    assert len(records(batch, size_max=(1 << 20) + 100)) == 1


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 64 << 10, 200_000])
def test_every_size_survives_compression(compression: Compression, size: int) -> None:
    data = (b"penstock" * (size // 8 + 1))[:size]

    assert decompress(compress(data, compression), compression, size_max=size) == data


@given(st.binary(max_size=300))
def test_bytes_that_do_not_shrink_survive_too(data: bytes) -> None:
    for compression in Compression:
        assert decompress(compress(data, compression), compression, size_max=len(data)) == data


def test_a_bare_snappy_block_is_read_as_well() -> None:
    framed = compress(b"penstock" * 10, Compression.SNAPPY)

    assert decompress(framed[20:], Compression.SNAPPY, size_max=1000) == b"penstock" * 10


@pytest.mark.parametrize(
    ("data", "compression"),
    [
        (compress(b"x" * 100, Compression.GZIP)[:-9], Compression.GZIP),
        (compress(b"x" * 100, Compression.SNAPPY)[:-1], Compression.SNAPPY),
        (compress(b"x" * 100, Compression.SNAPPY) + b"\0\0", Compression.SNAPPY),
        (zlib.compress(b"x"), Compression.GZIP),
    ],
)
def test_cut_and_foreign_data_is_undecodable(data: bytes, compression: Compression) -> None:
    with pytest.raises(Undecodable):
        decompress(data, compression, size_max=1000)


def test_no_more_than_the_limit_is_ever_made() -> None:
    with pytest.raises(TooLarge):
        decompress(compress(bytes(10_000), Compression.SNAPPY), Compression.SNAPPY, size_max=9_999)
