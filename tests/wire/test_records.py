"""Record batches: written, read, checked; corrupt batches and decompression bombs are refused."""

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
    records,
    write,
)

KEYS = st.one_of(st.none(), st.binary(max_size=80))
ROWS = st.builds(
    Record,
    offset=st.integers(0, 2**31 - 1),
    timestamp_ms=st.integers(0, 2**45),
    key=KEYS,
    value=KEYS,
    headers=st.lists(st.tuples(st.text(max_size=5), KEYS), max_size=3).map(tuple),
)
BATCHES = st.lists(ROWS, min_size=1, max_size=20, unique_by=lambda row: row.offset).map(
    lambda rows: sorted(rows, key=lambda row: row.offset)
)
TWO_ROWS = [Record(7, 1000, b"k", b"v", (("h", b"x"), ("n", None))), Record(9, 990, None, None)]


@given(BATCHES, st.sampled_from(Compression))
def test_records_round_trip_through_every_compression(rows: list[Record], compression: Compression) -> None:
    (batch,) = batches(write(rows, compression=compression))

    assert records(batch) == rows
    assert (batch.base_offset, batch.last_offset, batch.count) == (rows[0].offset, rows[-1].offset, len(rows))
    assert batch.max_timestamp_ms == max(row.timestamp_ms for row in rows)
    assert batch.compression is compression


@given(BATCHES, st.sampled_from([Compression.NONE, Compression.GZIP]), st.booleans())
def test_kafka_python_reads_what_we_write(
    rows: list[Record], compression: Compression, transactional: bool
) -> None:
    producer = Producer(77, 3, 5)
    data = write(
        rows, compression=compression, producer=producer, flags=TRANSACTIONAL if transactional else 0
    )

    batch = DefaultRecordBatch(data)

    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 5)
    assert batch.is_transactional is transactional
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == [
        (row.offset, row.timestamp_ms, row.key, row.value, list(row.headers)) for row in rows
    ]


@given(BATCHES, st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_we_read_what_kafka_python_writes(rows: list[Record], compression: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, compression.value, True, 77, 3, 5, 1 << 20)
    for index, row in enumerate(rows):
        builder.append(index, row.timestamp_ms, row.key, row.value, list(row.headers))

    (batch,) = batches(bytes(builder.build()))

    assert records(batch) == [replace(row, offset=index) for index, row in enumerate(rows)]
    assert batch.producer == Producer(77, 3, 5)
    assert batch.is_transactional


def test_a_truncated_batch_at_the_end_is_skipped() -> None:
    first, second = write([Record(0, 1, None, b"a")]), write([Record(5, 1, None, b"b")])

    for cut in range(len(second)):
        assert [batch.base_offset for batch in batches(first + second[:cut])] == [0]
    assert [batch.base_offset for batch in batches(first + second)] == [0, 5]


def test_a_compacted_batch_keeps_its_last_offset() -> None:
    (batch,) = batches(write(TWO_ROWS, last_offset=40))

    assert (batch.last_offset, [row.offset for row in records(batch)]) == (40, [7, 9])


def test_log_append_time_replaces_the_time_of_every_record() -> None:
    (batch,) = batches(write(TWO_ROWS, flags=LOG_APPEND_TIME))

    assert batch.is_log_append_time
    assert {row.timestamp_ms for row in records(batch)} == {1000}


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
def test_control_records_are_decoded_by_their_type(number: int, message: str, values: dict[str, Any]) -> None:
    version = struct.pack(">h", 0) if message == "EndTxnMarker" else b""
    row = Record(0, 1, struct.pack(">hh", 0, number), version + encode(message, 0, values))
    (batch,) = batches(write([row], flags=CONTROL | TRANSACTIONAL))

    result = control(records(batch)[0])

    assert batch.is_control
    assert result is not None
    assert result[0] is ControlType(number)
    assert result[1].items() >= values.items()


def test_a_control_record_of_an_unknown_type_is_none() -> None:
    assert control(Record(0, 1, struct.pack(">hh", 0, 99), b"")) is None


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\0", b""), (b"\0\0\0\x02", None), (b"\0\0\0\x02", b"")]
)
def test_a_malformed_control_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BatchCorrupt):
        control(Record(0, 1, key, value))


def signed(batch: bytes | bytearray) -> bytes:
    """The batch with a valid CRC."""
    out = bytearray(batch)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def altered(position: int, change: bytes, **keys: Any) -> bytes:
    out = bytearray(write(TWO_ROWS, **keys))
    out[position : position + len(change)] = change
    return bytes(out)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_with_their_number(magic: int) -> None:
    with pytest.raises(BatchTooOld, match=f"message format {magic}"):
        list(batches(altered(16, bytes([magic]))))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (altered(16, b"\x03"), "message format 3 is not known"),
        (altered(8, struct.pack(">i", 10)), "its length is 10"),
        (altered(8, struct.pack(">i", -1)), "its length is -1"),
        (altered(64, b"\x55"), "its CRC does not match"),
        (signed(altered(57, struct.pack(">i", -1))), "-1 records"),
        (signed(altered(57, struct.pack(">i", 2**31 - 1))), "it claims 2147483647 records"),
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
def test_a_corrupt_batch_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BatchCorrupt) as corrupt:
        [records(batch) for batch in batches(data)]

    assert reason in corrupt.value.message


@pytest.mark.parametrize("compression", [c for c in Compression if c])
def test_a_decompression_bomb_is_stopped_at_the_limit(compression: Compression) -> None:
    (batch,) = batches(write([Record(0, 1, None, bytes(1 << 20))], compression=compression))

    with pytest.raises(BatchTooLarge):
        records(batch, size_max=100_000)
    assert len(records(batch, size_max=(1 << 20) + 100)) == 1


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 64 << 10, 200_000])
def test_data_of_every_size_round_trips_through_compression(compression: Compression, size: int) -> None:
    data = (b"penstock" * (size // 8 + 1))[:size]

    assert decompress(compress(data, compression), compression, size_max=size) == data


@given(st.binary(max_size=300))
def test_incompressible_bytes_round_trip(data: bytes) -> None:
    for compression in Compression:
        assert decompress(compress(data, compression), compression, size_max=len(data)) == data


def test_a_snappy_block_without_framing_is_read() -> None:
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
def test_truncated_and_foreign_data_is_undecodable(data: bytes, compression: Compression) -> None:
    with pytest.raises(Undecodable):
        decompress(data, compression, size_max=1000)


def test_one_byte_beyond_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge):
        decompress(compress(bytes(10_000), Compression.SNAPPY), Compression.SNAPPY, size_max=9_999)
