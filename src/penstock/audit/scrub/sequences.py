"""Whether the batches of idempotent producers follow one another. Pure.

Within an epoch, sequence numbers are consecutive, and a producer's epoch never falls, neither in a batch nor
in the marker of a transaction: brokers refuse anything else. A producer is first judged by its second batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.audit.scrub.comparison import Scanned

PRODUCERS_MAX: Final = 10_000  # of one partition; beyond, those that have been silent longest are forgotten
SEQUENCES: Final = 1 << 31  # then they start again at 0
NO_SEQUENCE: Final = -1


@dataclass(slots=True)
class SequenceTracker:
    """The producers of one partition: epoch and last sequence number, in the order of their last batch."""

    _producers: dict[int, tuple[int, int]] = field(default_factory=dict)

    def error(self, batch: Scanned) -> str:
        """What is wrong with the next batch; empty: nothing."""
        if batch.producer < 0 or not batch.intact:
            return ""
        known = self._producers.pop(batch.producer, None)
        last = NO_SEQUENCE
        if batch.sequence >= 0:
            last = (batch.sequence + batch.last - batch.base) % SEQUENCES
        elif known is not None and known[0] == batch.epoch:
            last = known[1]  # a marker has no sequence number
        while len(self._producers) >= PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]
        self._producers[batch.producer] = (batch.epoch, last)
        if known is None:
            return ""
        epoch, before = known
        where = f"producer {batch.producer}"
        if batch.epoch < epoch:
            return f"{where}: epoch {batch.epoch} follows epoch {epoch} at offset {batch.base}"
        if batch.epoch > epoch or batch.sequence < 0 or before == NO_SEQUENCE:
            return ""
        if batch.sequence != (before + 1) % SEQUENCES:
            return f"{where}: sequence {batch.sequence} follows {before} at offset {batch.base}"
        return ""
