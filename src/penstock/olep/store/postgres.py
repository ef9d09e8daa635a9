"""State in PostgreSQL: one database for all partitions and executors.

Each application has a schema, and each of its tables starts with the partition. The database is shared, so
an executor that was paused and lost its partition could still write to it. Therefore the position row
carries the epoch of the owner: every commit first locks that row under its epoch, and is refused if the
epoch there is higher.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import fault_points
from penstock.model.errors.olep import StoreFailed, StoreMismatch, StoreUnavailable
from penstock.model.errors.settings import ExtraMissing
from penstock.olep.outbox import pack, unpack
from penstock.olep.sql import POSTGRES_TYPES, declared, quoted, same_key
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

try:
    import psycopg
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="the PostgreSQL store", module="psycopg", extra="olep-postgres") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch
    from penstock.olep.table import Key, Table

_DATA_ERRORS: Final = (psycopg.DataError, psycopg.IntegrityError, OverflowError, UnicodeEncodeError)
_PARTITION: Final = "olep_partition"


def refuses_rows(error: BaseException) -> bool:
    """Whether a row is at fault: the server refused it, or the driver cannot send a value of its type."""
    unsendable = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
    return unsendable or isinstance(error, _DATA_ERRORS)


@dataclass(frozen=True, slots=True)
class PostgresStores:
    """`dsn` in libpq's form. The role must own the schema or have the right to create it."""

    dsn: str

    def open(self, application: Application, topic_id: str, partition: int) -> PostgresStore:
        return PostgresStore(self.dsn, application, topic_id, partition)


class PostgresStore:
    def __init__(self, dsn: str, application: Application, topic_id: str, partition: int) -> None:
        self.partition = partition
        self._application = application
        self._topic_id = topic_id
        self._tables = {table.name: table for table in all_tables(application)}
        self._schema = f'"{application.name}"'
        self._epoch = 0
        try:
            self._db = psycopg.connect(dsn, autocommit=True, prepare_threshold=1)
        except psycopg.Error as error:
            raise StoreUnavailable(store="PostgreSQL", reason=error) from error
        self.name = f"PostgreSQL database {self._db.info.dbname}, schema {application.name}"
        self._upserts = {name: self._upsert(table) for name, table in self._tables.items()}
        try:
            with self._translated():
                self._create()
        except StoreFailed:
            self._db.close()
            raise

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        query = f"{self._select(table)} and {same_key(table, '%s')}"
        with self._translated():
            return self._run(query, (self.partition, *table.bound(key))).fetchone()

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        with self._translated():
            return self._run(self._select(table), (self.partition,)).fetchall()

    def claim(self, partitions: int = 0) -> Claim:
        with self._translated(), self._db.transaction():
            row = self._run(
                f"update {self._at('olep_meta')} set epoch = epoch + 1,"
                " partitions = case when partitions = 0 then %s else partitions end"
                f" where {_PARTITION} = %s returning position, epoch, partitions",
                (partitions, self.partition),
            ).fetchone()
            assert row is not None, "inserted when the store was opened"
            if partitions not in {0, row[2]}:
                raise log_grown(self._application, self.name, row[2], partitions)
        self._epoch = row[1]
        return Claim(row[0], row[1])

    def commit(self, batch: Batch, *, sent: int) -> None:
        fault_points.reach(COMMIT_BEFORE)
        try:
            with self._translated(), self._db.transaction():
                self._advance(batch)
                with self._db.pipeline():
                    self._write(batch, sent)
                fault_points.reach(COMMIT_INSIDE)
        except (psycopg.Error, OverflowError, UnicodeEncodeError) as error:
            if refuses_rows(error):
                raise RowsRefused(str(error)) from error
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of PostgreSQL as those of a store. A server that is down, restarting or overloaded comes
        back; a statement that is wrong stays wrong."""
        try:
            yield
        except psycopg.Error as error:
            if refuses_rows(error):
                raise
            passing = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or self._db.closed
            raise (StoreUnavailable if passing else StoreFailed)(store=self.name, reason=error) from error

    def position(self) -> int:
        query = f"select position from {self._at('olep_meta')} where {_PARTITION} = %s"
        with self._translated():
            row = self._run(query, (self.partition,)).fetchone()
        return row[0] if row else 0

    def unsent(self) -> list[Unsent]:
        outbox = self._at("olep_outbox")
        query = f"select position, events from {outbox} where {_PARTITION} = %s order by position"
        with self._translated():
            entries = self._run(query, (self.partition,)).fetchall()
        return [Unsent(position, unpack(events)) for position, events in entries]

    def close(self) -> None:
        self._db.close()

    def _advance(self, batch: Batch) -> None:
        meta = self._at("olep_meta")
        advanced = self._run(
            f"update {meta} set position = %s where {_PARTITION} = %s and epoch = %s and position = %s",
            (batch.position, self.partition, self._epoch, batch.start),
        )
        if advanced.rowcount != 1:
            query = f"select epoch, position from {meta} where {_PARTITION} = %s"
            actual = self._run(query, (self.partition,)).fetchone()
            raise fenced(self, (self._epoch, batch.start), actual)

    def _write(self, batch: Batch, sent: int) -> None:
        for name, changes in batch.changes.items():
            self._put(name, [row for row in changes.values() if row is not None])
            table = self._tables[name]
            for key in [key for key, row in changes.items() if row is None]:
                query = f"delete from {self._at(name)} where {_PARTITION} = %s and {same_key(table, '%s')}"
                self._run(query, (self.partition, *table.bound(key)))
        for name, rows in batch.appends.items():
            self._put(name, rows)
        outbox = self._at("olep_outbox")
        self._run(f"delete from {outbox} where {_PARTITION} = %s and position <= %s", (self.partition, sent))
        if batch.outgoing:
            entry = (self.partition, batch.position, pack(batch.outgoing))
            self._run(f"insert into {outbox} values (%s, %s, %b)", entry)

    def _put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            self._run(self._upserts[name], (self.partition, *columns))

    def _create(self) -> None:
        tables = fingerprint([*self._tables.values()])
        with self._db.transaction():
            # Only one of several executors may create the tables; the lock ends with the transaction.
            self._run("select pg_advisory_xact_lock(hashtext(%s))", (self._schema,))
            self._run(f"create schema if not exists {self._schema}")
            self._run(
                f"create table if not exists {self._at('olep_meta')} ({_PARTITION} integer primary key,"
                " topic_id text not null, tables text not null,"
                " position bigint not null, epoch bigint not null, partitions integer not null default 0)"
            )
            self._run(
                f"create table if not exists {self._at('olep_outbox')} ({_PARTITION} integer,"
                f" position bigint, events bytea not null, primary key ({_PARTITION}, position))"
            )
            for table in self._tables.values():
                self._run(self._create_table(table))
            self._run(
                f"insert into {self._at('olep_meta')} values (%s, %s, %s, 0, 0, 0) on conflict do nothing",
                (self.partition, self._topic_id, tables),
            )
            query = f"select topic_id, tables from {self._at('olep_meta')} where {_PARTITION} = %s"
            row = self._run(query, (self.partition,)).fetchone()
        assert row is not None
        self._compare(row[0], row[1], tables)

    def _compare(self, topic_id: str, stored: str, tables: str) -> None:
        if (topic_id, stored) == (self._topic_id, tables):
            return
        self._db.close()
        if stored == tables:
            raise log_replaced(self._application, self.name, topic_id, self._topic_id)
        raise StoreMismatch(store=self.name, actual=stored, expected=tables)

    def _run(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        # As bytes, since psycopg types allow no computed string: names are checked, values are bound.
        return self._db.execute(query.encode(), values or None)

    def _at(self, table: str) -> str:
        return f'{self._schema}."{table}"'

    def _select(self, table: Table[Any]) -> str:
        return f"select {quoted(table.names)} from {self._at(table.name)} where {_PARTITION} = %s"

    def _create_table(self, table: Table[Any]) -> str:
        return (
            f"create table if not exists {self._at(table.name)} ({_PARTITION} integer,"
            f" {declared(table, POSTGRES_TYPES)}, primary key ({_PARTITION}, {quoted(table.key)}))"
        )

    def _upsert(self, table: Table[Any]) -> str:
        """Takes each column as an array: one statement for any number of rows."""
        arrays = ", ".join(f"%s::{POSTGRES_TYPES[column.type]}[]" for column in table.columns)
        insert = f"insert into {self._at(table.name)} select %s::integer, * from unnest({arrays})"
        if table.append_only:
            return insert
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in table.names[len(table.key) :])
        action = f"update set {sets}" if sets else "nothing"
        return f"{insert} on conflict ({_PARTITION}, {quoted(table.key)}) do {action}"
