"""What the service's process and the sampler's say to each other, over a socket that only they have.

A frame is its length, one byte for its kind, and a body. Bodies are JSON, but for the settings and
a failure, which are pickled: both ends are this program, and nobody else can write to the socket.
"""

from __future__ import annotations

import asyncio
import struct
from enum import IntEnum
from typing import Final, NamedTuple

FRAME_BYTES_MAX: Final = 256 << 20  # the metrics page of a hundred thousand watches fits
_head: Final = struct.Struct(">IB")


class Kind(IntEnum):
    SETTINGS = 1  # to the sampler, first of all
    WISH = 2  # to the sampler: (scaled object, metadata, when it was called) is asked for
    PAGE = 3  # to the sampler: the metrics page is wanted; from it: the page
    READY = 4  # from the sampler, all below: it begins
    FAILED = 5  # it cannot begin: the error
    TOLD = 6  # [watch key, standing] of some watches
    UNSEEN = 7  # by cluster: why it cannot be sampled
    BEAT = 8  # it lives


class Frame(NamedTuple):
    kind: Kind
    body: bytes


def framed(kind: Kind, body: bytes = b"") -> bytes:
    return _head.pack(len(body), kind) + body


async def next_frame(reader: asyncio.StreamReader) -> Frame | None:
    """None when the other side is gone."""
    try:
        size, kind = _head.unpack(await reader.readexactly(_head.size))
        assert size <= FRAME_BYTES_MAX, "a frame of another program"
        return Frame(Kind(kind), await reader.readexactly(size))
    except (asyncio.IncompleteReadError, OSError):
        return None
