"""Turns a range of records into one batch: the executor's whole logic, without its I/O.

For each record: decode it; skip types that need no decision; suppress repeats; decide; collect the rows
to write and the events to send. An event that cannot be applied is rejected by the application's policy:
it is listed with its bytes, and its request, if it has one, gets an `olep.rejected` event. An `olep.retry`
event retries it. The retry is an event of the log like any other, so state remains a function of the log.

A batch is a value. It takes effect only when a store commits it, and how records are divided into batches
does not change the result.

Events are encoded before the rows of their decision are applied, so that a decision is applied as a whole
or rejected as a whole. Should applying rows fail nevertheless, for example for a key that cannot be hashed,
the batch is discarded and folded again, and the rows of each decision are checked before they are applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.model.errors.olep import (
    DecideImpure,
    DecisionInvalid,
    EventRejected,
    EventUnreadable,
    StoreFailed,
    VersionMissing,
)
from penstock.olep.application import Emit, Reason, RejectPolicy
from penstock.olep.codec import EVENT_BYTES_MAX
from penstock.olep.deduplication import MARKS, SEEN, Deduplication, version_of
from penstock.olep.encoding import decode_record
from penstock.olep.event import (
    EVENTS_PER_DECISION_MAX,
    REJECTED,
    REPEATED,
    RESERVED,
    RETRY,
    VERSION,
    Event,
    Record,
    stream_of,
)
from penstock.olep.purity import CHECKED_EVERY, CHECKED_FIRST, as_sequences, decide_checked
from penstock.olep.rows import CACHED_ROWS_MAX, Rows
from penstock.olep.table import Put, Remove, Table, check_row, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.model.errors import PenstockError
    from penstock.olep.application import Application
    from penstock.olep.codec import Codec
    from penstock.olep.rows import Appends, Changes, Reader

DETAIL_LENGTH_MAX: Final = 500  # characters stored of the reason for a rejection


class RejectedEvent(NamedTuple):
    at: int  # its offset
    reason: str
    detail: str
    key: str
    value: bytes


REJECTED_EVENTS: Final = Table("olep_rejected", RejectedEvent)
INTERNAL_TABLES: Final[tuple[Table[Any], ...]] = (MARKS, SEEN, REJECTED_EVENTS)


class Outgoing(NamedTuple):
    log: str
    key: bytes
    value: bytes


# Without Outgoing's __new__, which is Python code.
_outgoing: Final[Callable[[tuple[str, bytes, bytes]], Outgoing]] = partial(tuple.__new__, Outgoing)


class Source(NamedTuple):
    """The partition whose records are folded."""

    log: str  # the name that applications use
    topic_id: str
    partition: int


class PurityChecks(StrEnum):
    """Which decisions are checked for purity."""

    SAMPLED = "sampled"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Batch:
    """The content of one store transaction."""

    start: int  # the position that the store must be at
    position: int  # the next offset to read
    changes: Changes
    appends: Appends
    outgoing: list[Outgoing] = field(default_factory=list)
    decided: int = 0
    repeated: int = 0
    rejected: int = 0
    stopped: PenstockError | None = None  # why the batch ends before the last record


class Fold:
    """Folds the records of one partition. Not thread-safe: one thread owns a partition."""

    def __init__(
        self,
        application: Application,
        source: Source,
        codec: Codec,
        reader: Reader,
        *,
        purity_checks: PurityChecks = PurityChecks.SAMPLED,
        cached_max: int = CACHED_ROWS_MAX,
    ) -> None:
        self._newest = application
        self.source = source
        self._codec = codec
        self._reader = reader
        self._stream = stream_of(application.name, source.topic_id, source.partition)
        self._checked_first = CHECKED_FIRST if purity_checks is PurityChecks.SAMPLED else 0
        self._checked_every = {
            PurityChecks.SAMPLED: CHECKED_EVERY,
            PurityChecks.ALWAYS: 1,
            PurityChecks.NEVER: 0,
        }[purity_checks]
        self._tables = frozenset(table.name for table in application.tables)
        self._rows = Rows(reader, (*application.tables, *INTERNAL_TABLES), cached_max=cached_max)
        self._strict = False
        self._checks_first = False  # check a decision before its rows are applied
        self._load()

    def process(self, records: Sequence[Record], position: int, *, strict: bool = False) -> Batch:
        """Folds records into a batch that starts at `position`.

        `strict` checks every row before it is applied. The partition task sets it after a store refused
        a batch, so that only the event at fault is rejected."""
        self._strict = self._checks_first = strict
        try:
            return self._fold(records, position)
        except StoreFailed:
            raise
        except Exception:
            if strict:
                raise
            self.discard()
            self._checks_first = True
            return self._fold(records, position)

    def _fold(self, records: Sequence[Record], position: int) -> Batch:
        batch = Batch(position, records[-1].offset + 1 if records else position, {}, {})
        for record in records:
            try:
                self._process_one(record, batch)
            except (EventRejected, DecideImpure, VersionMissing) as stop:
                batch.position, batch.stopped = record.offset, stop
                break
        return self._completed(batch)

    def reject(self, record: Record, position: int, detail: str) -> Batch:
        """A batch that rejects this one record, because the store cannot store its decision."""
        batch = Batch(position, record.offset + 1, {}, {})
        event = self._decode(record, record.offset)
        if not self._suppress(event, batch):
            self._reject(record, event, Reason.INVALID, detail, batch)
            self._deduplication.record(event)
        return self._completed(batch)

    def committed(self) -> None:
        """Called when the batch was committed."""
        self._rows.committed()

    def discard(self) -> None:
        """Called when the batch was refused: returns to the state in the store."""
        self._rows.discard()
        self._load()

    def _load(self) -> None:
        """Reads from the store what is kept in memory besides rows."""
        application = self._newest.of_version(version_of(self._reader))
        self._deduplication = Deduplication(self._reader, application.window)
        self._adopt(application)

    def _adopt(self, application: Application) -> None:
        """Decides with this version of the application from now on."""
        self.application = application
        self._decide = application.decide
        self._handles = dict(application.handles)
        self._ignored = frozenset(application.ignores)
        self._is_ignored = self._codec.type_matcher(application.ignores)
        self._logs = frozenset({*application.logs, self.source.log})

    def _completed(self, batch: Batch) -> Batch:
        rows = self._rows
        if rows.failure is not None:
            # `decide` may have caught it, or was rejected for it.
            raise rows.failure
        batch.changes, batch.appends = rows.changes, rows.appends
        for table, changed in self._deduplication.changes().items():
            batch.changes[table].update(changed)
        return batch

    def _decode(self, record: Record, offset: int) -> Event:
        return decode_record(self._codec, self.source.partition, record, offset)

    def _process_one(self, record: Record, batch: Batch) -> None:
        # An application's own events come back to it; in a bank they are a third of all. Skip the decoding.
        if record.value is not None and self._is_ignored(record.value):
            return
        try:
            event = self._decode(record, record.offset)
            kind = event.type
            if kind == VERSION:
                self._change_version(event)
                return
            if self._suppress(event, batch):
                return
        except EventUnreadable as error:
            self._reject(record, None, Reason.UNREADABLE, error.message, batch)
            return
        if (newest := self._handles.get(kind)) is not None:
            self._apply(record, event, newest, batch)
        elif kind == RETRY:
            self._retry(event, batch)
        elif kind not in self._ignored and not kind.startswith(RESERVED):
            self._reject(record, event, Reason.UNKNOWN_TYPE, kind, batch)
        self._deduplication.record(event)

    def _change_version(self, event: Event) -> None:
        """Executors may announce a version several times: only the first one counts."""
        name, version = event.payload.get("application"), event.payload.get("version")
        if name != self.application.name or version.__class__ is not int:
            return
        if version > self.application.version:
            self._adopt(self._newest.of_version(version))
            self._deduplication.record_version(version, self.application.window)

    def _suppress(self, event: Event, batch: Batch) -> bool:
        """Whether the event is a repeat. A repeated request gets an event with its first offset."""
        if not self._deduplication.is_repeat(event):
            return False
        if (first := self._deduplication.first(event.id)) is not None:
            # The client that repeats a request waits for its outcome, which was emitted before.
            repeat = Emit(self.source.log, event.key, REPEATED, {"offset": first})
            batch.outgoing += self._encoded(event, (repeat,))
        batch.repeated += 1
        return True

    def _apply(self, record: Record, event: Event, newest: int, batch: Batch) -> bool:
        """Decides, and applies the whole decision or nothing of it."""
        if event.version > newest:
            detail = f"{event.type} version {event.version}, this executor understands {newest}"
            return self._reject(record, event, Reason.NEWER_VERSION, detail, batch)
        try:
            if self._is_checked(event.offset):
                effects, emits = decide_checked(self.application, self._rows, event)
            else:
                effects, emits = as_sequences(self._decide(self._rows, event))
        except DecideImpure:
            raise
        except Exception as error:  # noqa: BLE001 - any exception of the application rejects the event
            return self._reject(record, event, Reason.RAISED, f"{type(error).__name__}: {error}", batch)
        try:
            outgoing = self._encoded(event, emits) if emits else None
            self._check(effects)
        except Exception as error:  # noqa: BLE001 - what a decision contains may be of any type
            return self._reject(record, event, Reason.INVALID, str(error), batch)
        self._rows.apply(effects)
        if outgoing:
            batch.outgoing += outgoing
        batch.decided += 1
        return True

    def _is_checked(self, offset: int) -> bool:
        if self._checked_first:
            self._checked_first -= 1
            return True
        every = self._checked_every
        return every != 0 and offset % every == 0

    def _check(self, effects: Sequence[Any]) -> None:
        declared = self._tables
        for effect in effects:
            if effect.__class__ is not Put and effect.__class__ is not Remove:
                self._invalid(f"{effect!r:.80} is neither Put nor Remove")
            if effect.table.name not in declared:
                self._invalid(f"the table `{effect.table.name}` is not declared")
        if self._checks_first:
            for effect in effects:
                hash(effect.table.key_of(effect.row) if effect.__class__ is Put else effect.key)
                if self._strict and effect.__class__ is Put:
                    check_row(effect.table, effect.row)

    def _encoded(self, event: Event, emits: Sequence[Emit]) -> list[Outgoing]:
        """Events with derived ids, as bytes. They carry the request and time of their cause."""
        if len(emits) > EVENTS_PER_DECISION_MAX:
            self._invalid(f"it emits {len(emits)} events, at most {EVENTS_PER_DECISION_MAX} are allowed")
        outgoing = []
        for emit, value in zip(emits, self._codec.encode_caused(self._stream, event, emits)):
            if emit.log not in self._logs:
                self._invalid(f"the log `{emit.log}` is not declared")
            if len(value) > EVENT_BYTES_MAX:
                self._invalid(
                    f"it emits an event of {len(value)} bytes, at most {EVENT_BYTES_MAX} are allowed"
                )
            outgoing.append(_outgoing((emit.log, emit.key.encode(), value)))
        return outgoing

    def _invalid(self, reason: str) -> None:
        raise DecisionInvalid(application=self.application.name, reason=reason)

    def _reject(self, record: Record, event: Event | None, reason: Reason, detail: str, batch: Batch) -> bool:
        """Lists the event as rejected. Returns False: it was not applied."""
        if self.application.reject_policy(reason) is RejectPolicy.STOP:
            name, offset = self.application.name, record.offset
            raise EventRejected(application=name, offset=offset, reason=reason, detail=detail)
        # Every store must be able to store the row, whatever the event contains.
        detail = storable(detail)[:DETAIL_LENGTH_MAX]
        key = storable((record.key or b"").decode("utf-8", "replace"))
        row = RejectedEvent(record.offset, reason, detail, key, record.value or b"")
        self._rows.apply((Put(REJECTED_EVENTS, row),))
        if event is not None:
            payload = {"reason": reason, "detail": detail, "offset": record.offset}
            batch.outgoing += self._encoded(event, (Emit(self.source.log, event.key, REJECTED, payload),))
        batch.rejected += 1
        return False

    def _retry(self, retry: Event, batch: Batch) -> None:
        """Decides a rejected event again, as if it had the offset of the retry."""
        at = retry.payload.get("offset")
        row = self._rows.get(REJECTED_EVENTS, at) if at.__class__ is int else None
        if row is None:
            return  # retried before, or never rejected by this version of the program
        record = Record(row.at, row.key.encode(), row.value)
        try:
            # With the retry's offset: the ids of the events it causes must be above the receivers' marks.
            event = self._decode(record, retry.offset)
        except EventUnreadable as error:
            self._reject(record, None, Reason.UNREADABLE, error.message, batch)
            return
        newest = self._handles.get(event.type)
        if newest is None:
            self._reject(record, event, Reason.UNKNOWN_TYPE, event.type, batch)
        elif self._apply(record, event, newest, batch):
            self._rows.apply((Remove(REJECTED_EVENTS, row.at),))
