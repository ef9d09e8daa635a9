"""Functions that generated codecs call at run time.

The generated source handles the common case inline (a length of one varint byte, no tagged fields) and
calls these for the rest, so they favour clarity over speed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import UUID, SafeUUID

if TYPE_CHECKING:
    from collections.abc import Iterable

UVARINT_BYTES_MAX: Final = 5  # 32 bits; Kafka accepts over-long encodings up to this
UVARINT_MAX: Final = 2**31 - 1  # lengths, counts and tags are Java ints
SMALL: Final = 32  # shorter arrays of numbers have a precompiled Struct

TRUNCATED: Final = "it is truncated"

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
SIZES: Final = {kind: struct.calcsize(">" + form) for kind, form in FORMATS.items()}


class Malformed(ValueError):
    """Raised while decoding; the public functions turn it into an error of the catalogue."""


def uvarint(value: int) -> bytes:
    if 0x4000 <= value < 0x200000:  # the length of most record batches: three bytes, without the loop
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if not 0 <= value <= UVARINT_MAX:
        raise ValueError(f"{value} does not fit an unsigned varint of 31 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


UVARINTS: Final = tuple(uvarint(n) for n in range(1024))
PACK: Final = {c: tuple(struct.Struct(f">{n}{c}").pack for n in range(SMALL)) for c in "?bhHiIqd"}
# The same, preceded by the compact count (one more than the length).
PACK_COMPACT: Final = {
    c: tuple(struct.Struct(f">B{max(n - 1, 0)}{c}").pack for n in range(SMALL)) for c in "?bhHiIqd"
}
UNPACK: Final = {c: tuple(struct.Struct(f">{n}{c}").unpack_from for n in range(SMALL)) for c in "?bhHiIqd"}


def uvarint_rest(data: bytes, position: int, first: int) -> tuple[int, int]:
    """An unsigned varint whose first byte, already read, had its high bit set; and where it ends."""
    value, shift = first & 0x7F, 7
    for index in range(position, position + UVARINT_BYTES_MAX - 1):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                raise Malformed(f"a length or tag of {value} does not fit 31 bits")
            return value, index + 1
        shift += 7
    raise Malformed(f"a varint is longer than {UVARINT_BYTES_MAX} bytes")


def read_uvarint(data: bytes, position: int) -> tuple[int, int]:
    first = data[position]
    return (first, position + 1) if first < 0x80 else uvarint_rest(data, position + 1, first)


def read_tags(data: bytes, position: int, count: int) -> tuple[dict[int, bytes], int]:
    """A section of unknown tagged fields whose first byte, `count`, was read; and where it ends."""
    if count > 0x7F:
        count, position = uvarint_rest(data, position, count)
    tags: dict[int, bytes] = {}
    last = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if tag <= last:
            raise Malformed(f"tag {tag} follows tag {last}")
        last = tag
        tags[tag] = data[position : position + size]
        position += size
        if position > len(data):
            short()
    return tags, position


def write_tags(out: list[bytes], tags: Iterable[tuple[int, bytes]]) -> None:
    ordered = sorted(tags)
    out.append(uvarint(len(ordered)))
    for tag, value in ordered:
        out += (uvarint(tag), uvarint(len(value)), value)


def unpack_many(data: bytes, position: int, count: int, form: str) -> list[object]:
    return list(struct.unpack_from(f">{count}{form}", data, position))


def pack_many(values: list[object] | tuple[object, ...], form: str) -> bytes:
    return struct.pack(f">{len(values)}{form}", *values)


def pack_many_compact(count: int, values: list[object] | tuple[object, ...], form: str) -> bytes:
    return uvarint(count) + struct.pack(f">{len(values)}{form}", *values)


_new_uuid = UUID.__new__
_set = object.__setattr__
_unknown_safety = SafeUUID.unknown


def uuid_of(raw: bytes) -> UUID:
    """`UUID(bytes=raw)` without its argument checks, at a third of the cost."""
    value = _new_uuid(UUID)
    _set(value, "int", int.from_bytes(raw, "big"))
    _set(value, "is_safe", _unknown_safety)
    return value


def short() -> NoReturn:
    raise Malformed(TRUNCATED)


def null(field: str) -> NoReturn:
    raise Malformed(f"{field} is null, which this version does not allow")


def negative(field: str, length: int) -> NoReturn:
    raise Malformed(f"{field} has length {length}")


def count_too_large(field: str, count: int, left: int) -> NoReturn:
    raise Malformed(f"{field} claims {count} elements in {left} bytes")


def out_of_order(tag: int, last: int) -> NoReturn:
    raise Malformed(f"tag {tag} follows tag {last}")


def tag_size(field: str, size: int) -> NoReturn:
    raise Malformed(f"tagged field {field} does not have the {size} bytes it claims")
