"""The few functions that generated splicers call at run time.

The generated source does the common case inline (a length of one byte, no tagged fields, nothing
left out) and comes here for the rest, so these are written for clearness first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from penstock.model.errors.plans import AnswerRefused, GrowthBroken, NameRefused
from penstock.wire.primitives import UVARINT_BYTES_MAX, UVARINTS, Malformed, uvarint, uvarint_rest

if TYPE_CHECKING:
    from penstock.wire.rules import Kind

BLANK_TAG: Final = 100  # no definition uses it, so every client passes over it
PROLOGUE_BYTES_MAX: Final = 128 * 1024  # of a streamed frame, up to where its new size is known
ROWS_MAX: Final = 100_000  # partitions that one streamed frame may report
TAIL_BYTES_MAX: Final = 64 * 1024  # of a streamed frame's broker addresses


def uvarint_on(b: bytes, p: int, first: int) -> tuple[int, int]:
    """An unsigned varint whose first byte had its high bit set; unrolled, since record lengths have two
    or three bytes."""
    second = b[p]
    if second < 128:
        return first - 128 + (second << 7), p + 1
    third = b[p + 1]
    if third < 128:
        return first - 128 + (second - 128 << 7) + (third << 14), p + 2
    return uvarint_rest(b, p, first)


def skip_tags(b: bytes, p: int, end: int) -> int:
    """Past a section of tagged fields that begins at `p` and is not empty."""
    count = b[p]
    p += 1
    if count > 127:
        count, p = uvarint_on(b, p, count)
    for _ in range(count):
        tag = b[p]
        p += 1
        if tag > 127:
            _, p = uvarint_on(b, p, tag)
        size = b[p]
        p += 1
        if size > 127:
            size, p = uvarint_on(b, p, size)
        p += size
        if p > end:
            short()
    return p


def resized(o: list[bytes], k: int, a: int, c: int, tail: int) -> None:
    """Write the new size of a tagged field: it stood in `o[k]` from `a` to `c`, and ends `tail` bytes on."""
    first = o[k]
    total = len(first) - c + tail + sum(map(len, o[k + 1 :]))
    o[k] = first[:a] + uvarint(total) + first[c:]


def recounted(o: list[bytes], k: int, a: int, c: int, count: bytes) -> None:
    """Write the new count of an array that lost elements; the old one stood in `o[k]` from `a` to `c`."""
    o[k] = o[k][:a] + count + o[k][c:]


def compact(value: bytes) -> bytes:
    size = len(value) + 1
    return (UVARINTS[size] if size < 1024 else uvarint(size)) + value


def padded(value: int, width: int) -> bytes:
    """An unsigned varint of exactly `width` bytes, over-long if need be."""
    if width > UVARINT_BYTES_MAX:
        raise Malformed(f"a length that takes {width - 1} bytes leaves no room for a longer name")
    out = bytearray(width)
    for index in range(width - 1):
        out[index] = value & 0x7F | 0x80
        value >>= 7
    out[-1] = value
    return bytes(out)


def fitted(text: bytes | None, size: int) -> bytes:
    """A text cut or padded with blanks to the size that was announced for it."""
    if text is None:
        return b" " * size
    if len(text) > size:
        text = text[:size].decode(errors="ignore").encode()
    return text.ljust(size)


def blank_field(tag_width: int, size: bytes) -> bytes:
    """The start of a tagged field that nobody reads, in the place of one whose size cannot change."""
    return padded(BLANK_TAG, tag_width) + size


def hidden_tail(tail: bytes) -> bytes:
    """The end of a frame from its array of addresses on, without them and of the same size.

    The array becomes empty; what it took goes to a tagged field that nobody reads. The client then
    asks Metadata for the addresses, as it did before brokers volunteered them.
    """
    if tail[0] <= 1:
        return tail
    for width in range(1, UVARINT_BYTES_MAX + 1):
        filler = len(tail) - 3 - width
        if filler < 1 << (7 * width):
            break
    if filler < 0:
        short()
    return bytes((1, 1, BLANK_TAG)) + padded(filler, width) + bytes(filler)


def short() -> NoReturn:
    raise Malformed("it ends before its last field does")


def trailing(end: int, p: int) -> NoReturn:
    raise Malformed(f"{end - p} bytes follow its last field" if p < end else "its last field ends behind it")


def negative(path: str, length: int) -> NoReturn:
    raise Malformed(f"{path} has length {length}")


def null(path: str) -> NoReturn:
    raise Malformed(f"{path} is null, which this version does not allow")


def count_lies(path: str, count: int, left: int) -> NoReturn:
    raise Malformed(f"{path} claims {count} elements, {left} bytes are left")


def tag_size(path: str) -> NoReturn:
    raise Malformed(f"tagged field {path} is not of the size it claims")


def too_long(what: str, limit: int) -> NoReturn:
    raise Malformed(f"its {what} is longer than {limit}")


def grew(got: int, expected: int) -> NoReturn:
    raise GrowthBroken(got=got, expected=expected)


def refuse_request(path: str, kind: Kind) -> NoReturn:
    raise NameRefused(path=path, kind=kind)


def refuse_answer(path: str, kind: Kind) -> NoReturn:
    raise AnswerRefused(path=path, kind=kind)
