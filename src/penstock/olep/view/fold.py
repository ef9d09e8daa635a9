"""Folding a stretch of a partition into versions of rows: a view's whole logic, without its I/O.

For each record: pass over types that are not handled, mostly without decoding them; suppress what
was applied before; project; gather the versions. Nothing has happened until a store has committed
the stretch, and how records are cut into stretches does not show in the result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.olep import DecisionInvalid, EventUnreadable
from penstock.model.errors.views import ViewEventRefused
from penstock.olep.application import Reason, Rule
from penstock.olep.event import DERIVED, Record
from penstock.olep.repeats import MARKS, SEEN, Marks, Window
from penstock.olep.table import Put, check_row
from penstock.olep.view import SKIPPED, SkippedEvent, Stretch, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.olep.codec import Codec
    from penstock.olep.event import Event
    from penstock.olep.table import Effect, Key, Row, Table
    from penstock.olep.view import ViewStore
    from penstock.olep.view.projection import Projection

CACHED_ROWS_MAX: Final = 200_000  # rows of one table and partition
_version: Final[Callable[[tuple[Any, ...]], Version]] = partial(tuple.__new__, Version)

DETAIL_LENGTH_MAX: Final = 500  # characters kept of the reason for skipping an event


class _Partition:
    """The part of a store that is one partition's, as `Marks` and `Window` read it."""

    def __init__(self, store: ViewStore, partition: int) -> None:
        self._store = store
        self._partition = partition

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        return self._store.load(self._partition, table, key)

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        return self._store.scan(self._partition, table)


class ViewFold:
    """One partition of one view. Implements `State` for the projection. Not thread-safe."""

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
        """`fresh`: the store holds nothing of this partition, so what is not in memory is nowhere. A
        rebuild need not ask it for rows until there are too many to remember."""
        self.projection = projection
        self.partition = partition
        self._codec = codec
        self._reader = _Partition(store, partition)
        self._handles = dict(projection.handles)
        self._sieve = codec.sieve(projection.handles)
        self._tables = {table.name: table for table in projection.tables}
        self._project = projection.project
        self._cached_max = cached_max
        self._strict = False
        self.forget()
        self._whole = fresh

    def take(self, records: Sequence[Record], position: int, *, strict: bool = False) -> Stretch:
        """Folds records into a stretch. `position` is where the partition stands if there are none.

        `strict` checks every row. The runner asks for it when a store has refused a batch, so that
        the events to blame are skipped and the rest goes through."""
        self._strict = strict
        self._stretch = stretch = Stretch(
            self.partition, position, {name: [] for name in self._tables}, {SKIPPED.name: {}}
        )
        self._places = {
            table: (
                table.key_of,
                None if table.append_only else self._cache[name],
                stretch.versions[name].append,
            )
            for name, table in self._tables.items()
        }
        try:
            for record in self._sieve(records):
                self._one(record)
            if records:
                stretch.position = records[-1].offset + 1
        except ViewEventRefused as stop:
            stretch.stopped = stop
            stretch.position = record.offset
        stretch.layer[MARKS.name] = dict(self._marks.changes())
        stretch.layer[SEEN.name] = dict(self._window.changes())
        return stretch

    def get(self, table: Table[Row], key: Key) -> Row | None:
        cache = self._cache[table.name]
        try:
            row: Row | None = cache[key]
        except KeyError:
            found = None if self._whole else self._reader.load(table, key)
            cache[key] = row = None if found is None else table.row_type(*found)
        return row

    def settle(self) -> None:
        """The stretch was committed."""
        for rows in self._cache.values():
            if len(rows) > self._cached_max:
                self._whole = False
                # The oldest half goes: dictionaries keep the order of insertion.
                for key in list(rows)[: len(rows) // 2]:
                    del rows[key]

    def forget(self) -> None:
        """The stretch was refused: go back to what the store holds."""
        self._cache: dict[str, dict[Any, Any]] = {name: {} for name in self._tables}
        self._whole = False
        self._marks = Marks(self._reader)
        self._window = Window(self._reader, self.projection.window)

    def _one(self, record: Record) -> None:
        try:
            event = self._decode(record)
            if (newest := self._handles.get(event.type)) is None:
                return
            if not self._is_new(event):
                self._stretch.repeated += 1
                return
        except EventUnreadable as error:
            self._skip(record, Reason.UNREADABLE, error.message)
            return
        if event.version > newest:
            self._skip(record, Reason.NEWER_VERSION, f"{event.type} version {event.version}, not {newest}")
            return
        try:
            effects = [*self._project(self, event)]
        except Exception as error:  # noqa: BLE001 - whatever the projection raises is its verdict on the event
            self._skip(record, Reason.RAISED, f"{type(error).__name__}: {error}")
            return
        try:
            self._apply(effects, event.offset)
        except DecisionInvalid as error:
            self._skip(record, Reason.INVALID, error.message)

    def _apply(self, effects: Sequence[Effect], offset: int) -> None:
        """All of the effects or, if one is invalid, none."""
        try:
            places = [self._places[effect[0]] for effect in effects]
        except KeyError as error:
            reason = f"the table `{error.args[0].name}` is not declared"
            raise DecisionInvalid(application=self.projection.name, reason=reason) from None
        if self._strict:
            for effect in effects:
                if effect.__class__ is Put:
                    check_row(*effect)
        for (key_of, cache, append), effect in zip(places, effects):
            row = effect[1]
            if effect.__class__ is Put:
                key = key_of(row)
            else:
                key, row = row, None
            if cache is not None:
                cache[key] = row
            append(_version((offset, key, row)))
        self._stretch.applied += 1

    def _decode(self, record: Record) -> Event:
        if record.value is None:
            raise EventUnreadable(reason="it has no value")
        try:
            key = record.key.decode() if record.key else ""
        except UnicodeDecodeError:
            raise EventUnreadable(reason="its key is not UTF-8") from None
        return self._codec.decode(record.value, key, self.partition, record.offset)

    def _is_new(self, event: Event) -> bool:
        if event.id[0] == DERIVED:
            return self._marks.is_new(event.id)
        if self._window.first(event.id) is not None:
            return False
        self._window.remember(event.id, event.offset)
        return True

    def _skip(self, record: Record, reason: Reason, detail: str) -> None:
        if self.projection.rule(reason) is Rule.STOP:
            raise ViewEventRefused(
                view=self.projection.name,
                partition=self.partition,
                offset=record.offset,
                reason=reason.value,
                detail=detail[:DETAIL_LENGTH_MAX],
            )
        # What goes into the list must be storable everywhere, whatever the event was.
        detail = detail.encode("utf-8", "replace").decode().replace("\x00", "�")[:DETAIL_LENGTH_MAX]
        row = SkippedEvent(record.offset, reason.value, detail)
        self._stretch.layer[SKIPPED.name][record.offset] = tuple(row)
        self._stretch.skipped += 1
