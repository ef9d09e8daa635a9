"""The offset map: which records beyond a committed offset are already done.

A parallel consumer finishes records out of order. Kafka stores one offset per partition, the first that is
not done, with up to 4,096 bytes of metadata. The metadata holds this map. So a restart processes only
unfinished records again, and a lag scaler can subtract records that are done behind a slow one.

    "PEN1" form base64url(payload)            no padding; form is one letter, below
    payload = varint(base) varint(length) body crc32(everything before it, 4 bytes, big-endian)

`base` is the committed offset the map belongs to. Next to any other offset (a tool moved the group, a
mirror translated it) the map is void. The map covers the offsets base … base+length-1. Each is either
*unfinished* or done; an offset without a record (compacted away, aborted, a transaction marker) counts as
done. Offsets from base+length on were not received yet.

    form  body
    r     varint run lengths, unfinished and done alternating, starting with unfinished (may be 0)
    b     one bit per offset, 1 = done, lowest bit first, ceil(length / 8) bytes
    R, B  the same, deflated (RFC 1951, no header)

A writer picks the shortest form. Varints are unsigned LEB128, as in protobuf.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAGIC: Final = "PEN1"
METADATA_CHARS_MAX: Final = 4096  # Kafka's default for offset.metadata.max.bytes
_FRAME_BYTES: Final = 4 + 2 * 10  # checksum, and the two leading varints at their longest
BODY_BYTES_MAX: Final = (METADATA_CHARS_MAX - len(MAGIC) - 1) * 3 // 4 - _FRAME_BYTES
_DEFLATE_FROM_BYTES: Final = 48  # deflating less gains nothing
_LENGTH_MAX: Final = 1 << 40  # a longer map is corrupt
_UNFINISHED_MAX: Final = 1 << 20  # unfinished records; more mean that the map is corrupt


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Which of the offsets base … end-1 of one partition are unfinished."""

    base: int
    end: int
    unfinished: frozenset[int]

    def done(self, offset: int) -> bool:
        """Whether the record at this offset is done and must not be processed again."""
        return self.base <= offset < self.end and offset not in self.unfinished

    @property
    def done_count(self) -> int:
        """Offsets beyond the committed one that are done: subtract them from the lag."""
        return self.end - self.base - len(self.unfinished)


def encode(base: int, end: int, unfinished: Sequence[int]) -> str:
    """The commit metadata for offset `base`; empty if no offset beyond it is done.

    `unfinished` is ascending and within base … end-1. The caller stays within `fits`. A map that does
    not fit is refused rather than truncated, since a transaction depends on every bit of it.
    """
    if end <= base or end - base == len(unfinished):
        return ""
    runs = _runs(base, end, unfinished)
    candidates = [("r", b"".join(map(_varint, runs)))]
    if end - base <= 8 * BODY_BYTES_MAX:
        candidates.append(("b", _bits(base, end, unfinished)))
    for form, body in tuple(candidates):
        if len(body) >= _DEFLATE_FROM_BYTES:
            candidates.append((form.upper(), _deflate(body)))
    form, body = min(candidates, key=lambda candidate: len(candidate[1]))
    payload = _varint(base) + _varint(end - base) + body
    payload += zlib.crc32(payload).to_bytes(4, "big")
    text = MAGIC + form + base64.urlsafe_b64encode(payload).decode("ascii").rstrip("=")
    if len(text) > METADATA_CHARS_MAX:
        raise ValueError(f"offset map of {len(text)} characters, {METADATA_CHARS_MAX} are allowed")
    return text


def decode(committed: int, metadata: str | None) -> OffsetMap | None:
    """The map stored with the offset `committed`; None if there is none, or it is void or corrupt.

    None is always safe: everything from `committed` on is then processed again.
    """
    if not metadata or not metadata.startswith(MAGIC) or len(metadata) <= len(MAGIC):
        return None
    form, text = metadata[len(MAGIC)], metadata[len(MAGIC) + 1 :]
    try:
        payload = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if zlib.crc32(payload[:-4]).to_bytes(4, "big") != payload[-4:]:
            return None
        base, at = _read_varint(payload, 0)
        length, at = _read_varint(payload, at)
        if base != committed or not 0 < length <= _LENGTH_MAX:
            return None
        body = payload[at:-4]
        if form in "RB":
            body = _inflate(body)
        unfinished = _from_runs(base, length, body) if form in "rR" else _from_bits(base, length, body)
    except (ValueError, IndexError, binascii.Error, zlib.error):
        return None
    return OffsetMap(base, base + length, frozenset(unfinished)) if form in "rRbB" else None


def fits(span: int, unfinished: int) -> bool:
    """Whether a map over `span` offsets with this many unfinished fits, in any pattern.

    Either one bit per offset fits, or the runs do: n unfinished records make at most 2n+1
    runs, and a run of length L takes at most k + L/(128**k - 1) bytes for every k.
    """
    if span <= 8 * BODY_BYTES_MAX:
        return True
    runs = 2 * unfinished + 1
    return any(k * runs + span // (128**k - 1) + 1 <= BODY_BYTES_MAX for k in (1, 2, 3, 4, 5))


def _runs(base: int, end: int, unfinished: Sequence[int]) -> list[int]:
    runs: list[int] = []
    at = base  # where the run being built starts
    following = base  # the offset that would extend a run of unfinished ones
    for offset in unfinished:
        if offset != following:
            runs += (following - at, offset - following)
            at = offset
        following = offset + 1
    runs.append(following - at)
    if end > following:
        runs.append(end - following)
    return runs


def _bits(base: int, end: int, unfinished: Iterable[int]) -> bytes:
    length = end - base
    body = bytearray(b"\xff" * (length // 8))
    if length % 8:
        body.append((1 << length % 8) - 1)
    for offset in unfinished:
        body[(offset - base) >> 3] &= ~(1 << ((offset - base) & 7))
    return bytes(body)


def _from_runs(base: int, length: int, body: bytes) -> Iterator[int]:
    at, position, is_done, count = 0, 0, False, 0
    while at < len(body):
        run, at = _read_varint(body, at)
        if not is_done:
            count += run
            if count > _UNFINISHED_MAX:
                raise ValueError(f"more than {_UNFINISHED_MAX} unfinished offsets")
            yield from range(base + position, base + position + run)
        position += run
        is_done = not is_done
    if position != length:
        raise ValueError(f"runs cover {position} offsets of {length}")


def _from_bits(base: int, length: int, body: bytes) -> Iterator[int]:
    if len(body) != -(-length // 8):
        raise ValueError(f"{len(body)} bytes of bits for {length} offsets")
    for index in range(length):
        if not body[index >> 3] >> (index & 7) & 1:
            yield base + index


def _deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(level=6, wbits=-15)
    return packer.compress(body) + packer.flush()


def _inflate(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=-15)
    plain = unpacker.decompress(body, 1 << 22)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("deflated map is too long or truncated")
    return plain


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than ten bytes")
