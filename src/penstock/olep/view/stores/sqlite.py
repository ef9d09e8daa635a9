"""Views in SQLite: one file for each generation, with full-text search (FTS5) where a projection wants it.

A table has the columns that its projection declares, `olep_partition`, and `olep_from`, the offset of the
event that wrote the row. Rows are in `<table>__rows`, replaced versions in `<table>__history`. Each version
points to the one before it (`olep_previous`), so history is written at the end of its table and has no index
by key. A removed row stays, marked, as long as its versions are retained. An append-only table has no
versions. A read as of a position runs the same SQL: on its connection, the name of each table is a view of
the newest versions that start below the position.

The text index has an entry for every retained version, so a search as of a position finds the text of that
position. Text, rows and position are written in one transaction.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from penstock.model import fault_points
from penstock.model.errors.views import ViewFailed
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.store.sqlite import DATA_ERRORS, connect
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    FOREVER,
    INTERNAL_TABLES,
    KEEP_SECONDS,
    split_versions,
)
from penstock.olep.view.stores.connection_pool import Pool
from penstock.olep.view.stores.serving_file import read_serving, write_serving
from penstock.olep.view.stores.sqlite_sql import InternalStatements, Statements
from penstock.olep.view.stores.stored_view import StoredView, as_view_failed, check_exists

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Version, ViewBatch
    from penstock.olep.view.projection import Projection

# Pages of 4 KiB in the write-ahead log before a checkpoint, which writes each changed page once, however
# often it changed. Half as many would cost a tenth of the throughput.
WAL_PAGES: Final = 32_000
KNOWN_MAX: Final = 50_000  # rows of one table and partition whose version the writer remembers
_KEY: Final = itemgetter(1)  # of a version
# The newest version of a row: its offset, its row, its number, and the newest row that is not None.
_Newest = tuple[int, tuple[Any, ...] | None, int, tuple[Any, ...] | None]
# Rows are joined by `+` instead of unpacking: it takes half the time, and there are many.
# ruff: noqa: RUF005
_INTERNAL_SCHEMA: Final = """
create table if not exists olep_view (
  one integer primary key check (one = 1), topic_id text not null, fingerprint text not null,
  epoch integer not null, history integer not null
) strict;
create table if not exists olep_position (
  partition integer primary key, position integer not null, horizon integer not null
) strict;
"""


@dataclass(frozen=True, slots=True)
class SqliteViews:
    """Files `<view>.<generation>.sqlite` in `directory`; `<view>.serving` names the one to read."""

    directory: Path
    keep_seconds: float = KEEP_SECONDS
    synchronous: str = "normal"

    def open(self, projection: Projection, topic_id: str, partitions: int, *, generation: int) -> SqliteView:
        self.directory.mkdir(parents=True, exist_ok=True)
        return SqliteView(self, projection, topic_id, partitions, generation)

    def path(self, view: str, generation: int) -> Path:
        return self.directory / f"{view}.{generation}.sqlite"

    def generations(self, view: str) -> list[int]:
        names = [each.name.split(".") for each in self.directory.glob(f"{view}.*.sqlite")]
        return sorted(int(parts[1]) for parts in names if len(parts) == 3 and parts[1].isdecimal())

    def serving(self, view: str) -> int | None:
        return read_serving(self.directory, view)

    def serve(self, view: str, generation: int) -> None:
        check_exists(self, view, generation)
        write_serving(self.directory, view, generation)

    def retire(self, view: str, generation: int) -> Position:
        check_exists(self, view, generation)
        path = self.path(view, generation)
        with as_view_failed(str(path), sqlite3.Error), closing(self.connect(path)) as db:
            db.execute("begin immediate")
            _, topic_id, positions = _claim(db, -1)
            db.execute("commit")
        return Position({topic_id: positions})

    def connect(self, path: Path) -> sqlite3.Connection:
        return connect(path, self.synchronous, WAL_PAGES, check_same_thread=False)

    def drop(self, view: str, generation: int) -> None:
        path = self.path(view, generation)
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            each.unlink(missing_ok=True)


class SqliteView(StoredView):
    errors = (sqlite3.Error,)
    layout = 2

    def __init__(
        self, views: SqliteViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        self.path = views.path(projection.name, generation)
        super().__init__(str(self.path), projection, topic_id, partitions, generation, views.keep_seconds)
        self._views = views
        self._history = 0  # the newest number of a version
        # Versions that this writer wrote last, by table and partition: they need not be read to be replaced.
        self._known: dict[tuple[str, int], dict[Any, _Newest]] = {}
        self._statements = {
            table.name: Statements(table, projection.text.get(table.name, ())) for table in projection.tables
        }
        self._internal = {table.name: InternalStatements(table) for table in INTERNAL_TABLES}
        self._pool = Pool(self._reading_connection)
        with self._as_view_failed():
            self._db = self._connect()
            self._create()
            self._text_ids = {name: self._newest_text(name) for name in projection.text}

    def claim(self) -> dict[int, int]:
        try:
            self._db.execute("begin immediate")
            self._epoch, _, positions = _claim(self._db, 1)
            self._text_ids = {name: self._newest_text(name) for name in self.projection.text}
            self._known.clear()
            (self._history,) = self._db.execute("select history from olep_view").fetchone()
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._rollback()
            raise ViewFailed(view=self.name, reason=error) from error
        return positions

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        statements = self._statements.get(table.name) or self._internal[table.name]
        bound = (*table.bound(key), partition)
        try:
            row: tuple[Any, ...] | None = self._db.execute(statements.load, bound).fetchone()
        except sqlite3.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error
        return row

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        statements = self._statements.get(table.name) or self._internal[table.name]
        with self._as_view_failed():
            return self._db.execute(statements.scan, (partition,)).fetchall()

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        fault_points.reach(COMMIT_BEFORE)
        before = dict(self._text_ids), self._history
        try:
            self._db.execute("begin immediate")
            (epoch,) = self._db.execute("select epoch from olep_view").fetchone()
            self._check_writer(epoch, _positions(self._db), batches)
            for batch in batches:
                self._write(batch)
            fault_points.reach(COMMIT_INSIDE)
            self._db.executemany(
                "update olep_position set position = ? where partition = ?",
                [(batch.position, batch.partition) for batch in batches if batch.position != batch.start],
            )
            if self._history != before[1]:
                self._db.execute("update olep_view set history = ?", (self._history,))
            self._prune(time.monotonic())
            self._db.execute("commit")
        except BaseException as error:
            self._rollback()
            self._text_ids, self._history = before
            self._known.clear()
            if isinstance(error, (*DATA_ERRORS, TypeError)):  # TypeError: keys of several types have no order
                raise RowsRefused(str(error)) from error
            if isinstance(error, sqlite3.Error):
                raise ViewFailed(view=self.name, reason=error) from error
            raise

    def position(self) -> Position:
        with self._as_view_failed(), self._pool.connection("plain") as db:
            return self._at(_positions(db))

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[SqliteReader]:
        """The reader also runs your SQL (`query`) and full-text searches (`search`)."""
        try:
            with self._pool.connection("plain" if as_of is None else "as-of") as db:
                db.execute("begin")
                try:
                    yield self._reader(db, as_of)
                finally:
                    db.execute("rollback")
        except sqlite3.OperationalError as error:
            raise ViewFailed(view=self.name, reason=error) from error

    def close(self) -> None:
        self._db.close()
        self._pool.close()

    def _reader(self, db: sqlite3.Connection, as_of: Position | None) -> SqliteReader:
        rows = db.execute("select partition, position, horizon from olep_position").fetchall()
        shown = self._shown(as_of, {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})
        if as_of is not None:
            db.executemany("replace into temp.olep_as_of values (?, ?)", list(shown.items()))
        return SqliteReader(db, self._at(shown), self._statements, as_of is not None)

    def _write(self, batch: ViewBatch) -> None:
        partition, many = batch.partition, self._db.executemany
        for name, versions in batch.versions.items():
            if not versions:
                continue
            statements = self._statements[name]
            if statements.table.append_only:
                ordered = sorted(versions, key=_KEY)  # also in key order
                many(statements.insert, [row + (partition, at) for at, _, row in ordered if row is not None])
                if statements.text:
                    self._write_text(statements, partition, {}, [], versions)
                continue
            moved = self._write_versions(statements, partition, versions)
            if statements.text:
                first, ended, last = split_versions(versions)
                # If no row was replaced, no text ends.
                self._write_text(statements, partition, first if moved else {}, ended, last.values())
        for name, changes in batch.internal.items():
            internal = self._internal[name]
            keys = internal.table.bound
            many(internal.replace, [(*row, partition) for row in changes.values() if row is not None])
            many(internal.delete, [(*keys(key), partition) for key, row in changes.items() if row is None])

    def _write_versions(self, statements: Statements, partition: int, versions: Sequence[Version]) -> int:
        """Chains the versions of rows; returns how many were replaced.

        Each version gets a number, under which the version before it is in the history. Numbers are never
        used again. If there is no version before it, none has its number, and the chain ends."""
        many, bound, number = self._db.executemany, statements.table.bound, self._history
        width = len(statements.table.key)
        known = self._known.setdefault((statements.table.name, partition), {})
        first: dict[Any, int] = {}
        superseded: list[tuple[Any, ...]] = []
        last: dict[Any, _Newest] = {}
        for at, key, row in versions:
            number += 1
            before = last.get(key) or known.get(key)
            if before is None:
                first[key] = number
                last[key] = (at, row, number, row)
                continue
            since, replaced, previous, newest = before
            if since == at:  # written twice by one event
                last[key] = (at, row, previous, row or newest)
                continue
            values = replaced[width:] if replaced else statements.nothing
            superseded.append((number,) + values + (since, replaced is None, previous))
            last[key] = (at, row, number, row or newest)
        self._history = number
        # In key order, so that neighbours in the B-tree are written together.
        moves = [(first[key],) + bound(key) + (partition,) for key in sorted(first)]
        moved = many(statements.move_to_history, moves).rowcount
        many(statements.insert_history, superseded)
        ordered = [(key, last[key]) for key in sorted(last)]
        many(statements.replace, [row + (partition, at, n) for _, (at, row, n, _) in ordered if row])
        if removed := [(key, version) for key, version in ordered if not version[1]]:
            # A row that was written and removed within the batch is stored to have a version to point to.
            many(statements.replace_removed, [r + (partition, at, n) for _, (at, _, n, r) in removed if r])
            untouched = [(at, n) + bound(key) + (partition,) for key, (at, _, n, r) in removed if not r]
            many(statements.remove, untouched)
        known.update(last)
        if len(known) > KNOWN_MAX:
            for key in list(known)[: KNOWN_MAX // 2]:  # dictionaries keep insertion order
                del known[key]
        return moved + len(superseded)

    def _write_text(
        self,
        statements: Statements,
        partition: int,
        first: Mapping[Any, int],
        ended: Iterable[tuple[Version, int]],
        last: Iterable[Version],
    ) -> None:
        many, bound, texts = self._db.executemany, statements.table.bound, statements.texts
        if first:
            many(statements.text_end, [(until, *bound(key), partition) for key, until in first.items()])
        entries = [
            (bound(key) + (partition, at, until), texts(row))
            for (at, key, row), until in chain(ended, zip(last, repeat(FOREVER)))
            if row is not None
        ]
        before = self._text_ids[statements.table.name]
        self._text_ids[statements.table.name] = before + len(entries)
        numbers = range(before + 1, before + 1 + len(entries))
        many(statements.text_entry, [(n,) + entry + text for n, (entry, text) in zip(numbers, entries)])
        many(statements.text_index, [(n,) + text for n, (_, text) in zip(numbers, entries)])

    def _prune(self, now: float) -> None:
        """Deletes the versions that ended before the horizon, about once a second."""
        if not self._horizon.due(now):
            return
        expired = self._horizon.mark(now, (_positions(self._db), self._history))
        if expired is None:
            return
        positions, newest = expired
        for statements in self._statements.values():
            if not statements.table.append_only:
                self._db.execute(statements.prune, (newest,))
                self._db.executemany(statements.prune_removed, positions.items())
        for name in self.projection.text:
            for partition, position in positions.items():
                self._prune_text(self._statements[name], partition, position)
        self._db.executemany(
            "update olep_position set horizon = ? where partition = ?",
            [(position, partition) for partition, position in positions.items()],
        )

    def _prune_text(self, statements: Statements, partition: int, position: int) -> None:
        entries = self._db.execute(statements.text_expired, (partition, position)).fetchall()
        self._db.executemany(statements.text_unindex, entries)
        self._db.executemany(statements.text_drop, [(row[0],) for row in entries])

    def _newest_text(self, name: str) -> int:
        newest: int = self._db.execute(f'select coalesce(max(id), 0) from "{name}__text"').fetchone()[0]
        return newest

    def _create(self) -> None:
        self._db.execute("begin immediate")
        try:
            for statement in filter(str.strip, _INTERNAL_SCHEMA.split(";")):
                self._db.execute(statement)
            query = "select topic_id, fingerprint from olep_view"
            if (built_for := self._db.execute(query).fetchone()) is None:
                built_for = (self._topic_id, self._built_by())
                self._db.execute("insert into olep_view values (1, ?, ?, 0, 0)", built_for)
            self._check_compatible(*built_for)
            partitions = [(partition,) for partition in range(self._partitions)]
            self._db.executemany("insert or ignore into olep_position values (?, 0, 0)", partitions)
            both = [*self._statements.values()], [*self._internal.values()]
            for statement in (each for kind in both for statements in kind for each in statements.create):
                self._db.execute(statement)
            self._db.execute("commit")
        except BaseException:
            self._db.close()
            raise

    def _reading_connection(self, kind: str) -> sqlite3.Connection:
        if not self.path.exists():
            raise ViewFailed(view=self.name, reason="this generation was dropped")
        db = self._connect()
        if kind == "as-of":
            db.execute("create temp table olep_as_of (partition integer primary key, position integer)")
            for statements in self._statements.values():
                db.execute(statements.as_of)
        else:
            db.execute("pragma query_only=on")
        return db

    def _connect(self) -> sqlite3.Connection:
        db = self._views.connect(self.path)
        db.execute("pragma temp_store=memory")
        return db

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")


def _claim(db: sqlite3.Connection, sign: int) -> tuple[int, str, dict[int, int]]:
    """Sets a new epoch; returns it with the topic id and the positions."""
    query = "update olep_view set epoch = ? * (abs(epoch) + 1) returning epoch, topic_id"
    epoch, topic_id = db.execute(query, (sign,)).fetchone()
    return epoch, topic_id, _positions(db)


def _positions(db: sqlite3.Connection) -> dict[int, int]:
    return dict(db.execute("select partition, position from olep_position").fetchall())


class SqliteReader:
    """The rows now, or as of a position."""

    def __init__(
        self, db: sqlite3.Connection, position: Position, statements: Mapping[str, Statements], as_of: bool
    ) -> None:
        self.position = position
        self._db = db
        self._statements = statements
        self._as_of = as_of

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        statements = self._statements[table.name]
        rows = self._db.execute(statements.get, table.bound(key))
        return [(row[0], row[1:]) for row in rows]

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for row in self._db.execute(self._statements[table.name].rows):
            yield row[0], row[1:]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL on the projection's tables, which show the rows as of `position`."""
        return self._db.execute(sql, values).fetchall()

    def search(self, table: Table[Any], text: str, *, limit: int = 20) -> list[tuple[int, Key]]:
        """(partition, key) of the rows that contain all words, best first. FTS5's syntax is quoted."""
        statements = self._statements[table.name]
        words = " ".join('"' + word.replace('"', '""') + '"' for word in text.split())
        if not words:
            return []
        query = statements.text_search_as_of if self._as_of else statements.text_search
        hits = self._db.execute(query, (words, limit))
        single = len(table.key) == 1
        return [(row[0], row[1] if single else row[1:]) for row in hits]
