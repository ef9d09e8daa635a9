"""Turns a range of records into versions of rows: a view's whole logic, without its I/O.

For each record: skip types that are not handled, mostly without decoding them; suppress repeats; project;
collect the versions. A batch takes effect only when a store commits it, and how records are divided into
batches does not change the result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.olep import DecisionInvalid, EventUnreadable
from penstock.model.errors.views import ViewEventRefused
from penstock.olep.application import Reason, RejectPolicy
from penstock.olep.deduplication import Deduplication
from penstock.olep.encoding import decode_record
from penstock.olep.fold import DETAIL_LENGTH_MAX
from penstock.olep.rows import CACHED_ROWS_MAX
from penstock.olep.table import Put, Remove, check_row, storable
from penstock.olep.view import SKIPPED, SkippedEvent, Version, ViewBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.olep.codec import Codec
    from penstock.olep.event import Event, Record
    from penstock.olep.table import Effect, Key, Row, Table
    from penstock.olep.view import ViewStore
    from penstock.olep.view.projection import Projection

_version: Final[Callable[[tuple[Any, ...]], Version]] = partial(tuple.__new__, Version)


class _Partition:
    """One partition of a store, as `Deduplication` reads it."""

    def __init__(self, store: ViewStore, partition: int) -> None:
        self._store = store
        self._partition = partition

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        return self._store.load(self._partition, table, key)

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        return self._store.scan(self._partition, table)


class ViewFold:
    """Folds one partition of one view. Implements `State` for the projection. Not thread-safe."""

    def __init__(
        self,
        projection: Projection,
        codec: Codec,
        store: ViewStore,
        partition: int,
        *,
        fresh: bool = False,
        cached_max: int = CACHED_ROWS_MAX,
    ) -> None:
        """`fresh`: the store has no rows of this partition, so a row that is not cached does not exist. A
        rebuild reads from the store only after rows were evicted from the cache."""
        self.projection = projection
        self.partition = partition
        self._decode = partial(decode_record, codec, partition)
        self._reader = _Partition(store, partition)
        self._handles = dict(projection.handles)
        self._type_filter = codec.type_filter(projection.handles)
        self._tables = {table.name: table for table in projection.tables}
        self._project = projection.project
        self._cached_max = cached_max
        self._strict = False
        self._failure: Exception | None = None  # of the store, while a row was read
        self.discard()
        self._is_complete = fresh

    def process(self, records: Sequence[Record], position: int, *, strict: bool = False) -> ViewBatch:
        """Folds records into a batch that continues from `position`.

        `strict` checks every effect. The runner sets it after a store refused a batch, so that only the
        events at fault are skipped. Raises the error of a store that could not be read: no event is at
        fault."""
        self._strict = strict
        try:
            return self._fold(records, position)
        except Exception:
            if strict or self._failure is not None:
                raise
            # An effect is none, or its key cannot be hashed: fold again with every effect checked.
            self.discard()
            self._strict = True
            return self._fold(records, position)

    def _fold(self, records: Sequence[Record], position: int) -> ViewBatch:
        self._failure = None
        self._batch = batch = ViewBatch(
            self.partition, position, position, {name: [] for name in self._tables}, {SKIPPED.name: {}}
        )
        self._targets = {
            table: (table.key_of, None if table.append_only else self._cache[n], batch.versions[n].append)
            for n, table in self._tables.items()
        }
        try:
            for record in self._type_filter(records):
                self._process_one(record)
            if records:
                batch.position = records[-1].offset + 1
        except ViewEventRefused as stop:
            batch.stopped = stop
            batch.position = record.offset
        if self._failure is not None:
            # The projection may have caught it, or its event was skipped for it.
            raise self._failure
        batch.internal.update(self._deduplication.changes())
        return batch

    def get(self, table: Table[Row], key: Key) -> Row | None:
        cache = self._cache[table.name]
        try:
            row: Row | None = cache[key]
        except KeyError:
            values = None if self._is_complete else self._load(table, key)
            cache[key] = row = None if values is None else table.row_type(*values)
        return row

    def _load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        if not table.is_key(key):
            return None
        try:
            return self._reader.load(table, key)
        except Exception as error:
            self._failure = error
            raise

    def committed(self) -> None:
        """Called when the batch was committed."""
        for rows in self._cache.values():
            if len(rows) > self._cached_max:
                self._is_complete = False
                # Drop the oldest half: dictionaries keep insertion order.
                for key in list(rows)[: len(rows) // 2]:
                    del rows[key]

    def discard(self) -> None:
        """Called when the batch was refused: returns to the state in the store."""
        self._cache: dict[str, dict[Any, Any]] = {name: {} for name in self._tables}
        self._is_complete = False
        self._deduplication = Deduplication(self._reader, self.projection.window)

    def _process_one(self, record: Record) -> None:
        try:
            event = self._decode(record, record.offset)
            if (newest := self._handles.get(event.type)) is None:
                return
            if self._deduplication.is_repeat(event):
                self._batch.repeated += 1
                return
        except EventUnreadable as error:
            self._skip(record, Reason.UNREADABLE, error.message)
            return
        self._apply_or_skip(record, event, newest)
        self._deduplication.record(event)

    def _apply_or_skip(self, record: Record, event: Event, newest: int) -> None:
        if event.version > newest:
            self._skip(record, Reason.NEWER_VERSION, f"{event.type} version {event.version}, not {newest}")
            return
        try:
            effects = [*self._project(self, event)]
        except Exception as error:  # noqa: BLE001 - any exception of the projection skips the event
            self._skip(record, Reason.RAISED, f"{type(error).__name__}: {error}")
            return
        try:
            self._apply(effects, event.offset)
        except DecisionInvalid as error:
            self._skip(record, Reason.INVALID, error.message)

    def _apply(self, effects: Sequence[Effect], offset: int) -> None:
        """Applies all effects or, if one is invalid, none."""
        if self._strict:
            for effect in effects:
                _check(effect)
        try:
            targets = [self._targets[effect.table] for effect in effects]
        except KeyError as error:
            reason = f"the table `{error.args[0].name}` is not declared"
            raise DecisionInvalid(application=self.projection.name, reason=reason) from None
        for (key_of, cache, append), effect in zip(targets, effects):
            if isinstance(effect, Put):
                row = effect.row
                key = key_of(row)
            else:
                key, row = effect.key, None
            if cache is not None:
                cache[key] = row
            append(_version((offset, key, row)))
        self._batch.applied += 1

    def _skip(self, record: Record, reason: Reason, detail: str) -> None:
        if self.projection.reject_policy(reason) is RejectPolicy.STOP:
            where = {"view": self.projection.name, "partition": self.partition, "offset": record.offset}
            raise ViewEventRefused(**where, reason=reason.value, detail=detail[:DETAIL_LENGTH_MAX])
        # Every store must be able to store the row, whatever the event contains.
        row = SkippedEvent(record.offset, reason.value, storable(detail)[:DETAIL_LENGTH_MAX])
        self._batch.internal[SKIPPED.name][record.offset] = tuple(row)
        self._batch.skipped += 1


def _check(effect: Any) -> None:
    """Raises DecisionInvalid for an effect that some store would refuse or change."""
    if effect.__class__ is Put:
        check_row(effect.table, effect.row)
    elif effect.__class__ is not Remove:
        raise DecisionInvalid(application="-", reason=f"{effect!r:.80} is neither Put nor Remove")
    elif not effect.table.is_key(effect.key):
        raise DecisionInvalid(application="-", reason=f"`{effect.table.name}` has no key {effect.key!r:.80}")
