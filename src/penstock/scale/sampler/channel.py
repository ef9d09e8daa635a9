"""Frames between the service's process and the sampler's, over a private socket pair.

A frame is its length, one byte for its kind, and a body. Bodies are JSON, except settings and
failures, which are pickled: both ends run this program, and no other process can write to the socket.
"""

from __future__ import annotations

import asyncio
import struct
from enum import IntEnum
from typing import Final, NamedTuple

FRAME_BYTES_MAX: Final = 256 << 20  # enough for the metrics of a hundred thousand watches
_head: Final = struct.Struct(">IB")


class Kind(IntEnum):
    SETTINGS = 1  # to the sampler: the first frame
    WATCH = 2  # to the sampler: watch (scaled object, metadata, time of the call)
    METRICS = 3  # to the sampler: a request for its metrics; from it: their text
    READY = 4  # from the sampler, as all below: it has started
    FAILED = 5  # it could not start: the error
    VERDICTS = 6  # [watch key, summary] of some watches
    UNREACHABLE = 7  # by cluster: why it cannot be sampled
    HEARTBEAT = 8  # it is alive


class Frame(NamedTuple):
    kind: Kind
    body: bytes


def encode_frame(kind: Kind, body: bytes = b"") -> bytes:
    return _head.pack(len(body), kind) + body


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None if the other side has closed the socket."""
    try:
        size, kind = _head.unpack(await reader.readexactly(_head.size))
        assert size <= FRAME_BYTES_MAX, "not a frame of this program"
        return Frame(Kind(kind), await reader.readexactly(size))
    except (asyncio.IncompleteReadError, OSError):
        return None
