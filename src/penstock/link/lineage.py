"""The lineage of a mirrored partition: which leader epoch of the source became which one here, and where.

Offsets alone cannot show whether both logs are the same: after an unclean election the source may have
other records at the same offsets. Its leader epochs show it. A truncation that follows from it is recorded
here before any replica truncates, with the epoch of the records that must go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.shadow.epoch_history import NO_EPOCH, NO_EPOCHS, EpochHistory, EpochStart
from penstock.shadow.responses import Truncation

if TYPE_CHECKING:
    from collections.abc import Mapping


class LineageEntry(NamedTuple):
    start: int  # the first offset
    source_epoch: int
    destination_epoch: int


@dataclass(frozen=True, slots=True)
class Lineage:
    entries: tuple[LineageEntry, ...] = ()
    truncation: Truncation | None = None
    truncating_to: int | None = None  # replicas may still have records from here on, which must go

    @property
    def last(self) -> LineageEntry | None:
        return self.entries[-1] if self.entries else None

    @property
    def newest_epoch(self) -> int:
        """The last leader epoch here that records may have; −1 if none is recorded."""
        last = self.last.destination_epoch if self.last is not None else NO_EPOCH
        return max(last, self.truncation.epoch if self.truncation is not None else NO_EPOCH)

    def continues(self, source_epoch: int, destination_epoch: int) -> bool:
        """Whether records of these epochs need no new entry."""
        last = self.last
        return last is not None and (last.source_epoch, last.destination_epoch) == (
            source_epoch,
            destination_epoch,
        )

    def extended(self, start: int, source_epoch: int, destination_epoch: int) -> Lineage:
        """With records of these epochs from `start` on. An entry without records is replaced."""
        kept = tuple(entry for entry in self.entries if entry.start < start)
        return replace(self, entries=(*kept, LineageEntry(start, source_epoch, destination_epoch)))

    def pruned(self, log_start: int) -> Lineage:
        """Without the entries of records that the source has deleted."""
        first = max((n for n, entry in enumerate(self.entries) if entry.start <= log_start), default=0)
        return replace(self, entries=self.entries[first:])

    def truncated(self, end: int) -> Lineage:
        """Records from `end` on must go, on every replica; what an earlier truncation allows stays so."""
        kept = tuple(entry for entry in self.entries if entry.start < end)
        epoch = self.last.destination_epoch if self.last is not None else NO_EPOCH
        offset = end if self.truncation is None else min(end, self.truncation.offset)
        return Lineage(kept, Truncation(epoch, offset), truncating_to=end)

    def settled(self, truncation: Truncation | None) -> Lineage:
        """Every in-sync replica has truncated; this remains allowed for those that were away."""
        return replace(self, truncation=truncation, truncating_to=None)

    def destination_history(self, end: int) -> EpochHistory:
        """The leader epochs of the mirror, up to its end."""
        history = NO_EPOCHS
        for entry in self.entries:
            if entry.start < end:
                history = history.begun(entry.destination_epoch, entry.start)
        return history

    def source_epoch_at(self, end: int) -> int:
        """The source's epoch of the last record below `end`; −1 if there is none."""
        epochs = [entry.source_epoch for entry in self.entries if entry.start < end]
        return epochs[-1] if epochs else NO_EPOCH

    def start_of(self, source_epoch: int) -> int:
        """Where the records of this source epoch begin."""
        return min(entry.start for entry in self.entries if entry.source_epoch == source_epoch)

    def inverted(self) -> Lineage:
        """The lineage of a link in the other direction: source and destination change places."""
        return Lineage(
            tuple(LineageEntry(one.start, one.destination_epoch, one.source_epoch) for one in self.entries)
        )

    def emptied(self, end: int) -> Lineage:
        """Nothing of the log is shared: every record must go, and the next one has the offset `end`."""
        return Lineage((), Truncation(NO_EPOCH, end), truncating_to=end)

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"entries": [list(entry) for entry in self.entries]}
        if self.truncation is not None:
            document |= {"truncation": list(self.truncation), "truncating_to": self.truncating_to}
        return document


def lineage_of(document: Mapping[str, Any]) -> Lineage:
    truncation = document.get("truncation")
    return Lineage(
        tuple(LineageEntry(*row) for row in document.get("entries", ())),
        Truncation(*truncation) if truncation is not None else None,
        document.get("truncating_to"),
    )


def has_diverged(end: int, source: EpochStart, epoch: int) -> bool:
    """Whether the source truncated records that are mirrored: its log of our last epoch ends before ours."""
    return end > 0 and epoch >= 0 and (source.epoch != epoch or source.offset < end)


def agreed_end(lineage: Lineage, end: int, epoch: int, source: EpochStart) -> tuple[int, bool]:
    """Up to where both logs may agree, and whether that is certain; as a follower finds it (KIP-101, 279).

    `source` is where the source's log of `epoch`, our epoch at `end`, ends. If it does not know that epoch,
    the question is repeated with the epoch before."""
    if source.epoch == epoch:
        return min(end, source.offset), True
    begun = lineage.start_of(epoch)
    return (min(begun, source.offset) if source.epoch >= 0 else begun), False


def shared_end(
    entry: LineageEntry, below: int | None, source: EpochStart, destination: EpochStart
) -> int | None:
    """Up to where both logs have the records of one entry, which ends `below`; None if one lacks its epoch.

    `source` and `destination` are where the logs of the entry's epochs end now. After a failover both may
    have lost records and have got others since, so neither alone shows what they share."""
    if source.epoch != entry.source_epoch or destination.epoch != entry.destination_epoch:
        return None
    end = min(source.offset, destination.offset)
    end = end if below is None else min(end, below)
    return end if end > entry.start else None
