"""Views in PostgreSQL: a schema for each generation, with its own text search where it is asked for.

Rows and their past are laid out as in SQLite (`penstock.olep.view.sqlite`). A commit locks the row
that holds the epoch, so a writer that lost the view is refused before it has written anything.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import faults
from penstock.model.errors.settings import ExtraMissing
from penstock.model.errors.views import ViewFailed, ViewMissing, ViewTaken
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.view import (
    COMMIT_BEFORE,
    COMMIT_INSIDE,
    KEEP_SECONDS,
    LAYER_TABLES,
    Horizon,
    check_kept,
    check_made_for,
    fingerprint,
    replaced,
)
from penstock.olep.view.pool import Pool
from penstock.olep.view.postgres_sql import LayerStatements, Statements

try:
    import psycopg
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="a view in PostgreSQL", module="psycopg", extra="olep-postgres") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.olep.table import Key, Table
    from penstock.olep.view import Stretch
    from penstock.olep.view.projection import Projection

_DATA_ERRORS: Final = (psycopg.DataError, psycopg.IntegrityError, OverflowError, UnicodeEncodeError)
_REGISTRY: Final = "create table if not exists olep_views (view text primary key, serving integer not null)"


@dataclass(frozen=True, slots=True)
class PostgresViews:
    """`dsn` as libpq takes it. Schemas `view_<name>_<generation>`; `olep_views` says which one serves."""

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
        found = [name.removeprefix(f"view_{view}_") for name in names]
        return sorted(int(each) for each in found if each.isdecimal())

    def serving(self, view: str) -> int | None:
        with self._connected() as db:
            if db.execute("select to_regclass('olep_views')").fetchone() == (None,):
                return None
            found = db.execute("select serving from olep_views where view = %s", (view,)).fetchone()
        return found[0] if found else None

    def serve(self, view: str, generation: int) -> None:
        if generation not in self.generations(view):
            raise ViewMissing(view=view, generation=generation)
        with self._connected() as db:
            db.execute("select pg_advisory_xact_lock(hashtext('olep_views'))")
            db.execute(_REGISTRY)
            db.execute(
                "insert into olep_views values (%s, %s)"
                " on conflict (view) do update set serving = excluded.serving",
                (view, generation),
            )

    def drop(self, view: str, generation: int) -> None:
        with self._connected() as db:
            db.execute(f'drop schema if exists "view_{view}_{generation}" cascade'.encode())

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            with psycopg.connect(self.dsn) as db:
                yield db
        except psycopg.Error as error:
            raise ViewFailed(view="PostgreSQL", reason=error) from error


class PostgresView:
    def __init__(
        self, views: PostgresViews, projection: Projection, topic_id: str, partitions: int, generation: int
    ) -> None:
        self.name = f"PostgreSQL schema view_{projection.name}_{generation}"
        self.generation = generation
        self.projection = projection
        self._dsn = views.dsn
        self._schema = f'"view_{projection.name}_{generation}"'
        self._topic_id = topic_id
        self._partitions = partitions
        self._epoch = 0
        self._horizon = Horizon(views.keep_seconds)
        self._statements = {
            table.name: Statements(self._schema, table, projection.text.get(table.name, ()))
            for table in projection.tables
        }
        self._layer = {table.name: LayerStatements(self._schema, table) for table in LAYER_TABLES}
        self._pool = Pool(self._reading_connection)
        try:
            self._db = psycopg.connect(self._dsn, autocommit=True, prepare_threshold=1)
        except psycopg.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error
        try:
            self._create()
        except psycopg.Error as error:
            self._db.close()
            raise ViewFailed(view=self.name, reason=error) from error

    def claim(self) -> dict[int, int]:
        try:
            with self._db.transaction():
                found = self._run(
                    f"update {self._schema}.olep_view set epoch = epoch + 1 returning epoch"
                ).fetchone()
                positions = dict(
                    self._run(f"select partition, position from {self._schema}.olep_position").fetchall()
                )
        except psycopg.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error
        assert found is not None, "made when the view was opened"
        self._epoch = found[0]
        return positions

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        statements = self._statements.get(table.name) or self._layer[table.name]
        with self._named():
            return self._run(statements.load, (*statements.bound(key), partition)).fetchone()

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        statements = self._statements.get(table.name) or self._layer[table.name]
        with self._named():
            return self._run(statements.scan, (partition,)).fetchall()

    def commit(self, stretches: Sequence[Stretch]) -> None:
        faults.reach(COMMIT_BEFORE)
        try:
            with self._db.transaction():
                self._check_epoch()
                with self._db.pipeline():
                    for stretch in stretches:
                        self._write(stretch)
                faults.reach(COMMIT_INSIDE)
                self._advance(stretches)
                self._prune(time.monotonic())
        except _DATA_ERRORS as error:
            raise RowsRefused(str(error)) from error
        except psycopg.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error

    def position(self) -> Position:
        with self._named(), self._pool.connection("plain") as db:
            found = db.execute(f"select partition, position from {self._schema}.olep_position".encode())
            return Position({self._topic_id: dict(found.fetchall())})

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[PostgresReader]:
        kind = "plain" if cut is None else "as-of"
        with self._named(), self._pool.connection(kind) as db, db.transaction():
            query = f"select partition, position, horizon from {self._schema}.olep_position"
            found = db.execute(query.encode()).fetchall()
            positions = {partition: position for partition, position, _ in found}
            if cut is not None:
                asked = cut.of_topic(self.name, self._topic_id)
                check_kept(self.name, asked, positions, {p: horizon for p, _, horizon in found})
                positions = {p: asked.get(p, 0) for p in positions}
                db.execute("truncate pg_temp.olep_cut")
                db.execute(
                    "insert into pg_temp.olep_cut select * from unnest(%s::int[], %s::bigint[])",
                    ([*positions], [*positions.values()]),
                )
            yield PostgresReader(db, Position({self._topic_id: positions}), self._statements)

    def close(self) -> None:
        self._db.close()
        self._pool.close()

    def _write(self, stretch: Stretch) -> None:
        partition = stretch.partition
        for name, versions in stretch.versions.items():
            if not versions:
                continue
            statements = self._statements[name]
            if statements.table.append_only:
                rows = [(*v.row, v.offset) for v in versions if v.row is not None]
                self._columns(statements.insert, partition, rows)
                continue
            first, ended, last = replaced(versions)
            keys = statements.bound
            self._columns(statements.to_past, partition, [(*keys(k), until) for k, until in first.items()])
            self._columns(
                statements.past, partition, [(*v.row, v.offset, until) for v, until in ended if v.row]
            )
            self._columns(statements.replace, partition, [(*v.row, v.offset) for v in last.values() if v.row])
            self._columns(statements.delete, partition, [keys(k) for k, v in last.items() if v.row is None])
        for name, changes in stretch.layer.items():
            layer = self._layer[name]
            self._columns(layer.replace, partition, [row for row in changes.values() if row is not None])
            self._columns(layer.delete, partition, [layer.bound(k) for k, r in changes.items() if r is None])

    def _columns(self, query: str, partition: int, rows: Sequence[tuple[Any, ...]]) -> None:
        """Whole columns as arrays: one statement for any number of rows."""
        if rows:
            self._run(query, (partition, *(list(column) for column in zip(*rows, strict=True))))

    def _check_epoch(self) -> None:
        found = self._run(f"select epoch from {self._schema}.olep_view for update").fetchone()
        if found is None or found[0] != self._epoch:
            raise ViewTaken(view=self.name, epoch=self._epoch, actual=found[0] if found else "none")

    def _advance(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            moved = self._run(
                f"update {self._schema}.olep_position set position = %s"
                " where partition = %s and position <= %s",
                (stretch.position, stretch.partition, stretch.position),
            )
            if moved.rowcount != 1:
                above = f"a position above {stretch.position}"
                raise ViewTaken(view=self.name, epoch=self._epoch, actual=above)

    def _prune(self, now: float) -> None:
        if not self._horizon.due(now):
            return
        positions = dict(
            self._run(f"select partition, position from {self._schema}.olep_position").fetchall()
        )
        gone: Mapping[int, int] | None = self._horizon.mark(now, positions)
        if gone is None:
            return
        for statements in self._statements.values():
            if not statements.table.append_only:
                self._run(statements.prune, ([*gone], [*gone.values()]))
        self._run(
            f"update {self._schema}.olep_position p set horizon = c.at"
            " from unnest(%s::int[], %s::bigint[]) c (partition, at) where p.partition = c.partition",
            ([*gone], [*gone.values()]),
        )

    def _create(self) -> None:
        at = self._schema
        with self._db.transaction():
            # Two processes that open a view together must not both create it.
            self._run("select pg_advisory_xact_lock(hashtext(%s))", (at,))
            self._run(f"create schema if not exists {at}")
            self._run(
                f"create table if not exists {at}.olep_view (one integer primary key, topic_id text not null,"
                " made text not null, epoch bigint not null)"
            )
            self._run(
                f"create table if not exists {at}.olep_position (partition integer primary key,"
                " position bigint not null, horizon bigint not null)"
            )
            made = [*self._statements.values()], [*self._layer.values()]
            for statement in (each for kind in made for statements in kind for each in statements.create):
                self._run(statement)
            facts = (self._topic_id, fingerprint(self.projection))
            self._run(f"insert into {at}.olep_view values (1, %s, %s, 0) on conflict do nothing", facts)
            self._run(
                f"insert into {at}.olep_position select p, 0, 0 from generate_series(0, %s - 1) p"
                " on conflict do nothing",
                (self._partitions,),
            )
            found = self._run(f"select topic_id, made from {at}.olep_view").fetchone()
        assert found is not None
        try:
            check_made_for(self.name, (found[0], found[1]), self.projection, self._topic_id)
        except BaseException:
            self._db.close()
            raise

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
            db.execute("create temp table olep_cut (partition integer primary key, position bigint not null)")
            for statements in self._statements.values():
                db.execute(statements.as_of.encode())
            db.execute("set search_path to pg_temp, public")
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise ViewFailed(view=self.name, reason=error) from error

    def _run(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        # As bytes: the names in it are declared and checked, the values are bound.
        return self._db.execute(query.encode(), values or None)


class PostgresReader:
    """Rows as of a position, or as they are."""

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
        found = self._db.execute(statements.get.encode(), statements.bound(key))
        return [(row[0], row[1:]) for row in found]

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        for row in self._db.execute(self._statements[table.name].rows.encode()).fetchall():
            yield row[0], row[1:]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """SQL on the tables of the projection; they show this reader's position."""
        return self._db.execute(sql.encode(), values or None).fetchall()

    def search(self, table: Table[Any], text: str, *, limit: int = 20) -> list[tuple[int, Key]]:
        """(partition, key) of rows that hold all of these words."""
        found = self._db.execute(self._statements[table.name].search.encode(), (text, limit))
        single = len(table.key) == 1
        return [(row[0], row[1] if single else row[1:]) for row in found]
