"""The batch digest: one hash of a stretch of log that every copy of it has in common.

It is the SHA-256 over base offset, last offset and CRC of each batch, in order. The leader epoch and the
place of a batch are not part of it, so a segment in the object store, a replica, a mirror and a backup of
the same records have the same digest. Cutting or joining stretches at batch boundaries does not change it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.errors.wire import BatchCorrupt
from penstock.wire.records import batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_span = struct.Struct(">qqI")


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """What identifies a batch: its offsets and the CRC of its content."""

    base_offset: int
    last_offset: int
    crc: int


def spans(data: bytes | memoryview, *, verify: bool = False) -> Iterator[BatchSpan]:
    """The spans of the complete batches in `data`; with `verify`, a batch with a wrong CRC is an error."""
    for batch in batches(data):
        if verify and not batch.is_intact:
            raise BatchCorrupt(offset=batch.base_offset, reason="its CRC does not match")
        yield BatchSpan(batch.base_offset, batch.last_offset, batch.crc)


class BatchDigest:
    """Accumulates spans in the order of the log."""

    __slots__ = ("_hash", "count")

    def __init__(self, initial: Iterable[BatchSpan] = ()) -> None:
        self._hash = hashlib.sha256()
        self.count = 0
        for span in initial:
            self.add(span)

    def add(self, span: BatchSpan) -> None:
        self._hash.update(_span.pack(span.base_offset, span.last_offset, span.crc))
        self.count += 1

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
