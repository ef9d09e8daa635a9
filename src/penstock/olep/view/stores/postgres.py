"""Views in PostgreSQL: a schema for each generation, with full-text search where a projection wants it.

Rows and their history are laid out as in SQLite (`penstock.olep.view.stores.sqlite`). A commit locks the
row with the epoch, so a writer that lost the view is refused before it writes anything.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import fault_points
from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import ViewFailed
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.store.postgres import refuses_rows
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    INTERNAL_TABLES,
    KEEP_SECONDS,
    fingerprint,
    split_versions,
)
from penstock.olep.view.stores.connection_pool import Pool
from penstock.olep.view.stores.postgres_sql import InternalStatements, Statements
from penstock.olep.view.stores.stored_view import StoredView, as_view_failed, check_exists

try:
    import psycopg
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="a view in PostgreSQL", module="psycopg", extra="olep-postgres") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import ViewBatch
    from penstock.olep.view.projection import Projection

_REGISTRY: Final = "create table if not exists olep_views (view text primary key, serving integer not null)"


@dataclass(frozen=True, slots=True)
class PostgresViews:
    """`dsn` in libpq's form. Schemas `view_<name>_<generation>`; `olep_views` names the serving one."""

    dsn: str
    keep_seconds: float = KEEP_SECONDS

    def open(
        self, projection: Projection, topic_id: str, partitions: int, *, generation: int
    ) -> PostgresView:
        return PostgresView(self, projection, topic_id, partitions, generation)

    def generations(self, view: str) -> list[int]:
        query = "select nspname from pg_namespace where nspname like %s"
        with self._connected() as db:
            names = [name for (name,) in db.execute(query, (f"view\\_{view}\\_%",))]
        suffixes = [name.removeprefix(f"view_{view}_") for name in names]
        return sorted(int(each) for each in suffixes if each.isdecimal())

    def serving(self, view: str) -> int | None:
        with self._connected() as db:
            if db.execute("select to_regclass('olep_views')").fetchone() == (None,):
                return None
            row = db.execute("select serving from olep_views where view = %s", (view,)).fetchone()
        return row[0] if row else None

    def serve(self, view: str, generation: int) -> None:
        check_exists(self, view, generation)
        with self._connected() as db:
            db.execute("select pg_advisory_xact_lock(hashtext('olep_views'))")
            db.execute(_REGISTRY)
            db.execute(
                "insert into olep_views values (%s, %s)"
                " on conflict (view) do update set serving = excluded.serving",
                (view, generation),
            )

    def retire(self, view: str, generation: int) -> Position:
        check_exists(self, view, generation)
        with self._connected() as db:
            _, topic_id, positions = _claim(db, f'"view_{view}_{generation}"', -1)
        return Position({topic_id: positions})

    def drop(self, view: str, generation: int) -> None:
        with self._connected() as db:
            db.execute(f'drop schema if exists "view_{view}_{generation}" cascade'.encode())

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with as_view_failed("PostgreSQL", psycopg.Error), psycopg.connect(self.dsn) as db:
            yield db


class PostgresView(StoredView):
    errors = (psycopg.Error,)

    def __init__(
        self, views: PostgresViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        name = f"PostgreSQL schema view_{projection.name}_{generation}"
        super().__init__(name, projection, topic_id, partitions, generation, views.keep_seconds)
        self._dsn = views.dsn
        self._schema = f'"view_{projection.name}_{generation}"'
        self._statements = {
            table.name: Statements(self._schema, table, projection.text.get(table.name, ()))
            for table in projection.tables
        }
        self._internal = {table.name: InternalStatements(self._schema, table) for table in INTERNAL_TABLES}
        self._pool = Pool(self._reading_connection)
        with self._as_view_failed():
            self._db = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=1)
            try:
                self._create()
            except BaseException:
                self._db.close()
                raise

    def claim(self) -> dict[int, int]:
        with self._as_view_failed(), self._db.transaction():
            self._epoch, _, positions = _claim(self._db, self._schema, 1)
        return positions

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        statements = self._statements.get(table.name) or self._internal[table.name]
        with self._as_view_failed():
            return self._run(statements.load, (*table.bound(key), partition)).fetchone()

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        statements = self._statements.get(table.name) or self._internal[table.name]
        with self._as_view_failed():
            return self._run(statements.scan, (partition,)).fetchall()

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        fault_points.reach(COMMIT_BEFORE)
        try:
            with self._db.transaction():
                self._check_stored(batches)
                with self._db.pipeline():
                    for batch in batches:
                        self._write(batch)
                fault_points.reach(COMMIT_INSIDE)
                self._advance(batches)
                self._prune(time.monotonic())
        except (psycopg.Error, OverflowError, UnicodeEncodeError) as error:
            if refuses_rows(error):
                raise RowsRefused(str(error)) from error
            raise ViewFailed(view=self.name, reason=error) from error

    def position(self) -> Position:
        with self._as_view_failed(), self._pool.connection("plain") as db:
            return self._at(_positions(db, self._schema))

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[PostgresReader]:
        kind = "plain" if as_of is None else "as-of"
        with self._as_view_failed(), self._pool.connection(kind) as db, db.transaction():
            query = f"select partition, position, horizon from {self._schema}.olep_position"
            rows = db.execute(query.encode()).fetchall()
            shown = self._shown(as_of, {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})
            if as_of is not None:
                db.execute("truncate pg_temp.olep_as_of")
                query = "insert into pg_temp.olep_as_of select * from unnest(%s::int[], %s::bigint[])"
                db.execute(query, ([*shown], [*shown.values()]))
            yield PostgresReader(db, self._at(shown), self._statements)

    def close(self) -> None:
        self._db.close()
        self._pool.close()

    def _write(self, batch: ViewBatch) -> None:
        partition = batch.partition
        for name, versions in batch.versions.items():
            if not versions:
                continue
            statements = self._statements[name]
            if statements.table.append_only:
                rows = [(*v.row, v.offset) for v in versions if v.row is not None]
                self._columns(statements.insert, partition, rows)
                continue
            first, ended, last = split_versions(versions)
            keys = statements.table.bound
            replaced = [(*keys(key), until) for key, until in first.items()]
            self._columns(statements.move_to_history, partition, replaced)
            rows = [(*v.row, v.offset, until) for v, until in ended if v.row]
            self._columns(statements.insert_history, partition, rows)
            self._columns(statements.replace, partition, [(*v.row, v.offset) for v in last.values() if v.row])
            self._columns(statements.delete, partition, [keys(k) for k, v in last.items() if v.row is None])
        for name, changes in batch.internal.items():
            internal = self._internal[name]
            self._columns(internal.replace, partition, [row for row in changes.values() if row is not None])
            removed = [internal.table.bound(key) for key, row in changes.items() if row is None]
            self._columns(internal.delete, partition, removed)

    def _columns(self, query: str, partition: int, rows: Sequence[tuple[Any, ...]]) -> None:
        """Passes each column as an array: one statement for any number of rows."""
        if rows:
            self._run(query, (partition, *(list(column) for column in zip(*rows, strict=True))))

    def _check_stored(self, batches: Sequence[ViewBatch]) -> None:
        row = self._run(f"select epoch from {self._schema}.olep_view for update").fetchone()
        assert row is not None, "inserted when the view was opened"
        self._check_writer(row[0], _positions(self._db, self._schema), batches)

    def _advance(self, batches: Sequence[ViewBatch]) -> None:
        if moved := {b.partition: b.position for b in batches if b.position != b.start}:
            self._run(
                f"update {self._schema}.olep_position p set position = c.at"
                " from unnest(%s::int[], %s::bigint[]) c (partition, at) where p.partition = c.partition",
                ([*moved], [*moved.values()]),
            )

    def _prune(self, now: float) -> None:
        if not self._horizon.due(now):
            return
        expired: Mapping[int, int] | None = self._horizon.mark(now, _positions(self._db, self._schema))
        if expired is None:
            return
        for statements in self._statements.values():
            if not statements.table.append_only:
                self._run(statements.prune, ([*expired], [*expired.values()]))
        self._run(
            f"update {self._schema}.olep_position p set horizon = c.at"
            " from unnest(%s::int[], %s::bigint[]) c (partition, at) where p.partition = c.partition",
            ([*expired], [*expired.values()]),
        )

    def _create(self) -> None:
        at = self._schema
        with self._db.transaction():
            # Only one of several processes may create the tables.
            self._run("select pg_advisory_xact_lock(hashtext(%s))", (at,))
            self._run(f"create schema if not exists {at}")
            self._run(
                f"create table if not exists {at}.olep_view (one integer primary key, topic_id text not null,"
                " fingerprint text not null, epoch bigint not null)"
            )
            self._run(
                f"create table if not exists {at}.olep_position (partition integer primary key,"
                " position bigint not null, horizon bigint not null)"
            )
            both = [*self._statements.values()], [*self._internal.values()]
            for statement in (each for kind in both for statements in kind for each in statements.create):
                self._run(statement)
            values = (self._topic_id, fingerprint(self.projection))
            self._run(f"insert into {at}.olep_view values (1, %s, %s, 0) on conflict do nothing", values)
            self._run(
                f"insert into {at}.olep_position select p, 0, 0 from generate_series(0, %s - 1) p"
                " on conflict do nothing",
                (self._partitions,),
            )
            row = self._run(f"select topic_id, fingerprint from {at}.olep_view").fetchone()
        assert row is not None
        self._check_compatible(row[0], row[1])

    def _reading_connection(self, kind: str) -> psycopg.Connection[tuple[Any, ...]]:
        db = psycopg.connect(self._dsn, autocommit=True)
        try:
            self._set_up(db, kind)
        except BaseException:
            db.close()
            raise
        return db

    def _set_up(self, db: psycopg.Connection[tuple[Any, ...]], kind: str) -> None:
        db.execute(f"set search_path to {self._schema}, public".encode())
        if kind == "as-of":
            columns = "partition integer primary key, position bigint not null"
            db.execute(f"create temp table olep_as_of ({columns})".encode())
            for statements in self._statements.values():
                db.execute(statements.as_of.encode())
            db.execute("set search_path to pg_temp, public")
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def _run(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        # As bytes, since psycopg types allow no computed string: names are checked, values are bound.
        return self._db.execute(query.encode(), values or None)


def _claim(
    db: psycopg.Connection[tuple[Any, ...]], schema: str, sign: int
) -> tuple[int, str, dict[int, int]]:
    """Sets a new epoch; returns it with the topic id and the positions."""
    query = f"update {schema}.olep_view set epoch = %s * (abs(epoch) + 1) returning epoch, topic_id"
    row = db.execute(query.encode(), (sign,)).fetchone()
    assert row is not None, "inserted when the view was opened"
    return row[0], row[1], _positions(db, schema)


def _positions(db: psycopg.Connection[tuple[Any, ...]], schema: str) -> dict[int, int]:
    return dict(db.execute(f"select partition, position from {schema}.olep_position".encode()).fetchall())


class PostgresReader:
    """The rows now, or as of a position."""

    def __init__(
        self,
        db: psycopg.Connection[tuple[Any, ...]],
        position: Position,
        statements: Mapping[str, Statements],
    ) -> None:
        self.position = position
        self._db = db
        self._statements = statements

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        statements = self._statements[table.name]
        rows = self._db.execute(statements.get.encode(), table.bound(key))
        return [(row[0], row[1:]) for row in rows]

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for row in self._db.execute(self._statements[table.name].rows.encode()).fetchall():
            yield row[0], row[1:]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL on the projection's tables, which show the rows as of `position`."""
        return self._db.execute(sql.encode(), values or None).fetchall()

    def search(self, table: Table[Any], text: str, *, limit: int = 20) -> list[tuple[int, Key]]:
        """(partition, key) of the rows that contain all words."""
        hits = self._db.execute(self._statements[table.name].search.encode(), (text, limit))
        single = len(table.key) == 1
        return [(row[0], row[1] if single else row[1:]) for row in hits]
