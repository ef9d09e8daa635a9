"""The rows of one partition: what `decide` reads, and the changes that a batch will write.

One executor owns a partition, so a row stays valid in memory until that executor changes it. Rows are
cached across batches, and the store is read only on a miss. Changes accumulate until the store commits
them in one transaction. After a failed commit the cache is ahead of the store, and `discard` clears it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from penstock.olep.purity import store_reads
from penstock.olep.table import Remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.olep.table import Effect, Key, Row, Table

CACHED_ROWS_MAX: Final = 200_000  # rows of one table and partition

Changes = dict[str, dict[Any, tuple[Any, ...] | None]]  # table → key → row, or None if removed
Appends = dict[str, list[tuple[Any, ...]]]  # append-only table → rows


class Reader(Protocol):
    """The read methods of a store."""

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None: ...

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]: ...


class Rows:
    """Cached rows with pending changes. Implements `State`."""

    __slots__ = ("_cache", "_cached_max", "_reader", "_tables", "appends", "changes", "failure")

    changes: Changes
    appends: Appends
    failure: Exception | None  # of the store, while a row was read; nothing decided since counts

    def __init__(
        self, reader: Reader, tables: Sequence[Table[Any]], *, cached_max: int = CACHED_ROWS_MAX
    ) -> None:
        self._reader = reader
        self._tables = {table.name: table for table in tables}
        self._cached_max = cached_max
        self._cache: Changes = {table.name: {} for table in tables}
        self.committed()

    def get(self, table: Table[Row], key: Key) -> Row | None:
        try:
            return cast("Row | None", self._cache[table.name][key])
        except KeyError:
            return self._load(table, key)

    def apply(self, effects: Iterable[Effect]) -> None:
        """Applies effects. Their tables must have been checked."""
        cache, changes, appends = self._cache, self.changes, self.appends
        for effect in effects:
            table = effect.table
            name = table.name
            if isinstance(effect, Remove):
                cache[name][effect.key] = changes[name][effect.key] = None
            elif table.append_only:
                appends[name].append(effect.row)
            else:
                row = effect.row
                key = table.key_of(row)
                cache[name][key] = changes[name][key] = row

    def committed(self) -> None:
        """Called when the store has committed the changes."""
        self.changes = {name: {} for name, table in self._tables.items() if not table.append_only}
        self.failure = None
        self.appends = {name: [] for name, table in self._tables.items() if table.append_only}
        for rows in self._cache.values():
            if len(rows) > self._cached_max:
                # Drop the oldest half: dictionaries keep insertion order.
                for key in list(rows)[: len(rows) // 2]:
                    del rows[key]

    def discard(self) -> None:
        """Called when the store has refused the changes."""
        for rows in self._cache.values():
            rows.clear()
        self.committed()

    def _load(self, table: Table[Row], key: Key) -> Row | None:
        store_reads.in_progress = True
        try:
            values = self._reader.load(table, key) if table.is_key(key) else None
        except Exception as error:
            self.failure = error
            raise
        finally:
            store_reads.in_progress = False
        row = None if values is None else table.row_type(*values)
        self._cache[table.name][key] = row
        return row
