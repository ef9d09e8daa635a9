"""The log of a partition, put together from stored segments that may overlap.

Segments of the tier and of the archive cover the same offsets, and an archiver that was replaced may have
stored some twice. Where segments disagree, an unclean election has replaced the log: the higher leader epoch
wins, and whatever of a lower epoch follows it was truncated. Offsets that no segment covers are holes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from penstock.shadow.epoch_history import NO_EPOCHS, EpochHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.tier.format import Manifest


class Piece(NamedTuple):
    """A stretch of one segment."""

    manifest: Manifest
    first: int
    last: int  # inclusive


class Hole(NamedTuple):
    first: int
    last: int  # inclusive


@dataclass(frozen=True, slots=True)
class Chain:
    pieces: tuple[Piece, ...] = ()
    empty_at: int = 0  # where a log without records begins and ends

    @property
    def start(self) -> int:
        return self.pieces[0].first if self.pieces else self.empty_at

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.pieces[-1].last + 1 if self.pieces else self.empty_at

    @property
    def holes(self) -> tuple[Hole, ...]:
        between = zip(self.pieces, self.pieces[1:])
        return tuple(Hole(a.last + 1, b.first - 1) for a, b in between if b.first > a.last + 1)

    @property
    def log_bytes(self) -> int:
        """Of the segments that are read; overlaps count in full."""
        return sum({piece.manifest.segment_id: piece.manifest.log_bytes for piece in self.pieces}.values())

    @property
    def oldest_ms(self) -> int:
        """The time of the segment that retention would delete first."""
        return min((piece.manifest.max_timestamp_ms for piece in self.pieces), default=-1)

    @property
    def epochs(self) -> EpochHistory:
        """The leader epochs of the log."""
        history = NO_EPOCHS
        for piece in self.pieces:
            runs = [(epoch, max(start, piece.first)) for epoch, start in piece.manifest.leader_epochs]
            for (epoch, start), (_, following) in zip(runs, [*runs[1:], (-1, piece.last + 1)]):
                if start < following and start <= piece.last:
                    history = history.begun(epoch, start)
        return history

    def from_offset(self, offset: int) -> Iterator[Piece]:
        """The pieces from the one with this offset on."""
        for piece in self.pieces:
            if piece.last >= offset:
                yield piece


class _Run(NamedTuple):
    """Part of a segment with one leader epoch. The heap has the best first."""

    rank: tuple[int, int, str]  # highest epoch, then furthest end
    first: int
    last: int
    epoch: int
    manifest: Manifest


def chain_of(manifests: Iterable[Manifest], *, until_ms: int | None = None) -> Chain:
    """The chain, of what was stored up to a time."""
    runs = sorted(
        (run for one in manifests if until_ms is None or one.event_timestamp_ms <= until_ms
         for run in _runs(one)),
        key=lambda run: (run.first, run.rank),
    )  # fmt: skip
    pieces: list[Piece] = []
    active: list[_Run] = []
    position, highest, index = 0, -1, 0
    while index < len(runs) or active:
        while active and active[0].last < position:
            heapq.heappop(active)
        if not active:
            if index == len(runs):
                break
            position = max(position, runs[index].first)
        while index < len(runs) and runs[index].first <= position:
            if runs[index].last >= position:
                heapq.heappush(active, runs[index])
            index += 1
        if not active:
            continue
        best = active[0]
        if best.last < position or best.epoch < highest:
            # A lower epoch after a higher one was truncated.
            heapq.heappop(active)
            continue
        highest = best.epoch
        # A run that begins inside may win from there on; otherwise this one is used to its end.
        last = best.last
        for run in islice(runs, index, None):
            if run.first > best.last:
                break
            if run.epoch > best.epoch:
                last = run.first - 1
                break
        _add(pieces, Piece(best.manifest, position, last))
        position = last + 1
    return Chain(tuple(pieces))


def _runs(manifest: Manifest) -> Iterator[_Run]:
    starts = [max(start, manifest.base_offset) for _, start in manifest.leader_epochs]
    starts = [manifest.base_offset, *starts[1:]]
    for (epoch, _), first, following in zip(
        manifest.leader_epochs, starts, [*starts[1:], manifest.end_offset + 1]
    ):
        if first < following:
            rank = (-epoch, -manifest.end_offset, manifest.segment_id)
            yield _Run(rank, first, following - 1, epoch, manifest)


def _add(pieces: list[Piece], piece: Piece) -> None:
    before = pieces[-1] if pieces else None
    if before and before.manifest is piece.manifest and before.last + 1 == piece.first:
        pieces[-1] = Piece(piece.manifest, before.first, piece.last)
    else:
        pieces.append(piece)
