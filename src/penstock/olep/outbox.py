"""The outgoing events of a batch as one value, so that a batch adds one row to the outbox.

Format: for each event, two bytes for the length of its log's name, four each for the lengths of key and
value, then the three. Only the executor that wrote it reads it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.olep.fold import Outgoing

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD = struct.Struct(">HII")


def pack(outgoing: Iterable[Outgoing]) -> bytes:
    parts: list[bytes] = []
    for log, key, value in outgoing:
        name = log.encode()
        parts += (_HEAD.pack(len(name), len(key), len(value)), name, key, value)
    return b"".join(parts)


def unpack(data: bytes) -> list[Outgoing]:
    outgoing, at = [], 0
    while at < len(data):
        name, key, value = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        log_end, key_end, end = at + name, at + name + key, at + name + key + value
        outgoing.append(Outgoing(data[at:log_end].decode(), data[log_end:key_end], data[key_end:end]))
        at = end
    return outgoing
