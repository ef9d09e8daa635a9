"""One partition of an executor, as a Kafka Streams task: decides, commits, sends, in this order.

It connects the fold, the store and the sender of a partition. Its memory can be dropped at any time: a new
task on the same store continues where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import fault_points
from penstock.olep.outbox_sender import InFlight, PendingBatch
from penstock.olep.store import COMMIT_AFTER, RowsRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.event import Record
    from penstock.olep.fold import Batch, Fold
    from penstock.olep.outbox_sender import OutboxSender
    from penstock.olep.store import Store


class ExecutorCounters:
    """Counters of an executor since its start."""

    __slots__ = ("commits", "decided", "rejected", "repeated", "sent")

    def __init__(self) -> None:
        self.commits = self.decided = self.repeated = self.rejected = self.sent = 0

    def add(self, batch: Batch) -> None:
        self.commits += 1
        self.decided += batch.decided
        self.repeated += batch.repeated
        self.rejected += batch.rejected
        self.sent += len(batch.outgoing)


class PartitionTask:
    def __init__(
        self,
        fold: Fold,
        store: Store,
        sender: OutboxSender,
        counters: ExecutorCounters,
        position: int,
        acknowledged_until: int,
    ) -> None:
        """Events caused by records below `acknowledged_until` were acknowledged under an earlier owner: those
        records are decided again for their rows, and their events are not sent again."""
        self.fold = fold
        self.store = store
        self.position = position
        self.in_flight = InFlight()
        self._sender = sender
        self._counters = counters
        self._acknowledged_until = acknowledged_until
        self.in_flight.sent = min(position, acknowledged_until)
        start = self.in_flight.sent
        for unsent in store.unsent():
            if unsent.position > self.in_flight.sent:
                sender.send(self.in_flight, PendingBatch(start, unsent.position, unsent.outgoing))
                start = unsent.position

    def apply(self, records: Sequence[Record]) -> None:
        """Decides, commits, sends. Raises the error that stopped it; everything before is committed."""
        if records[0].offset < self.position:
            # After a seek, the client may return records that it had fetched before.
            records = [record for record in records if record.offset >= self.position]
        if self.position < self._acknowledged_until:
            acknowledged = [record for record in records if record.offset < self._acknowledged_until]
            if acknowledged:
                self._apply_batch(acknowledged)
            records = records[len(acknowledged) :]
        if records:
            self._apply_batch(records)

    def advance(self, position: int) -> None:
        """Moves to the end of the partition, past markers and aborted records."""
        if position > self.position:
            batch = self.fold.process((), self.position)
            batch.position = position
            self._commit(batch)

    def prune_outbox(self) -> None:
        """Deletes outbox entries that were acknowledged since the last commit."""
        entries = self.store.unsent()
        if entries and entries[0].position <= self.in_flight.sent:
            self._commit(self.fold.process((), self.position))

    def _apply_batch(self, records: Sequence[Record]) -> None:
        batch = self.fold.process(records, self.position)
        try:
            self._commit(batch)
        except RowsRefused:
            self._apply_one_by_one(records)
            return
        if batch.stopped is not None:
            raise batch.stopped

    def _apply_one_by_one(self, records: Sequence[Record]) -> None:
        """The store cannot store a row of the batch: finds the event at fault and rejects only that."""
        for record in records:
            batch = self.fold.process((record,), self.position, strict=True)
            try:
                self._commit(batch)
            except RowsRefused as refused:
                self._commit(self.fold.reject(record, self.position, str(refused)))
            if batch.stopped is not None:
                raise batch.stopped

    def _commit(self, batch: Batch) -> None:
        if batch.position <= self._acknowledged_until:
            batch.outgoing = []
        try:
            self.store.commit(batch, sent=self.in_flight.sent)
        except BaseException:
            self.fold.discard()
            raise
        self.fold.committed()
        self.position = batch.position
        self._counters.add(batch)
        fault_points.reach(COMMIT_AFTER)
        if batch.outgoing:
            self._sender.send(self.in_flight, PendingBatch(batch.start, batch.position, batch.outgoing))
