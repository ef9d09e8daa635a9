"""A partition that a shadow leads: a window of batches in memory, and its term of leadership.

Batches get the destination's leader epoch in bytes 12 to 15, which no CRC covers; nothing else changes
and nothing is decoded. Batches that every in-sync replica has leave the window. A follower further behind
is served by `older`, which fetches from where the records came from.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors.shadow import PartitionNotLed
from penstock.shadow.epoch_history import NO_EPOCHS, EpochHistory
from penstock.shadow.leadership import Leadership
from penstock.shadow.responses import LeaderView, Truncation
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.kafka.metadata_image import PartitionId, PartitionState

    Older = Callable[[int, int], Awaitable[Sequence["RawBatch"]]]

EPOCH_AT: Final = 12
WINDOW_BYTES_MAX: Final = 16 << 20
_epoch = struct.Struct(">i")


class RawBatch(NamedTuple):
    base_offset: int
    last_offset: int
    raw: bytes | memoryview


def with_epoch(raw: bytes | memoryview, epoch: int) -> bytes:
    """The batch with this leader epoch."""
    return b"".join((raw[:EPOCH_AT], _epoch.pack(epoch), raw[EPOCH_AT + _epoch.size :]))


class BatchWindow:
    """Consecutive batches, oldest first: the whole log from `covers_from` on."""

    def __init__(self, covers_from: int) -> None:
        self.covers_from = covers_from
        self._lasts: list[int] = []
        self._batches: list[RawBatch] = []
        self.size = 0

    def append(self, batch: RawBatch) -> None:
        self._lasts.append(batch.last_offset)
        self._batches.append(batch)
        self.size += len(batch.raw)

    def read(self, offset: int, bytes_max: int) -> list[bytes | memoryview]:
        """Batches from the one with this offset: at least one, more while they fit."""
        position = bisect_left(self._lasts, offset)
        parts: list[bytes | memoryview] = []
        size = 0
        for batch in self._batches[position:]:
            size += len(batch.raw)
            if parts and size > bytes_max:
                break
            parts.append(batch.raw)
        return parts

    def drop_below(self, offset: int) -> None:
        """Forget batches that end below this offset."""
        position = bisect_left(self._lasts, offset)
        if position:
            self.covers_from = self._lasts[position - 1] + 1
        self.size -= sum(len(batch.raw) for batch in self._batches[:position])
        del self._lasts[:position], self._batches[:position]


@dataclass(slots=True)
class LedPartition:
    id: PartitionId
    topic: str
    start: int
    end: int
    older: Older
    epochs: EpochHistory = NO_EPOCHS
    window: BatchWindow = field(init=False)
    leadership: Leadership | None = None
    truncation: Truncation | None = None
    leftover: Truncation | None = None  # beyond what every in-sync replica had when it was attached
    truncating: bool = False  # followers may still have what must go; nothing is appended meanwhile
    sent_watermarks: dict[int, int] = field(default_factory=dict)  # replica → the last one sent to it
    guarded: int = 0  # responses withheld
    known_watermark: int | None = None  # of an earlier term
    produce_error: Code = Code.POLICY_VIOLATION  # to producers

    def __post_init__(self) -> None:
        self.window = BatchWindow(self.end)

    def __str__(self) -> str:
        return f"{self.topic}-{self.id.partition}"

    @property
    def leader_epoch(self) -> int:
        return self.leadership.state.leader_epoch if self.leadership else -1

    @property
    def high_watermark(self) -> int:
        return self.leadership.high_watermark if self.leadership else self.start

    @property
    def has_room(self) -> bool:
        return self.window.size < WINDOW_BYTES_MAX

    def begin_term(self, state: PartitionState) -> None:
        """Lead in this epoch, from the high watermark of an earlier term if it is known."""
        self.end_term()
        watermark = self.start if self.known_watermark is None else max(self.start, self.known_watermark)
        self.leadership = Leadership(state, watermark, established=self.known_watermark is not None)
        self.sent_watermarks.clear()

    def end_term(self) -> None:
        if self.leadership is not None and self.leadership.established:
            self.known_watermark = self.leadership.high_watermark
        self.leadership = None

    def view(self) -> LeaderView:
        term = self.leadership
        if term is None:
            return LeaderView(leads=False, leader_epoch=-1, start=0, end=0, high_watermark=0)
        ends = term.ends
        behind = any(ends[r] > self.end for r in term.in_sync if r in ends)
        return LeaderView(
            leads=True,
            leader_epoch=term.state.leader_epoch,
            start=self.start,
            end=self.end,
            high_watermark=max(self.start, min(term.high_watermark, self.end)),
            epochs=self.epochs,
            ready=term.ready and not behind,
            acknowledged=ends,
            truncation=self._truncation_now(term.state.leader_epoch),
            leftover=self.leftover,
        )

    def append(self, batches: Sequence[RawBatch], leader_epoch: int) -> None:
        """Add batches to the end of the log, in this term of leadership."""
        if leader_epoch != self.leader_epoch or self.truncating:
            raise PartitionNotLed(partition=self, epoch=leader_epoch)
        for batch in batches:
            assert batch.last_offset >= self.end, f"batch {batch.base_offset} is below the end {self.end}"
            if self.epochs.latest != leader_epoch:
                self.epochs = self.epochs.begun(leader_epoch, max(self.start, batch.base_offset, self.end))
            raw = with_epoch(batch.raw, leader_epoch)
            self.window.append(RawBatch(batch.base_offset, batch.last_offset, raw))
            self.end = batch.last_offset + 1

    def _truncation_now(self, leader_epoch: int) -> Truncation | None:
        """What may go. Nothing was appended since it was recorded, so all terms before this one count: a
        real broker that led in between notes its epoch although it has no record of it."""
        if self.truncation is None or not self.truncating:
            return self.truncation
        return Truncation(max(self.truncation.epoch, leader_epoch - 1), self.truncation.offset)

    def known_end(self, end: int) -> int:
        """A follower's end, without what a recorded truncation removes from it."""
        return min(end, self.end) if self.truncating else end

    def finish_truncation(self) -> bool:
        """True once, when every in-sync replica has removed what must go."""
        if not self.truncating or self.leadership is None or not self.leadership.truncated:
            return False
        self.truncation = self._truncation_now(self.leader_epoch)
        self.truncating = False
        return True

    def raise_start(self, start: int) -> None:
        """Follow the source's log start, never above the high watermark."""
        self.start = max(self.start, min(start, self.high_watermark))

    def drop_acknowledged(self) -> None:
        """Forget what every real in-sync replica has."""
        if self.leadership is not None and self.leadership.ready:
            self.window.drop_below(self.leadership.high_watermark)

    async def read(self, offset: int, bytes_max: int) -> list[bytes | memoryview]:
        """Batches from `offset`, with the leader epochs they were first written with."""
        if offset >= self.end:
            return []
        limit = self.window.covers_from
        if offset >= limit:
            return self.window.read(offset, bytes_max)
        older = await self.older(offset, bytes_max)
        if older and older[0].last_offset >= limit:
            return self.window.read(limit, bytes_max)  # compaction removed all that was below the window
        return [
            with_epoch(batch.raw, self.epochs.at(max(batch.base_offset, self.start)))
            for batch in older
            if batch.last_offset < limit
        ]
