"""Positions in a log, and the opaque tokens that carry them.

A position maps partitions, of topics known by id, to the next offset to read. Partitions advance
independently, so a position is a vector and `covers` is a partial order. `join` is what two readers have
read between them, `meet` what both have. A partition that a position does not name is at its beginning.

A token is for clients: version, body and checksum in base64url. It contains topic ids, so a token of a
topic that was deleted and recreated is refused instead of misread.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from zlib import crc32

from penstock.model.errors.olep import TokenForeign, TokenUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VERSION: Final = 1
TOKEN_LENGTH_MAX: Final = 65_536  # characters: some 4,000 partitions
_TOPIC_ID_BYTES: Final = 16
_OFFSET_BITS_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class Position:
    """topic id → partition → next offset."""

    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def at(cls, topic_id: str, partition: int, offset: int) -> Self:
        return cls({topic_id: {partition: offset}})

    def of(self, topic_id: str, partition: int) -> int:
        return self.offsets.get(topic_id, {}).get(partition, 0)

    def covers(self, other: Position) -> bool:
        """Whether every offset is at least that of `other`."""
        return all(
            self.of(topic, partition) >= offset
            for topic, partitions in other.offsets.items()
            for partition, offset in partitions.items()
        )

    def join(self, other: Position) -> Position:
        merged = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        for topic, partitions in other.offsets.items():
            into = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                into[partition] = max(offset, into.get(partition, 0))
        return Position(merged)

    def meet(self, other: Position) -> Position:
        return Position(
            {
                topic: {p: min(self.of(topic, p), other.of(topic, p)) for p in partitions}
                for topic, partitions in self.offsets.items()
                if topic in other.offsets
            }
        )

    def of_topic(self, topic: str, topic_id: str) -> Mapping[int, int]:
        """The offsets of one topic. Raises TokenForeign if the position names only other topics."""
        if self.offsets and topic_id not in self.offsets:
            raise TokenForeign(topic_id=next(iter(self.offsets)), topic=topic, actual=topic_id)
        return self.offsets.get(topic_id, {})

    def token(self) -> str:
        body = bytearray([TOKEN_VERSION])
        _put_varint(body, len(self.offsets))
        for topic in sorted(self.offsets):
            body += _topic_bytes(topic)
            partitions = self.offsets[topic]
            _put_varint(body, len(partitions))
            for partition in sorted(partitions):
                _put_varint(body, partition)
                _put_varint(body, partitions[partition])
        body += crc32(body).to_bytes(4, "big")
        return base64.urlsafe_b64encode(body).decode().rstrip("=")

    @classmethod
    def parse(cls, token: str) -> Self:
        """Raises TokenUnreadable for anything that `token` did not return."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise TokenUnreadable(reason=f"it is longer than {TOKEN_LENGTH_MAX} characters")
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise TokenUnreadable(reason="it is not base64url") from None
        body, checksum = data[:-4], data[-4:]
        if len(data) < 6 or crc32(body) != int.from_bytes(checksum, "big"):
            raise TokenUnreadable(reason="its checksum is wrong")
        if body[0] != TOKEN_VERSION:
            reason = f"it has version {body[0]}, this program reads version {TOKEN_VERSION}"
            raise TokenUnreadable(reason=reason)
        return cls(_Reader(body).offsets())


def _topic_bytes(topic_id: str) -> bytes:
    try:
        data = base64.urlsafe_b64decode(topic_id + "==")
    except binascii.Error:
        data = b""
    if len(data) != _TOPIC_ID_BYTES:
        raise ValueError(f"{topic_id!r} is not a topic id")
    return data


def _put_varint(body: bytearray, value: int) -> None:
    if value < 0 or value.bit_length() > _OFFSET_BITS_MAX:
        raise ValueError(f"{value} is neither a partition nor an offset")
    while value > 0x7F:
        body.append(value & 0x7F | 0x80)
        value >>= 7
    body.append(value)


class _Reader:
    """Reads what `token` wrote. Checks everything: a valid checksum may come from another program."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 1

    def offsets(self) -> dict[str, dict[int, int]]:
        offsets: dict[str, dict[int, int]] = {}
        for _ in range(self._varint()):
            topic = base64.urlsafe_b64encode(self._take(_TOPIC_ID_BYTES)).decode().rstrip("=")
            offsets[topic] = {self._varint(): self._varint() for _ in range(self._varint())}
        if self._at != len(self._body):
            raise TokenUnreadable(reason="it has extra bytes at its end")
        return offsets

    def _take(self, count: int) -> bytes:
        taken = self._body[self._at : self._at + count]
        if len(taken) != count:
            raise TokenUnreadable(reason="it is truncated")
        self._at += count
        return taken

    def _varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= _OFFSET_BITS_MAX:
                raise TokenUnreadable(reason="a number in it is too large")
