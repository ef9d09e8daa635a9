"""State in SQLite: one file for each partition, so that a partition can move as one file.

The file is in WAL mode with `synchronous=NORMAL` by default, so a power cut may lose the last commits. That
loses no data: the executor decides the lost range again and resends the same events under the same ids,
which their receivers recognise.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from penstock.model import fault_points
from penstock.model.errors.olep import StoreFailed, StoreMismatch
from penstock.olep.outbox import pack, unpack
from penstock.olep.sql import declared, quoted, same_key
from penstock.olep.store import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    Claim,
    RowsRefused,
    Unsent,
    all_tables,
    fenced,
    fingerprint,
    log_grown,
    log_replaced,
)
from penstock.olep.table import COLUMN_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch
    from penstock.olep.table import Key, Table

ATTEMPT_SECONDS: Final = 0.01  # between attempts to switch a busy file to WAL mode
BUSY_SECONDS: Final = 30.0  # how long a claim waits for the previous owner's transaction
VALUES_MAX: Final = 100  # values bound by one statement; far more cost more than they save
WAL_PAGES: Final = 4000  # pages of 4 KiB in the write-ahead log before a checkpoint
DATA_ERRORS: Final = (  # the statement is at fault, not the file
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeEncodeError,
)

_INTERNAL_SCHEMA: Final = """
create table if not exists olep_meta (
  one integer primary key check (one = 1), application text not null, topic_id text not null,
  partition integer not null, tables text not null, position integer not null, epoch integer not null,
  partitions integer not null default 0
) strict;
create table if not exists olep_outbox (position integer primary key, events blob not null) strict;
"""


@dataclass(frozen=True, slots=True)
class SqliteStores:
    """Files below `directory`, named `<application>-<partition>.sqlite`."""

    directory: Path
    synchronous: str = "normal"  # or `full`: every commit survives a power cut

    def open(self, application: Application, topic_id: str, partition: int) -> SqliteStore:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.path(application, partition)
        return SqliteStore(path, application, topic_id, partition, synchronous=self.synchronous)

    def path(self, application: Application, partition: int) -> Path:
        return self.directory / f"{application.name}-{partition}.sqlite"


class SqliteStore:
    def __init__(
        self,
        path: Path,
        application: Application,
        topic_id: str,
        partition: int,
        *,
        synchronous: str = "normal",
    ) -> None:
        if synchronous not in {"normal", "full"}:
            raise ValueError(f"synchronous is {synchronous!r}, expected normal or full")
        self.name = str(path)
        self.path = path
        self.partition = partition
        self._topic_id = topic_id
        self._application = application
        self._tables = {table.name: table for table in all_tables(application)}
        self._epoch = 0
        try:
            self._db = connect(path, synchronous, WAL_PAGES)
        except sqlite3.Error as error:
            raise StoreFailed(store=self.name, reason=error) from error
        self._create()
        self._upserts = {name: _upsert(table) for name, table in self._tables.items()}
        where = {name: f"where {same_key(table)}" for name, table in self._tables.items()}
        self._removes = {name: f'delete from "{name}" {where[name]}' for name in self._tables}
        self._loads = {name: f"{_select(table)} {where[name]}" for name, table in self._tables.items()}

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        rows = self._read(self._loads[table.name], table.bound(key))
        return rows[0] if rows else None

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        return self._read(_select(table))

    def claim(self, partitions: int = 0) -> Claim:
        with self._transaction():
            position, epoch, known = self._db.execute(
                "update olep_meta set epoch = epoch + 1, partitions = iif(partitions = 0, ?, partitions)"
                " returning position, epoch, partitions",
                (partitions,),
            ).fetchone()
            if partitions not in {0, known}:
                raise log_grown(self._application, self.name, known, partitions)
        self._epoch = epoch
        return Claim(position, epoch)

    def commit(self, batch: Batch, *, sent: int) -> None:
        fault_points.reach(COMMIT_BEFORE)
        try:
            with self._transaction():
                self._write(batch)
                fault_points.reach(COMMIT_INSIDE)
                self._advance(batch, sent)
        except DATA_ERRORS as error:
            raise RowsRefused(str(error)) from error

    def position(self) -> int:
        position: int = self._read("select position from olep_meta")[0][0]
        return position

    def unsent(self) -> list[Unsent]:
        entries = self._read("select position, events from olep_outbox order by position")
        return [Unsent(position, unpack(events)) for position, events in entries]

    def close(self) -> None:
        self._db.close()

    def backup(self, path: Path) -> None:
        """Writes a consistent copy, with its position, as one file. Safe from other threads: it has its own
        connection, which reads one state of the file while the owner's continues to write."""
        source, copy = sqlite3.connect(self.path, BUSY_SECONDS), sqlite3.connect(path)
        try:
            source.backup(copy)
            copy.execute("pragma journal_mode=delete")
        finally:
            source.close()
            copy.close()

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(store=self.name, reason=error) from error

    def _write(self, batch: Batch) -> None:
        for name, changes in batch.changes.items():
            rows = [row for row in changes.values() if row is not None]
            # In the order of the index: random accounts took a third less time (bench.olep).
            with suppress(TypeError):  # keys of several types: SQLite refuses them below
                rows.sort(key=self._tables[name].key_of)
            self._put(name, rows)
            if len(rows) < len(changes):
                bound = self._tables[name].bound
                removed = [bound(key) for key, row in changes.items() if row is None]
                self._db.executemany(self._removes[name], removed)
        for name, rows in batch.appends.items():
            self._put(name, rows)
        if batch.outgoing:
            self._db.execute("insert into olep_outbox values (?, ?)", (batch.position, pack(batch.outgoing)))

    def _put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Writes several rows in one statement where there are enough: it saves a third of the time."""
        one, many, size = self._upserts[name]
        whole = len(rows) - len(rows) % size
        for at in range(0, whole, size):
            self._db.execute(many, [*chain.from_iterable(rows[at : at + size])])
        if whole < len(rows):
            self._db.executemany(one, rows[whole:])

    def _advance(self, batch: Batch, sent: int) -> None:
        self._db.execute("delete from olep_outbox where position <= ?", (sent,))
        advanced = self._db.execute(
            "update olep_meta set position = ? where epoch = ? and position = ?",
            (batch.position, self._epoch, batch.start),
        )
        if advanced.rowcount != 1:
            actual = self._db.execute("select epoch, position from olep_meta").fetchone()
            raise fenced(self, (self._epoch, batch.start), actual)

    def _create(self) -> None:
        with self._transaction():
            for statement in filter(str.strip, _INTERNAL_SCHEMA.split(";")):
                self._db.execute(statement)
            for table in self._tables.values():
                self._db.execute(_create(table))
            tables = fingerprint([*self._tables.values()])
            expected = (self._application.name, self._topic_id, self.partition, tables)
            self._db.execute("insert or ignore into olep_meta values (1, ?, ?, ?, ?, 0, 0, 0)", expected)
            query = "select application, topic_id, partition, tables from olep_meta"
            stored = self._db.execute(query).fetchone()
        self._compare(stored, expected)

    def _compare(self, stored: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        if stored == expected:
            return
        self._db.close()
        if (stored[0], stored[2:]) == (expected[0], expected[2:]):
            raise log_replaced(self._application, self.name, stored[1], expected[1])
        raise StoreMismatch(store=self.name, actual=_described(stored), expected=_described(expected))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("begin immediate")
            yield
            self._db.execute("commit")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            if isinstance(error, sqlite3.Error) and not isinstance(error, DATA_ERRORS):
                raise StoreFailed(store=self.name, reason=error) from error
            raise


def position_of(path: Path) -> tuple[str, int] | None:
    """The topic id and position of a store file, read without claiming it; None if it contains no state.

    Raises sqlite3.Error for a file that is not a store."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        if not db.execute("select 1 from sqlite_master where name = 'olep_meta'").fetchone():
            return None
        row: tuple[str, int] | None = db.execute("select topic_id, position from olep_meta").fetchone()
        return row
    finally:
        db.close()


def _described(made_for: Sequence[Any]) -> str:
    return f"application {made_for[0]}, partition {made_for[2]}, tables {made_for[3]}"


def _into_wal(db: sqlite3.Connection) -> None:
    """Switches to WAL mode. If two connections do so at once, SQLite refuses one without waiting: retries."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("pragma journal_mode=wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(ATTEMPT_SECONDS)


def connect(
    path: Path, synchronous: str, wal_pages: int, *, check_same_thread: bool = True
) -> sqlite3.Connection:
    db = sqlite3.connect(path, BUSY_SECONDS, 0, None, check_same_thread, cached_statements=256)
    _into_wal(db)
    db.execute(f"pragma synchronous={synchronous}")
    db.execute(f"pragma wal_autocheckpoint={wal_pages}")
    db.execute("pragma cache_size=-65536")  # KiB
    return db


def _select(table: Table[Any]) -> str:
    return f'select {quoted(table.names)} from "{table.name}"'


def _create(table: Table[Any]) -> str:
    # A one-column integer key is SQLite's rowid; other tables are clustered by their key.
    is_rowid = len(table.key) == 1 and table.columns[0].type is int
    return (
        f'create table if not exists "{table.name}" ({declared(table, COLUMN_TYPES)},'
        f" primary key ({quoted(table.key)})) strict{'' if is_rowid else ', without rowid'}"
    )


def _upsert(table: Table[Any]) -> tuple[str, str, int]:
    """A statement that writes one row, one that writes several, and how many those are."""
    head = f'{"insert" if table.append_only else "replace"} into "{table.name}" values '
    row = f"({', '.join('?' * len(table.columns))})"
    size = max(1, VALUES_MAX // len(table.columns))
    return head + row, head + ", ".join([row] * size), size
