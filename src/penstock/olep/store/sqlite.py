"""State in SQLite: one file for each partition, so that a partition moves as one file.

The file runs in WAL mode with `synchronous=NORMAL` by default. A power cut may then roll it back
by some commits; that loses nothing, since state is a function of the log: the executor decides
the lost stretch again and resends the same events with the same ids, which their receivers know.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from penstock.model import faults
from penstock.model.errors.olep import LogReplaced, StoreFailed, StoreFenced, StoreMismatch
from penstock.olep.outbox import pack, unpack
from penstock.olep.store import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    Claim,
    RowsRefused,
    Unsent,
    all_tables,
    fingerprint,
    log_grown,
)
from penstock.olep.table import COLUMN_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch
    from penstock.olep.table import Key, Table

ATTEMPT_SECONDS: Final = 0.01  # between two attempts at what somebody else attempts as well
BUSY_SECONDS: Final = 30.0  # how long a claim waits for the owner before it to end its transaction
VALUES_MAX: Final = 100  # bound by one statement; far more of them cost more than they save
WAL_PAGES: Final = 4000  # pages of 4 KiB before the log of writes is folded back
_DATA_ERRORS: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeEncodeError,
)

_LAYER: Final = """
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
    synchronous: str = "normal"  # or `full`: each commit survives a power cut by itself

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
            self._db = _connect(path, synchronous)
            self._create()
        except sqlite3.Error as error:
            raise StoreFailed(store=self.name, reason=error) from error
        self._upserts = {name: _upsert(table) for name, table in self._tables.items()}
        self._removes = {name: _remove(table) for name, table in self._tables.items()}
        self._loads = {name: _load(table) for name, table in self._tables.items()}

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        bound = key if len(table.key) > 1 else (key,)
        found: tuple[Any, ...] | None = self._db.execute(self._loads[table.name], bound).fetchone()
        return found

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        return self._db.execute(f'select {_names(table)} from "{table.name}"').fetchall()

    def claim(self, partitions: int = 0) -> Claim:
        try:
            self._db.execute("begin immediate")
            position, epoch, known = self._db.execute(
                "update olep_meta set epoch = epoch + 1, partitions = iif(partitions = 0, ?, partitions)"
                " returning position, epoch, partitions",
                (partitions,),
            ).fetchone()
            if partitions not in {0, known}:
                self._rollback()
                raise log_grown(self._application, self.name, known, partitions)
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._rollback()
            raise StoreFailed(store=self.name, reason=error) from error
        self._epoch = epoch
        return Claim(position, epoch)

    def commit(self, batch: Batch, *, sent: int) -> None:
        faults.reach(COMMIT_BEFORE)
        try:
            self._db.execute("begin immediate")
            self._write(batch)
            faults.reach(COMMIT_INSIDE)
            self._advance(batch, sent)
            self._db.execute("commit")
        except _DATA_ERRORS as error:
            self._rollback()
            raise RowsRefused(str(error)) from error
        except sqlite3.Error as error:
            self._rollback()
            raise StoreFailed(store=self.name, reason=error) from error

    def position(self) -> int:
        position: int = self._db.execute("select position from olep_meta").fetchone()[0]
        return position

    def unsent(self) -> list[Unsent]:
        found = self._db.execute("select position, events from olep_outbox order by position").fetchall()
        return [Unsent(position, unpack(events)) for position, events in found]

    def close(self) -> None:
        self._db.close()

    def backup(self, path: Path) -> None:
        """A consistent copy as one file, with the position it stands at."""
        copy = sqlite3.connect(path)
        try:
            self._db.backup(copy)
            copy.execute("pragma journal_mode=delete")
        finally:
            copy.close()

    def _write(self, batch: Batch) -> None:
        for name, changes in batch.changes.items():
            rows = [row for row in changes.values() if row is not None]
            self._put(name, rows)
            if len(rows) < len(changes):
                several = len(self._tables[name].key) > 1
                gone = [key for key, row in changes.items() if row is None]
                self._db.executemany(self._removes[name], gone if several else [(key,) for key in gone])
        for name, rows in batch.appends.items():
            self._put(name, rows)
        if batch.outgoing:
            self._db.execute("insert into olep_outbox values (?, ?)", (batch.position, pack(batch.outgoing)))

    def _put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Several rows a statement while there are enough of them: a third less work for each."""
        one, many, size = self._upserts[name]
        whole = len(rows) - len(rows) % size
        for at in range(0, whole, size):
            self._db.execute(many, [*chain.from_iterable(rows[at : at + size])])
        if whole < len(rows):
            self._db.executemany(one, rows[whole:])

    def _advance(self, batch: Batch, sent: int) -> None:
        self._db.execute("delete from olep_outbox where position <= ?", (sent,))
        advanced = self._db.execute(
            "update olep_meta set position = ? where epoch = ? and position <= ?",
            (batch.position, self._epoch, batch.position),
        )
        if advanced.rowcount != 1:
            actual = self._db.execute("select epoch from olep_meta").fetchone()[0]
            self._rollback()
            raise StoreFenced(partition=self.partition, store=self.name, epoch=self._epoch, actual=actual)

    def _create(self) -> None:
        self._db.execute("begin immediate")
        try:
            for statement in filter(str.strip, _LAYER.split(";")):
                self._db.execute(statement)
            for table in self._tables.values():
                self._db.execute(_create(table))
            tables = fingerprint([*self._tables.values()])
            facts = (self._application.name, self._topic_id, self.partition, tables)
            self._db.execute("insert or ignore into olep_meta values (1, ?, ?, ?, ?, 0, 0, 0)", facts)
            found = self._db.execute(
                "select application, topic_id, partition, tables from olep_meta"
            ).fetchone()
            self._db.execute("commit")
        except sqlite3.Error:
            self._rollback()
            raise
        self._compare(found, facts)

    def _compare(self, found: tuple[Any, ...], facts: tuple[Any, ...]) -> None:
        if found == facts:
            return
        self._db.close()
        if (found[0], found[2:]) == (facts[0], facts[2:]):
            raise LogReplaced(
                store=self.name,
                topic_id=found[1],
                topic=f"the log of {self._application.name}",
                actual=facts[1],
            )
        raise StoreMismatch(store=self.name, found=_described(found), expected=_described(facts))

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")


def position_of(path: Path) -> tuple[str, int] | None:
    """The topic id and position that a store file stands at, read without claiming it; none if it
    holds no state yet. Raises sqlite3.Error for what is no store."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        if not db.execute("select 1 from sqlite_master where name = 'olep_meta'").fetchone():
            return None
        found: tuple[str, int] | None = db.execute("select topic_id, position from olep_meta").fetchone()
        return found
    finally:
        db.close()


def _described(facts: Sequence[Any]) -> str:
    return f"application {facts[0]}, partition {facts[2]}, tables {facts[3]}"


def into_wal(db: sqlite3.Connection) -> None:
    """Two who do this to a new file at once: SQLite refuses one of them without waiting."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("pragma journal_mode=wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(ATTEMPT_SECONDS)


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256)
    into_wal(db)
    db.execute(f"pragma synchronous={synchronous}")
    db.execute(f"pragma wal_autocheckpoint={WAL_PAGES}")
    db.execute("pragma cache_size=-65536")  # KiB
    return db


def _names(table: Table[Any]) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


def _create(table: Table[Any]) -> str:
    columns = ", ".join(
        f'"{name}" {COLUMN_TYPES[kind]}{"" if optional else " not null"}'
        for name, kind, optional in table.columns
    )
    keys = ", ".join(f'"{name}"' for name in table.key)
    # A one-column integer key is SQLite's own row number; others make the table its own index.
    own = len(table.key) == 1 and table.columns[0].type is int
    return (
        f'create table if not exists "{table.name}" ({columns}, primary key ({keys})) '
        f"strict{'' if own else ', without rowid'}"
    )


def _upsert(table: Table[Any]) -> tuple[str, str, int]:
    """The statements that write one row and several, and how many these are."""
    head = f'{"insert" if table.append_only else "replace"} into "{table.name}" values '
    row = f"({', '.join('?' * len(table.columns))})"
    size = max(1, VALUES_MAX // len(table.columns))
    return head + row, head + ", ".join([row] * size), size


def _remove(table: Table[Any]) -> str:
    return f'delete from "{table.name}" where {_where(table)}'


def _load(table: Table[Any]) -> str:
    return f'select {_names(table)} from "{table.name}" where {_where(table)}'


def _where(table: Table[Any]) -> str:
    return " and ".join(f'"{name}" = ?' for name in table.key)
