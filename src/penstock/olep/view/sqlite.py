"""Views in SQLite: one file for each generation, with full-text search (FTS5) where it is asked for.

A table has the columns that its projection declares, and `olep_partition` and `olep_from`, the
offset of the event that wrote the row. Versions that were replaced lie in `<table>__past`, with
`olep_until`. A row is part of the view at a position if its event stands below it and its
replacement does not. A read as of a position runs the same SQL: on its connection the name of each
table is a view over both.

For text, every version kept has an entry in the index, so that a search as of a position finds
what stood there then. Text, rows and position are one transaction.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.model import faults
from penstock.model.errors.views import ViewFailed, ViewMissing, ViewTaken
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.store.sqlite import BUSY_SECONDS, into_wal
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    FOREVER,
    KEEP_SECONDS,
    LAYER_TABLES,
    Horizon,
    check_kept,
    check_made_for,
    fingerprint,
    replaced,
)
from penstock.olep.view.pool import Pool
from penstock.olep.view.sqlite_sql import LayerStatements, Statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch, Version
    from penstock.olep.view.projection import Projection

# Pages of 4 KiB before the log of writes is folded back: each page that changed is then written once more,
# however often it changed before. With half as many a tenth fewer events are applied a second.
WAL_PAGES: Final = 32_000
_KEY: Final = itemgetter(1)  # of a version
# Rows are joined by `+` and not unpacked: there are many of them, and it takes half the time.
# ruff: noqa: RUF005
_DATA_ERRORS: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeEncodeError,
)
_LAYER: Final = """
create table if not exists olep_view (
  one integer primary key check (one = 1), topic_id text not null, made text not null, epoch integer not null
) strict;
create table if not exists olep_position (
  partition integer primary key, position integer not null, horizon integer not null
) strict;
"""


@dataclass(frozen=True, slots=True)
class SqliteViews:
    """Files below `directory`: `<view>.<generation>.sqlite`, and `<view>.serving` names the one to read."""

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
        try:
            return int((self.directory / f"{view}.serving").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def serve(self, view: str, generation: int) -> None:
        if generation not in self.generations(view):
            raise ViewMissing(view=view, generation=generation)
        half = self.directory / f".{view}.serving.{os.getpid()}"
        half.write_text(str(generation), encoding="utf-8")
        half.replace(self.directory / f"{view}.serving")

    def drop(self, view: str, generation: int) -> None:
        path = self.path(view, generation)
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            each.unlink(missing_ok=True)


class SqliteView:
    fts: ClassVar[bool] = True  # whether words are indexed in the same file

    def __init__(
        self, views: SqliteViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        self.path = views.path(projection.name, generation)
        self.name = str(self.path)
        self.generation = generation
        self.projection = projection
        self._topic_id = topic_id
        self._partitions = partitions
        self._synchronous = views.synchronous
        self._epoch = 0
        self._horizon = Horizon(views.keep_seconds)
        self._statements = {
            table.name: Statements(table, projection.text.get(table.name, ()), fts=self.fts)
            for table in projection.tables
        }
        self._layer = {table.name: LayerStatements(table) for table in LAYER_TABLES}
        self._pool = Pool(self._reading_connection)
        try:
            self._db = self._connect()
            self._create()
            self._text_ids = {name: self._newest_text(name) for name in projection.text}
        except sqlite3.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error

    def claim(self) -> dict[int, int]:
        try:
            self._db.execute("begin immediate")
            (self._epoch,) = self._db.execute(
                "update olep_view set epoch = epoch + 1 returning epoch"
            ).fetchone()
            found = dict(self._db.execute("select partition, position from olep_position"))
            self._text_ids = {name: self._newest_text(name) for name in self.projection.text}
            self._db.execute("commit")
        except sqlite3.Error as error:
            self._rollback()
            raise ViewFailed(view=self.name, reason=error) from error
        return found

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        bound = key if len(table.key) > 1 else (key,)
        statements = self._statements.get(table.name) or self._layer[table.name]
        found: tuple[Any, ...] | None = self._db.execute(statements.load, (*bound, partition)).fetchone()
        return found

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        statements = self._statements.get(table.name) or self._layer[table.name]
        return self._db.execute(statements.scan, (partition,)).fetchall()

    def commit(self, stretches: Sequence[Stretch]) -> None:
        faults.reach(COMMIT_BEFORE)
        before = dict(self._text_ids)
        try:
            self._db.execute("begin immediate")
            self._check_epoch()
            for stretch in stretches:
                self._write(stretch)
            faults.reach(COMMIT_INSIDE)
            self._advance(stretches)
            self._prune(time.monotonic())
            self._seal()
            self._db.execute("commit")
        except BaseException as error:
            self._rollback()
            self._text_ids = before
            if isinstance(error, _DATA_ERRORS):
                raise RowsRefused(str(error)) from error
            if isinstance(error, sqlite3.Error):
                raise ViewFailed(view=self.name, reason=error) from error
            raise

    def position(self) -> Position:
        try:
            with self._pool.connection("plain") as db:
                found = dict(db.execute("select partition, position from olep_position"))
        except sqlite3.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error
        return Position({self._topic_id: found})

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[SqliteReader]:
        """The reader also takes SQL of one's own (`query`) and searches (`search`)."""
        try:
            with self._pool.connection("plain" if cut is None else "as-of") as db:
                db.execute("begin")
                try:
                    yield self._reader(db, cut)
                finally:
                    db.execute("rollback")
        except sqlite3.OperationalError as error:
            raise ViewFailed(view=self.name, reason=error) from error

    def close(self) -> None:
        self._db.close()
        self._pool.close()

    def _reader(self, db: sqlite3.Connection, cut: Position | None) -> SqliteReader:
        found = db.execute("select partition, position, horizon from olep_position").fetchall()
        positions = {partition: position for partition, position, _ in found}
        if cut is not None:
            asked = cut.of_topic(self.name, self._topic_id)
            check_kept(self.name, asked, positions, {p: horizon for p, _, horizon in found})
            positions = {p: asked.get(p, 0) for p in positions}
            db.executemany("replace into temp.olep_cut values (?, ?)", list(positions.items()))
        return self._made_reader(db, Position({self._topic_id: positions}), cut is not None)

    def _made_reader(self, db: sqlite3.Connection, position: Position, as_of: bool) -> SqliteReader:
        return SqliteReader(db, position, self._statements, as_of)

    def _write(self, stretch: Stretch) -> None:
        partition, many = stretch.partition, self._db.executemany
        for name, versions in stretch.versions.items():
            if not versions:
                continue
            statements = self._statements[name]
            if statements.table.append_only:
                # Neighbours in the tree are written together, here as below.
                ordered = sorted(versions, key=_KEY)
                many(statements.insert, [row + (partition, at) for at, _, row in ordered if row is not None])
                if statements.text:
                    self._write_text(statements, partition, {}, [], versions)
                continue
            first, ended, last = replaced(versions)
            keys = statements.bound
            begun = [(first[key], *keys(key), partition) for key in sorted(first)]
            found = many(statements.to_past, begun).rowcount
            many(statements.past, [v.row + (partition, v.offset, until) for v, until in ended if v.row])
            ordered = [last[key] for key in sorted(last)]
            many(statements.replace, [row + (partition, at) for at, _, row in ordered if row is not None])
            if gone := [(*keys(key), partition) for _, key, row in ordered if row is None]:
                many(statements.delete, gone)
            if statements.text:
                # Where no row stood before, no text ends.
                self._write_text(statements, partition, first if found else {}, ended, last.values())
        for name, changes in stretch.layer.items():
            layer = self._layer[name]
            many(layer.replace, [(*row, partition) for row in changes.values() if row is not None])
            many(layer.delete, [(*layer.bound(k), partition) for k, row in changes.items() if row is None])

    def _write_text(
        self,
        statements: Statements,
        partition: int,
        first: Mapping[Any, int],
        ended: Iterable[tuple[Version, int]],
        last: Iterable[Version],
    ) -> None:
        many = self._db.executemany
        if first:
            keys = statements.bound
            many(statements.text_end, [(until, *keys(key), partition) for key, until in first.items()])
        bound, texts = statements.bound, statements.texts
        said = [
            (bound(key) + (partition, at, until), texts(row))
            for (at, key, row), until in chain(ended, zip(last, repeat(FOREVER)))
            if row is not None
        ]
        before = self._text_ids[statements.table.name]
        self._text_ids[statements.table.name] = before + len(said)
        numbers = range(before + 1, before + 1 + len(said))
        many(statements.text_entry, [(n,) + entry + text for n, (entry, text) in zip(numbers, said)])
        self._add_words(statements, [(n,) + text for n, (_, text) in zip(numbers, said)])

    def _add_words(self, statements: Statements, words: Sequence[tuple[Any, ...]]) -> None:
        self._db.executemany(statements.text_words, words)

    def _remove_words(self, statements: Statements, words: Sequence[tuple[Any, ...]]) -> None:
        self._db.executemany(statements.text_unword, words)

    def _seal(self) -> None:
        """All is written but for the commit. For those who keep words elsewhere."""

    def _check_epoch(self) -> None:
        (actual,) = self._db.execute("select epoch from olep_view").fetchone()
        if actual != self._epoch:
            raise ViewTaken(view=self.name, epoch=self._epoch, actual=actual)

    def _advance(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            moved = self._db.execute(
                "update olep_position set position = ?1 where partition = ?2 and position <= ?1",
                (stretch.position, stretch.partition),
            )
            if moved.rowcount != 1:
                raise ViewTaken(
                    view=self.name, epoch=self._epoch, actual=f"a position above {stretch.position}"
                )

    def _prune(self, now: float) -> None:
        """Sets a mark now and then; drops the versions that ended before one that is old enough."""
        if not self._horizon.due(now):
            return
        positions = dict(self._db.execute("select partition, position from olep_position"))
        newest = {
            name: self._db.execute(f'select coalesce(max(rowid), 0) from "{name}__past"').fetchone()[0]
            for name, statements in self._statements.items()
            if not statements.table.append_only
        }
        gone = self._horizon.mark(now, (positions, newest))
        if gone is None:
            return
        positions, newest = gone
        for name, row in newest.items():
            self._db.execute(f'delete from "{name}__past" where rowid <= ?', (row,))
        for name in self.projection.text:
            for partition, position in positions.items():
                self._prune_text(self._statements[name], partition, position)
        self._db.executemany(
            "update olep_position set horizon = ? where partition = ?",
            [(position, partition) for partition, position in positions.items()],
        )

    def _prune_text(self, statements: Statements, partition: int, position: int) -> None:
        found = self._db.execute(statements.text_gone, (partition, position)).fetchall()
        self._remove_words(statements, found)
        self._db.executemany(statements.text_drop, [(row[0],) for row in found])

    def _newest_text(self, name: str) -> int:
        newest: int = self._db.execute(f'select coalesce(max(id), 0) from "{name}__text"').fetchone()[0]
        return newest

    def _create(self) -> None:
        self._db.execute("begin immediate")
        try:
            for statement in filter(str.strip, _LAYER.split(";")):
                self._db.execute(statement)
            made = [*self._statements.values()], [*self._layer.values()]
            for statement in (each for kind in made for statements in kind for each in statements.create):
                self._db.execute(statement)
            facts = (self._topic_id, fingerprint(self.projection))
            self._db.execute("insert or ignore into olep_view values (1, ?, ?, 0)", facts)
            self._db.executemany(
                "insert or ignore into olep_position values (?, 0, 0)",
                [(p,) for p in range(self._partitions)],
            )
            found = self._db.execute("select topic_id, made from olep_view").fetchone()
        finally:
            self._db.execute("commit")
        try:
            check_made_for(self.name, found, self.projection, self._topic_id)
        except BaseException:
            self._db.close()
            raise

    def _reading_connection(self, kind: str) -> sqlite3.Connection:
        db = self._connect()
        if kind == "as-of":
            db.execute("create temp table olep_cut (partition integer primary key, position integer)")
            for statements in self._statements.values():
                db.execute(statements.as_of)
        else:
            db.execute("pragma query_only=on")
        return db

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            cached_statements=256,
            check_same_thread=False,
        )
        into_wal(db)
        db.execute(f"pragma synchronous={self._synchronous}")
        db.execute(f"pragma wal_autocheckpoint={WAL_PAGES}")
        db.execute("pragma cache_size=-65536")  # KiB
        db.execute("pragma temp_store=memory")
        return db

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")


class SqliteReader:
    """Rows as of a position, or as they are."""

    def __init__(
        self, db: sqlite3.Connection, position: Position, statements: Mapping[str, Statements], as_of: bool
    ) -> None:
        self.position = position
        self._db = db
        self._statements = statements
        self._as_of = as_of

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        statements = self._statements[table.name]
        found = self._db.execute(statements.get, statements.bound(key))
        return [(row[0], row[1:]) for row in found]

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for row in self._db.execute(self._statements[table.name].rows):
            yield row[0], row[1:]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """SQL on the tables of the projection; they show this reader's position."""
        return self._db.execute(sql, values).fetchall()

    def search(self, table: Table[Any], text: str, *, limit: int = 20) -> list[tuple[int, Key]]:
        """(partition, key) of rows whose text matches, best first. Words are searched as they are:
        what FTS5 takes for syntax is quoted."""
        statements = self._statements[table.name]
        words = " ".join('"' + word.replace('"', '""') + '"' for word in text.split())
        if not words:
            return []
        query = statements.text_search_as_of if self._as_of else statements.text_search
        found = self._db.execute(query, (words, limit))
        single = len(table.key) == 1
        return [(row[0], row[1] if single else row[1:]) for row in found]
