"""Read, check and write record batches of format 2.

`batches` reads the batch headers in a fetch response or a log segment, `records` the records of one batch,
decompressed within a limit, and `control` the content of a control record. `write` encodes a batch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.wire import (
    BatchCorrupt,
    BatchTooLarge,
    BatchTooOld,
    ResponseMalformed,
    VersionUnknown,
)
from penstock.wire.codec import decode_at
from penstock.wire.compression import Compression, TooLarge, Undecodable, compress, decompress
from penstock.wire.definitions import load

try:
    from crc32c import crc32c
except ImportError as missing:  # pragma: no cover  (an installation without the extra)
    raise ExtraMissing(what="reading record batches", module="crc32c", extra="platform") from missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAGIC: Final = 2
MAGIC_AT: Final = 16
CRC_FROM: Final = 21  # the CRC covers everything from the attributes on
HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12  # base offset and length, not counted in the length
DECOMPRESSED_BYTES_MAX: Final = 256 << 20
RECORD_BYTES_MIN: Final = 7

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_header = struct.Struct(">qiibIhiqqqhii")
_signed_part = struct.Struct(">hiqqqhii")
_prefix = struct.Struct(">qi")
_unsigned_part = struct.Struct(">qiibI")
_control_key = struct.Struct(">hh")

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of an idempotent or transactional batch; `NO_PRODUCER` for any other."""

    id: int
    epoch: int
    sequence: int


NO_PRODUCER: Final = Producer(-1, -1, -1)


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer: Producer
    count: int
    crc: int
    raw: memoryview  # the whole batch

    @property
    def compression(self) -> Compression:
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            reason = f"compression {self.attributes & COMPRESSION_MASK} is not known"
            raise BatchCorrupt(offset=self.base_offset, reason=reason) from None

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_intact(self) -> bool:
        return crc32c(self.raw[CRC_FROM:]) == self.crc


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_MESSAGES: Final = {
    ControlType.ABORT: "EndTxnMarker",
    ControlType.COMMIT: "EndTxnMarker",
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}


def batches(data: bytes | memoryview) -> Iterator[Batch]:
    """The complete batches in `data`. A truncated one at the end, as fetches have it, is skipped."""
    view = memoryview(data)
    position = 0
    while position + PREFIX_BYTES <= len(view):
        base_offset, length = _prefix.unpack_from(view, position)
        if position + MAGIC_AT < len(view) and view[position + MAGIC_AT] != MAGIC:
            magic = view[position + MAGIC_AT]
            if magic < MAGIC:
                raise BatchTooOld(offset=base_offset, magic=magic)
            raise BatchCorrupt(offset=base_offset, reason=f"message format {magic} is not known")
        if length < HEADER_BYTES - PREFIX_BYTES:
            raise BatchCorrupt(offset=base_offset, reason=f"its length is {length}")
        end = position + PREFIX_BYTES + length
        if end > len(view):
            return
        yield _batch(view[position:end])
        position = end


def _batch(raw: memoryview) -> Batch:
    fields = _header.unpack_from(raw)
    base, _, epoch, _, crc, attributes, last_delta, first_ms, max_ms, *producer, count = fields
    if last_delta < 0 or count < 0:
        raise BatchCorrupt(offset=base, reason=f"{count} records up to offset delta {last_delta}")
    return Batch(
        base_offset=base,
        last_offset=base + last_delta,
        leader_epoch=epoch,
        attributes=attributes,
        base_timestamp_ms=first_ms,
        max_timestamp_ms=max_ms,
        producer=Producer(*producer),
        count=count,
        crc=crc,
        raw=raw,
    )


def records(batch: Batch, *, size_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """The records of a batch, after a check of its CRC."""
    if not batch.is_intact:
        raise BatchCorrupt(offset=batch.base_offset, reason="its CRC does not match")
    try:
        data = decompress(batch.raw[HEADER_BYTES:], batch.compression, size_max=size_max)
    except TooLarge:
        raise BatchTooLarge(offset=batch.base_offset, size_max=size_max) from None
    except Undecodable as failure:
        reason = f"its {batch.compression.name.lower()} data cannot be read: {failure}"
        raise BatchCorrupt(offset=batch.base_offset, reason=reason) from failure
    if batch.count * RECORD_BYTES_MIN > len(data):
        reason = f"it claims {batch.count} records in {len(data)} bytes"
        raise BatchCorrupt(offset=batch.base_offset, reason=reason)
    try:
        decoded, end = _records(data, batch)
    except (IndexError, UnicodeDecodeError, ValueError) as failure:
        reason = f"a record cannot be read: {failure}"
        raise BatchCorrupt(offset=batch.base_offset, reason=reason) from failure
    if end != len(data):
        raise BatchCorrupt(offset=batch.base_offset, reason=f"{len(data) - end} bytes follow the last record")
    return decoded


def _records(data: bytes, batch: Batch) -> tuple[list[Record], int]:
    decoded = []
    position = 0
    for _ in range(batch.count):
        length, position = _varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise ValueError(f"it claims {length} bytes")
        position += 1  # attributes: none are defined
        time_delta, position = _varint(data, position)
        offset_delta, position = _varint(data, position)
        key, position = _sized(data, position, end)
        value, position = _sized(data, position, end)
        headers, position = _headers(data, position, end)
        if position != end:
            raise ValueError("its length does not match its content")
        time_ms = batch.max_timestamp_ms if batch.is_log_append_time else batch.base_timestamp_ms + time_delta
        decoded.append(Record(batch.base_offset + offset_delta, time_ms, key, value, headers))
    return decoded, position


def _headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = _varint(data, position)
    if count == 0:
        return (), position
    if not 0 < count <= (end - position) // 2:
        raise ValueError(f"it claims {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _sized(data, position, end)
        value, position = _sized(data, position, end)
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name.decode(), value))
    return tuple(headers), position


def _sized(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise ValueError(f"a field claims {length} of {end - position} bytes")
    return data[position : position + length], position + length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of up to ten bytes."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError("a varint is longer than ten bytes")
    return (value >> 1) ^ -(value & 1), position


def control(record: Record) -> tuple[ControlType, dict[str, Any]] | None:
    """Type and content of a record of a control batch; None if its type is unknown.

    A newer version of a known type is read as the latest known one, since versions only add fields.
    """
    key = record.key or b""
    if len(key) < _control_key.size or record.value is None:
        raise BatchCorrupt(offset=record.offset, reason="a control record without type or value")
    _, number = _control_key.unpack_from(key)
    if number not in ControlType.__members__.values():
        return None
    kind = ControlType(number)
    message = _CONTROL_MESSAGES[kind]
    if len(record.value) < 2:
        raise BatchCorrupt(offset=record.offset, reason="a control record without a version")
    version = struct.unpack_from(">h", record.value)[0]
    known = load().message(message).valid_versions
    # A transaction marker follows its version; the other messages have it as their first field.
    start = 2 if message == "EndTxnMarker" else 0
    try:
        return kind, decode_at(message, min(version, known.last), bytes(record.value), start)[0]
    except (ResponseMalformed, VersionUnknown) as failure:
        raise BatchCorrupt(offset=record.offset, reason=failure.message) from failure


def write(
    rows: Sequence[Record],
    *,
    compression: Compression = Compression.NONE,
    producer: Producer = NO_PRODUCER,
    leader_epoch: int = -1,
    flags: int = 0,
    last_offset: int | None = None,
) -> bytes:
    """One batch of these records, in order of their offsets; `flags` are TRANSACTIONAL and CONTROL.

    `last_offset` may exceed the last record's, as after compaction.
    """
    assert rows, "a batch has at least one record"
    base, first_ms = rows[0].offset, rows[0].timestamp_ms
    body = compress(b"".join([_encoded(row, base, first_ms) for row in rows]), compression)
    last = rows[-1].offset if last_offset is None else last_offset
    max_ms = max(row.timestamp_ms for row in rows)
    written_by = (producer.id, producer.epoch, producer.sequence)
    signed = _signed_part.pack(compression | flags, last - base, first_ms, max_ms, *written_by, len(rows))
    length = HEADER_BYTES - PREFIX_BYTES + len(body)
    crc = crc32c(body, crc32c(signed))
    return _unsigned_part.pack(base, length, leader_epoch, MAGIC, crc) + signed + body


def _encoded(row: Record, base: int, first_ms: int) -> bytes:
    parts = [b"\0", _zigzag(row.timestamp_ms - first_ms), _zigzag(row.offset - base)]
    for part in (row.key, row.value):
        parts += (_MINUS_ONE,) if part is None else (_zigzag(len(part)), part)
    parts.append(_zigzag(len(row.headers)))
    for name, value in row.headers:
        encoded = name.encode()
        parts += (_zigzag(len(encoded)), encoded)
        parts += (_MINUS_ONE,) if value is None else (_zigzag(len(value)), value)
    body = b"".join(parts)
    return _zigzag(len(body)) + body


def _zigzag(value: int) -> bytes:
    if -64 <= value < 64:
        return _ONE_BYTE[value]
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Indexed by −64 … 63: Python's negative indices count from the end.
_ONE_BYTE: Final = [bytes([n << 1]) for n in range(64)] + [bytes([(-n << 1) - 1]) for n in range(-64, 0)]
_MINUS_ONE: Final = b"\x01"
