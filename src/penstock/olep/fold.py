"""Folding a stretch of a partition into a batch: the executor's whole logic, without its I/O.

For each record: decode it; pass over what needs no decision; suppress what was applied before;
decide; gather the rows to write and the events to send. What cannot be applied is rejected by the
application's rule: listed with its bytes, answered with an `olep.rejected` event where there is
somebody to answer, and retried by an `olep.retry` event, which stands in the log like any other,
so that state remains a function of the log.

A batch is a value. Nothing has happened until a store has committed it, and how records are cut
into batches does not show in the result.

A stretch is folded in three passes: all of it is decoded, then decided, then what it emits is
encoded. On a few hundred accounts that took an eighth less time than one pass; on thousands the
difference drowned in noise. A decision whose events cannot be encoded is thus found when its rows
have been applied; the stretch is then forgotten and folded again, each decision tried before it is
applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.model.errors.olep import DecideImpure, DecisionInvalid, EventRejected, EventUnreadable
from penstock.olep.application import Emit, Reason, Rule
from penstock.olep.codec import EVENT_BYTES_MAX
from penstock.olep.event import (
    DERIVED,
    EVENTS_PER_DECISION_MAX,
    REJECTED,
    REPEATED,
    RESERVED,
    RETRY,
    Event,
    Record,
    stream_of,
)
from penstock.olep.purity import WATCH_EVERY, WATCH_FIRST, watched
from penstock.olep.repeats import MARKS, SEEN, Marks, Window
from penstock.olep.rows import CACHED_ROWS_MAX, Rows
from penstock.olep.table import Put, Table, check_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.model.errors import PenstockError
    from penstock.olep.application import Application
    from penstock.olep.codec import Codec
    from penstock.olep.rows import Appends, Changes, Reader

DETAIL_LENGTH_MAX: Final = 500  # characters kept of the reason for a rejection


class RejectedEvent(NamedTuple):
    at: int  # its offset
    reason: str
    detail: str
    key: str
    value: bytes


REJECTED_EVENTS: Final = Table("olep_rejected", RejectedEvent)
LAYER_TABLES: Final[tuple[Table[Any], ...]] = (MARKS, SEEN, REJECTED_EVENTS)


class Outgoing(NamedTuple):
    log: str
    key: bytes
    value: bytes


# Without its own __new__, which is Python.
_outgoing: Final[Callable[[tuple[str, bytes, bytes]], Outgoing]] = partial(tuple.__new__, Outgoing)
_UNENCODABLE: Final = (DecisionInvalid, ValueError, TypeError, RecursionError)


class Source(NamedTuple):
    """The partition that is folded."""

    log: str  # the name its events know it by
    topic_id: str
    partition: int


class Watch(StrEnum):
    SAMPLED = "sampled"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(slots=True)
class Batch:
    """What one transaction holds."""

    position: int  # the next offset to read
    changes: Changes
    appends: Appends
    outgoing: list[Outgoing] = field(default_factory=list)
    decided: int = 0
    repeated: int = 0
    rejected: int = 0
    stopped: PenstockError | None = None  # why the batch ends before its records did
    emitted: list[tuple[Event, Sequence[Emit]]] = field(default_factory=list)  # `outgoing` with its causes


class Fold:
    """One partition's thread of control. Not thread-safe, as there is one thread."""

    def __init__(
        self,
        application: Application,
        source: Source,
        codec: Codec,
        reader: Reader,
        *,
        watch: Watch = Watch.SAMPLED,
        cached_max: int = CACHED_ROWS_MAX,
    ) -> None:
        self.application = application
        self.source = source
        self._codec = codec
        self._reader = reader
        self._stream = stream_of(application.name, source.topic_id, source.partition)
        self._decide = application.decide
        self._handles = dict(application.handles)
        self._passed = frozenset(application.ignores)
        self._passes = codec.is_surely(application.ignores)
        self._logs = frozenset({*application.logs, source.log})
        self._watched_first = WATCH_FIRST if watch is Watch.SAMPLED else 0
        self._watched_every = {Watch.SAMPLED: WATCH_EVERY, Watch.ALWAYS: 1, Watch.NEVER: 0}[watch]
        self._tables = frozenset(table.name for table in application.tables)
        self._rows = Rows(reader, (*application.tables, *LAYER_TABLES), cached_max=cached_max)
        self._strict = False
        self._tries = False  # whether each decision's events are encoded before its rows are applied
        self._remember()

    def take(self, records: Sequence[Record], position: int, *, strict: bool = False) -> Batch:
        """Folds records into a batch. `position` is where the partition stands if there are none.

        `strict` checks every row before it is applied. The runner asks for it when a store has
        refused a batch, so that the one event to blame is rejected and the rest goes through.
        """
        self._strict = strict
        self._tries = strict
        batch = self._decided(records, position)
        try:
            return self._gathered(batch)
        except _UNENCODABLE:
            self.forget()
            self._tries = True
            return self._gathered(self._decided(records, position))

    def _decided(self, records: Sequence[Record], position: int) -> Batch:
        batch = Batch(records[-1].offset + 1 if records else position, {}, {})
        one = self._one
        for record, event in zip(records, [*map(self._read, records)]):
            if event is None:
                continue
            try:
                one(record, event, batch)
            except (EventRejected, DecideImpure) as stop:
                batch.position, batch.stopped = record.offset, stop
                break
        return batch

    def refuse(self, record: Record, detail: str) -> Batch:
        """A batch that rejects this one record, whose decision a store cannot keep."""
        batch = Batch(record.offset + 1, {}, {})
        event = self._decode(record, record.offset)
        if self._is_new(event, batch):
            self._reject(record, event, Reason.INVALID, detail, batch)
        return self._gathered(batch)

    def settle(self) -> None:
        """The batch was committed."""
        self._rows.settle()

    def forget(self) -> None:
        """The batch was refused: go back to what the store holds."""
        self._rows.forget()
        self._remember()

    def _remember(self) -> None:
        self._marks = Marks(self._reader)
        self._window = Window(self._reader, self.application.window)

    def _gathered(self, batch: Batch) -> Batch:
        for event, emits in batch.emitted:
            batch.outgoing += self._encoded(event, emits)
        rows = self._rows
        batch.changes, batch.appends = rows.changes, rows.appends
        batch.changes[MARKS.name].update(self._marks.changes())
        batch.changes[SEEN.name].update(self._window.changes())
        return batch

    def _read(self, record: Record) -> Event | EventUnreadable | None:
        """The event, or what is wrong with it; none for what needs no decision."""
        # The echo of our own facts, a third of a bank's events, need not even be decoded.
        if record.value is not None and self._passes(record.value):
            return None
        try:
            return self._decode(record, record.offset)
        except EventUnreadable as error:
            return error

    def _one(self, record: Record, event: Event | EventUnreadable, batch: Batch) -> None:
        try:
            if isinstance(event, EventUnreadable):
                raise event
            if not self._is_new(event, batch):
                return
        except EventUnreadable as error:
            self._reject(record, None, Reason.UNREADABLE, error.message, batch)
            return
        kind = event.type
        if (newest := self._handles.get(kind)) is not None:
            self._try(record, event, newest, batch)
        elif kind == RETRY:
            self._retry(event, batch)
        elif kind not in self._passed and not kind.startswith(RESERVED):
            self._reject(record, event, Reason.UNKNOWN_TYPE, kind, batch)

    def _decode(self, record: Record, offset: int) -> Event:
        if record.value is None:
            raise EventUnreadable(reason="it has no value")
        try:
            key = record.key.decode() if record.key else ""
        except UnicodeDecodeError:
            raise EventUnreadable(reason="its key is not UTF-8") from None
        return self._codec.decode(record.value, key, self.source.partition, offset)

    def _is_new(self, event: Event, batch: Batch) -> bool:
        event_id = event.id
        if event_id[0] == DERIVED:
            new = self._marks.is_new(event_id)
        else:
            first = self._window.first(event_id)
            new = first is None
            if first is None:
                self._window.remember(event_id, event.offset)
            else:
                # The caller who repeats a request waits for an answer that was given before.
                answer = Emit(self.source.log, event.key, REPEATED, {"offset": first})
                batch.emitted.append((event, (answer,)))
        batch.repeated += not new
        return new

    def _try(self, record: Record, event: Event, newest: int, batch: Batch) -> bool:
        """Decides, and applies all of the decision or nothing of it."""
        if event.version > newest:
            detail = f"{event.type} version {event.version}, this executor understands {newest}"
            return self._reject(record, event, Reason.NEWER_VERSION, detail, batch)
        try:
            if self._is_watched(event.offset):
                effects, emits = watched(self.application, self._rows, event)
            else:
                effects, emits = self._decide(self._rows, event)
        except DecideImpure:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the application raises is its verdict on the event
            return self._reject(record, event, Reason.RAISED, f"{type(error).__name__}: {error}", batch)
        try:
            if self._tries and emits:
                self._encoded(event, emits)
            self._check(effects)
        except _UNENCODABLE as error:
            return self._reject(record, event, Reason.INVALID, str(error), batch)
        self._rows.apply(effects)
        if emits:
            batch.emitted.append((event, emits))
        batch.decided += 1
        return True

    def _is_watched(self, offset: int) -> bool:
        if self._watched_first:
            self._watched_first -= 1
            return True
        every = self._watched_every
        return every != 0 and offset % every == 0

    def _check(self, effects: Sequence[Any]) -> None:
        declared = self._tables
        for effect in effects:
            if effect[0].name not in declared:
                self._invalid(f"the table `{effect[0].name}` is not declared")
        if self._strict:
            for effect in effects:
                if effect.__class__ is Put:
                    check_row(*effect)

    def _encoded(self, event: Event, emits: Sequence[Emit]) -> list[Outgoing]:
        """Events with derived ids, as bytes. They stand under the cause's request and time."""
        if len(emits) > EVENTS_PER_DECISION_MAX:
            self._invalid(f"it emits {len(emits)} events")
        outgoing = []
        for emit, value in zip(emits, self._codec.encode_caused(self._stream, event, emits)):
            if emit.log not in self._logs:
                self._invalid(f"the log `{emit.log}` is not declared")
            if len(value) > EVENT_BYTES_MAX:
                self._invalid(f"an event of {len(value)} bytes")
            outgoing.append(_outgoing((emit.log, emit.key.encode(), value)))
        return outgoing

    def _invalid(self, reason: str) -> None:
        raise DecisionInvalid(application=self.application.name, reason=reason)

    def _reject(self, record: Record, event: Event | None, reason: Reason, detail: str, batch: Batch) -> bool:
        """Lists the event. Returns False: it was not applied."""
        if self.application.rule(reason) is Rule.STOP:
            raise EventRejected(
                application=self.application.name, offset=record.offset, reason=reason, detail=detail
            )
        # What goes into the list must be storable everywhere, whatever the event was.
        detail = detail.encode("utf-8", "replace").decode().replace("\x00", "�")[:DETAIL_LENGTH_MAX]
        key = (record.key or b"").decode("utf-8", "replace").replace("\x00", "�")
        row = RejectedEvent(record.offset, reason, detail, key, record.value or b"")
        self._rows.write(REJECTED_EVENTS, row)
        if event is not None:
            answer = {"reason": reason, "detail": detail, "offset": record.offset}
            batch.emitted.append((event, (Emit(self.source.log, event.key, REJECTED, answer),)))
        batch.rejected += 1
        return False

    def _retry(self, retry: Event, batch: Batch) -> None:
        """Decides a rejected event anew, at the place of the retry in the log."""
        at = retry.payload.get("offset")
        row = self._rows.get(REJECTED_EVENTS, at) if at.__class__ is int else None
        if row is None:
            return  # retried before, or accepted in the first place by the corrected program
        record = Record(row.at, row.key.encode(), row.value)
        try:
            # Its offset is the retry's: the events it causes must stand above the stream's marks.
            event = self._decode(record, retry.offset)
        except EventUnreadable as error:
            self._reject(record, None, Reason.UNREADABLE, error.message, batch)
            return
        newest = self._handles.get(event.type)
        if newest is None:
            self._reject(record, event, Reason.UNKNOWN_TYPE, event.type, batch)
        elif self._try(record, event, newest, batch):
            self._rows.remove(REJECTED_EVENTS, row.at)
