"""Functions that generated splicers call at run time.

The generated source handles the common case inline (a length of one byte, no tagged fields, nothing
omitted) and calls these for the rest, so they favour clarity over speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from penstock.model.errors.plans import GrowthBroken, NameRefused, RequestElementsTooMany, ResponseRefused
from penstock.wire.codec_runtime import UVARINT_BYTES_MAX, UVARINTS, Malformed, short, uvarint, uvarint_rest

if TYPE_CHECKING:
    from penstock.wire.field_rules import Kind

BLANK_TAG: Final = 100  # no definition uses it, so every client skips it
PROLOGUE_BYTES_MAX: Final = 128 * 1024  # of a streamed frame, up to the point where its new size is known
ROWS_MAX: Final = 100_000  # partitions observed in one streamed frame
TAIL_BYTES_MAX: Final = 64 * 1024  # of the broker addresses of a streamed frame


def uvarint_on(b: bytes, p: int, first: int) -> tuple[int, int]:
    """As `uvarint_rest`, unrolled for two and three bytes: the usual lengths of records."""
    second = b[p]
    if second < 128:
        return first - 128 + (second << 7), p + 1
    third = b[p + 1]
    if third < 128:
        return first - 128 + (second - 128 << 7) + (third << 14), p + 2
    return uvarint_rest(b, p, first)


def tag_count(b: bytes, p: int, end: int) -> int:
    """How many tagged fields the section at `p` claims to have."""
    count = b[p] if b[p] < 128 else uvarint_on(b, p + 1, b[p])[0]
    if count > end - p:
        short()
    return count


def skip_tags(b: bytes, p: int, end: int) -> int:
    """The end of a non-empty section of tagged fields that starts at `p`."""
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
    """Replace the size of a tagged field, in `o[k][a:c]`; its last `tail` bytes are not in `o` yet."""
    first = o[k]
    total = len(first) - c + tail + sum(map(len, o[k + 1 :]))
    o[k] = first[:a] + uvarint(total) + first[c:]


def recounted(o: list[bytes], k: int, a: int, c: int, count: bytes) -> None:
    """Replace the count of an array that lost elements, in `o[k][a:c]`."""
    o[k] = o[k][:a] + count + o[k][c:]


def compact(value: bytes) -> bytes:
    size = len(value) + 1
    return (UVARINTS[size] if size < 1024 else uvarint(size)) + value


def padded(value: int, width: int) -> bytes:
    """An unsigned varint of exactly `width` bytes, longer than necessary if need be."""
    if width > UVARINT_BYTES_MAX:
        raise Malformed(f"a length of {width - 1} bytes leaves no room for a longer name")
    out = bytearray(width)
    for index in range(width - 1):
        out[index] = value & 0x7F | 0x80
        value >>= 7
    out[-1] = value
    return bytes(out)


def fitted(text: bytes | None, size: int) -> bytes:
    """A text cut or padded with spaces to the size that was announced."""
    if text is None:
        return b" " * size
    if len(text) > size:
        text = text[:size].decode(errors="ignore").encode()
    return text.ljust(size)


def blank_field(tag_width: int, size: bytes) -> bytes:
    """Tag and size of an unknown field, which replaces one whose size must not change."""
    return padded(BLANK_TAG, tag_width) + size


def hidden_tail(tail: bytes) -> bytes:
    """The end of a frame, from its array of addresses on, without the addresses and of the same size.

    The array becomes empty, and an unknown tagged field takes up its bytes. The client then fetches the
    addresses by Metadata, as it did before KIP-951.
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


def trailing(end: int, p: int) -> NoReturn:
    raise Malformed(f"{end - p} bytes follow its last field" if p < end else "its last field exceeds it")


def tag_size(path: str) -> NoReturn:
    raise Malformed(f"tagged field {path} does not have the size it claims")


def too_long(what: str, limit: int) -> NoReturn:
    raise Malformed(f"its {what} is longer than {limit}")


def too_many(path: str, limit: int) -> NoReturn:
    raise RequestElementsTooMany(path=path, limit=limit)


def growth_broken(got: int, expected: int) -> NoReturn:
    raise GrowthBroken(got=got, expected=expected)


def refuse_request(path: str, kind: Kind) -> NoReturn:
    raise NameRefused(path=path, kind=kind)


def refuse_response(path: str, kind: Kind) -> NoReturn:
    raise ResponseRefused(path=path, kind=kind)
