"""Leader epochs of a log and where they start, as Kafka's leader-epoch checkpoint has them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

NO_EPOCH: Final = -1


class EpochStart(NamedTuple):
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Entries of rising epochs at rising offsets."""

    entries: tuple[EpochStart, ...] = ()

    @property
    def latest(self) -> int:
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def begun(self, epoch: int, offset: int) -> EpochHistory:
        """With records of `epoch` from `offset` on. An epoch that got no record is dropped."""
        kept = tuple(entry for entry in self.entries if entry.offset < offset)
        if kept and kept[-1].epoch >= epoch:
            assert kept[-1].epoch == epoch, f"epoch {epoch} follows {kept[-1].epoch}"
            return EpochHistory(kept)
        return EpochHistory((*kept, EpochStart(epoch, offset)))

    def truncated(self, end: int) -> EpochHistory:
        """Of the log that ends at `end`."""
        return EpochHistory(tuple(entry for entry in self.entries if entry.offset < end))

    def at(self, offset: int) -> int:
        """The epoch that wrote this offset."""
        position = bisect_right(self.entries, offset, key=lambda entry: entry.offset)
        return self.entries[position - 1].epoch if position else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> EpochStart:
        """The largest epoch up to `epoch`, and where the log of that epoch ends."""
        position = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        end = self.entries[position].offset if position < len(self.entries) else log_end
        return EpochStart(self.entries[position - 1].epoch if position else NO_EPOCH, end)


NO_EPOCHS: Final = EpochHistory()
