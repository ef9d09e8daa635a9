"""Folding a stretch of a partition into versions of rows: a view's whole logic, without its I/O.

For each record: pass over types that are not handled, mostly without decoding them; suppress what
was applied before; project; gather the versions. Nothing has happened until a store has committed
the stretch, and how records are cut into stretches does not show in the result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

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
        self._wanted = frozenset(kind.encode() for kind in projection.handles)
        self._tables = {table.name: table for table in projection.tables}
        self._declared = frozenset(projection.tables)
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
        type_of, wanted = self._codec.type_of, self._wanted
        for record in records:
            value = record.value
            kind = None if value is None else type_of(value)
            if kind is None or kind in wanted:
                try:
                    self._one(record)
                except ViewEventRefused as stop:
                    stretch.stopped = stop
                    break
            stretch.position = record.offset + 1
        stretch.layer[MARKS.name] = dict(self._marks.changes())
        stretch.layer[SEEN.name] = dict(self._window.changes())
        return stretch

    def get(self, table: Table[Row], key: Key) -> Row | None:
        cache = self._cache[table.name]
        try:
            return cast("Row | None", cache[key])
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
            self._check(effects)
        except DecisionInvalid as error:
            self._skip(record, Reason.INVALID, error.message)
            return
        self._apply(effects, event.offset)

    def _apply(self, effects: Iterable[Effect], offset: int) -> None:
        versions, cache = self._stretch.versions, self._cache
        for effect in effects:
            table, what = effect
            name = table.name
            if effect.__class__ is Put:
                key, row = table.key_of(what), what
            else:
                key, row = what, None
            if not table.append_only:
                cache[name][key] = row
            versions[name].append(_version((offset, key, row)))
        self._stretch.applied += 1

    def _check(self, effects: Iterable[Effect]) -> None:
        declared = self._declared
        for effect in effects:
            table = effect[0]
            if table not in declared:
                reason = f"the table `{table.name}` is not declared"
                raise DecisionInvalid(application=self.projection.name, reason=reason)
            if self._strict and effect.__class__ is Put:
                check_row(table, effect[1])

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
