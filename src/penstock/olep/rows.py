"""The rows of one partition: what `decide` reads, and what a batch will write.

One executor owns a partition, so a row it has read stays true until it writes it itself: rows are
cached across batches and the store is asked only for what is not there. Changes gather until the
store takes them in one transaction. After a failed commit the cache is ahead of the store, and
`forget` drops all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from penstock.olep.purity import store_reads
from penstock.olep.table import Put, Remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.olep.table import Effect, Key, Row, Table

CACHED_ROWS_MAX: Final = 200_000  # rows of one table and partition

Changes = dict[str, dict[Any, tuple[Any, ...] | None]]  # table → key → row, or none where removed
Appends = dict[str, list[tuple[Any, ...]]]  # append-only table → rows


class Reader(Protocol):
    """The part of a store that reads."""

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None: ...

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]: ...


class Rows:
    """Implements `State`."""

    __slots__ = ("_cache", "_cached_max", "_reader", "_tables", "appends", "changes")

    changes: Changes
    appends: Appends

    def __init__(
        self, reader: Reader, tables: Sequence[Table[Any]], *, cached_max: int = CACHED_ROWS_MAX
    ) -> None:
        self._reader = reader
        self._tables = {table.name: table for table in tables}
        self._cached_max = cached_max
        self._cache: Changes = {table.name: {} for table in tables}
        self.settle()

    def get(self, table: Table[Row], key: Key) -> Row | None:
        try:
            return cast("Row | None", self._cache[table.name][key])
        except KeyError:
            return self._load(table, key)

    def apply(self, effects: Iterable[Effect]) -> None:
        """Takes effects on tables that are known to be declared."""
        cache, changes = self._cache, self.changes
        for effect in effects:
            table, what = effect
            name = table.name
            if effect.__class__ is Remove:
                cache[name][what] = changes[name][what] = None
            elif table.append_only:
                self.appends[name].append(what)
            else:
                key = table.key_of(what)
                cache[name][key] = changes[name][key] = what

    def write(self, table: Table[Row], row: Row) -> None:
        self.apply((Put(table, row),))

    def remove(self, table: Table[Any], key: Key) -> None:
        self.apply((Remove(table, key),))

    def settle(self) -> None:
        """The store has taken the changes."""
        self.changes = {name: {} for name, table in self._tables.items() if not table.append_only}
        self.appends = {name: [] for name, table in self._tables.items() if table.append_only}
        for rows in self._cache.values():
            if len(rows) > self._cached_max:
                # The oldest half goes: dictionaries keep the order of insertion.
                for key in list(rows)[: len(rows) // 2]:
                    del rows[key]

    def forget(self) -> None:
        """The store has refused the changes."""
        for rows in self._cache.values():
            rows.clear()
        self.settle()

    def _load(self, table: Table[Row], key: Key) -> Row | None:
        store_reads.under_way = True
        try:
            found = self._reader.load(table, key)
        finally:
            store_reads.under_way = False
        row = None if found is None else table.row_type(*found)
        self._cache[table.name][key] = row
        return row
