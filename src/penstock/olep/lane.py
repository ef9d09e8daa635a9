"""A lane: one partition in the hands of this executor.

It joins the fold, the store and the sender of a partition: decide, commit, send, in this order.
What it keeps in memory can be dropped at any time; a new lane on the same store goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import faults
from penstock.olep.sender import Channel, Pending
from penstock.olep.store import COMMIT_AFTER, RowsRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.event import Record
    from penstock.olep.fold import Batch, Fold
    from penstock.olep.sender import Sender
    from penstock.olep.store import Store


class Figures:
    """What an executor has done since it started."""

    __slots__ = ("commits", "decided", "rejected", "repeated", "sent")

    def __init__(self) -> None:
        self.commits = self.decided = self.repeated = self.rejected = self.sent = 0

    def add(self, batch: Batch) -> None:
        self.commits += 1
        self.decided += batch.decided
        self.repeated += batch.repeated
        self.rejected += batch.rejected
        self.sent += len(batch.outgoing)


class Lane:
    def __init__(
        self, fold: Fold, store: Store, sender: Sender, figures: Figures, *, position: int, quiet_until: int
    ) -> None:
        """`quiet_until`: below this, an owner before us has seen all events acknowledged; the stretch
        is decided again for its state, and what it emits is not sent a second time."""
        self.fold = fold
        self.store = store
        self.position = position
        self.channel = Channel()
        self.fenced = False
        self._sender = sender
        self._figures = figures
        self._quiet_until = quiet_until
        self.channel.sent = min(position, quiet_until)
        start = self.channel.sent
        for unsent in store.unsent():
            if unsent.position > self.channel.sent:
                sender.send(self.channel, Pending(start, unsent.position, unsent.outgoing))
                start = unsent.position

    def apply(self, records: Sequence[Record]) -> None:
        """Decides, commits, sends. Raises what stopped the lane, with all before it committed."""
        if records[0].offset < self.position:
            # The client may hand out again what it had fetched before it was told to seek.
            records = [record for record in records if record.offset >= self.position]
        if self.position < self._quiet_until:
            known = [record for record in records if record.offset < self._quiet_until]
            if known:
                self._batch(known)
            records = records[len(known) :]
        if records:
            self._batch(records)

    def advance(self, position: int) -> None:
        """The end of the partition stands here, past records that no reader is shown."""
        if position > self.position:
            self._commit(self.fold.take((), position), self.position)

    def tidy(self) -> None:
        """Drops outbox entries that were acknowledged since the last commit."""
        entries = self.store.unsent()
        if entries and entries[0].position <= self.channel.sent:
            self._commit(self.fold.take((), self.position), self.position)

    def acknowledged(self) -> int:
        return self.channel.acknowledged(self.position)

    def close(self) -> None:
        self.store.close()

    def _batch(self, records: Sequence[Record]) -> None:
        start = self.position
        batch = self.fold.take(records, start)
        try:
            self._commit(batch, start)
        except RowsRefused:
            self._one_by_one(records)
            return
        if batch.stopped is not None:
            raise batch.stopped

    def _one_by_one(self, records: Sequence[Record]) -> None:
        """A row of the batch cannot be kept: find the event to blame and reject it alone."""
        for record in records:
            batch = self.fold.take((record,), self.position, strict=True)
            try:
                self._commit(batch, self.position)
            except RowsRefused as refused:
                self._commit(self.fold.refuse(record, str(refused)), self.position)
            if batch.stopped is not None:
                raise batch.stopped

    def _commit(self, batch: Batch, start: int) -> None:
        if batch.position <= self._quiet_until:
            batch.outgoing = []
        try:
            self.store.commit(batch, sent=self.channel.sent)
        except BaseException:
            self.fold.forget()
            raise
        self.fold.settle()
        self.position = batch.position
        self._figures.add(batch)
        faults.reach(COMMIT_AFTER)
        if batch.outgoing:
            self._sender.send(self.channel, Pending(start, batch.position, batch.outgoing))
