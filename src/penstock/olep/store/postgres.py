"""State in PostgreSQL: one database for all partitions and executors, chosen by setting.

Each application has a schema; each of its tables begins with the partition. Since the database is
shared, an executor that was paused and lost its partition could still reach it: the position row
carries the epoch of the assignment, every commit begins by locking that row under its own epoch,
and one that finds a higher epoch there is refused before it has written anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model import faults
from penstock.model.errors.olep import LogReplaced, StoreFailed, StoreFenced, StoreMismatch
from penstock.model.errors.settings import ExtraMissing
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

try:
    import psycopg
except ImportError as error:  # the store is an extra
    raise ExtraMissing(what="the PostgreSQL store", module="psycopg", extra="olep-postgres") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch
    from penstock.olep.table import Key, Table

_TYPES: Final = {int: "bigint", str: "text", bytes: "bytea", float: "double precision"}
_DATA_ERRORS: Final = (psycopg.DataError, psycopg.IntegrityError, OverflowError, UnicodeEncodeError)
_PARTITION: Final = "olep_partition"


@dataclass(frozen=True, slots=True)
class PostgresStores:
    """`dsn` as libpq takes it. The role needs the right to create a schema, or one made for it."""

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
            raise StoreFailed(store="PostgreSQL", reason=error) from error
        self.name = f"PostgreSQL database {self._db.info.dbname}, schema {application.name}"
        self._upserts = {name: self._upsert(table) for name, table in self._tables.items()}
        try:
            self._create()
        except psycopg.Error as error:
            self._db.close()
            raise StoreFailed(store=self.name, reason=error) from error

    def load(self, table: Table[Any], key: Key) -> tuple[Any, ...] | None:
        bound = key if len(table.key) > 1 else (key,)
        columns = _names(column.name for column in table.columns)
        query = f"select {columns} from {self._at(table.name)} where {_PARTITION} = %s and {_where(table)}"
        return self._run(query, (self.partition, *bound)).fetchone()

    def scan(self, table: Table[Any]) -> Iterable[tuple[Any, ...]]:
        columns = _names(column.name for column in table.columns)
        query = f"select {columns} from {self._at(table.name)} where {_PARTITION} = %s"
        return self._run(query, (self.partition,)).fetchall()

    def claim(self, partitions: int = 0) -> Claim:
        try:
            with self._db.transaction():
                found = self._run(
                    f"update {self._at('olep_meta')} set epoch = epoch + 1,"
                    " partitions = case when partitions = 0 then %s else partitions end"
                    f" where {_PARTITION} = %s returning position, epoch, partitions",
                    (partitions, self.partition),
                ).fetchone()
                assert found is not None, "made when the store was opened"
                if partitions not in {0, found[2]}:
                    raise log_grown(self._application, self.name, found[2], partitions)
        except psycopg.Error as error:
            raise StoreFailed(store=self.name, reason=error) from error
        self._epoch = found[1]
        return Claim(found[0], found[1])

    def commit(self, batch: Batch, *, sent: int) -> None:
        faults.reach(COMMIT_BEFORE)
        try:
            with self._db.transaction():
                self._advance(batch)
                with self._db.pipeline():
                    self._write(batch, sent)
                faults.reach(COMMIT_INSIDE)
        except _DATA_ERRORS as error:
            raise RowsRefused(str(error)) from error
        except psycopg.Error as error:
            raise StoreFailed(store=self.name, reason=error) from error

    def position(self) -> int:
        query = f"select position from {self._at('olep_meta')} where {_PARTITION} = %s"
        found = self._run(query, (self.partition,)).fetchone()
        return found[0] if found else 0

    def unsent(self) -> list[Unsent]:
        outbox = self._at("olep_outbox")
        query = f"select position, events from {outbox} where {_PARTITION} = %s order by position"
        return [Unsent(position, unpack(events)) for position, events in self._run(query, (self.partition,))]

    def close(self) -> None:
        self._db.close()

    def _advance(self, batch: Batch) -> None:
        meta = self._at("olep_meta")
        advanced = self._run(
            f"update {meta} set position = %s where {_PARTITION} = %s and epoch = %s and position <= %s",
            (batch.position, self.partition, self._epoch, batch.position),
        )
        if advanced.rowcount != 1:
            found = self._run(
                f"select epoch from {meta} where {_PARTITION} = %s", (self.partition,)
            ).fetchone()
            actual = found[0] if found else "none"
            raise StoreFenced(partition=self.partition, store=self.name, epoch=self._epoch, actual=actual)

    def _write(self, batch: Batch, sent: int) -> None:
        for name, changes in batch.changes.items():
            self._put(name, [row for row in changes.values() if row is not None])
            gone = [key for key, row in changes.items() if row is None]
            table = self._tables[name]
            for key in gone:
                bound = key if len(table.key) > 1 else (key,)
                query = f"delete from {self._at(name)} where {_PARTITION} = %s and {_where(table)}"
                self._run(query, (self.partition, *bound))
        for name, rows in batch.appends.items():
            self._put(name, rows)
        outbox = self._at("olep_outbox")
        self._run(f"delete from {outbox} where {_PARTITION} = %s and position <= %s", (self.partition, sent))
        if batch.outgoing:
            entry = (self.partition, batch.position, pack(batch.outgoing))
            self._run(f"insert into {outbox} values (%s, %s, %b)", entry)

    def _put(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._run(
                self._upserts[name], (self.partition, *(list(column) for column in zip(*rows, strict=True)))
            )

    def _create(self) -> None:
        tables = fingerprint([*self._tables.values()])
        with self._db.transaction():
            # Two executors that start together must not both create; the lock ends with the transaction.
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
            found = self._run(query, (self.partition,)).fetchone()
        assert found is not None
        self._compare(found[0], found[1], tables)

    def _compare(self, topic_id: str, found: str, tables: str) -> None:
        if (topic_id, found) == (self._topic_id, tables):
            return
        self._db.close()
        if found == tables:
            log = f"the log of {self._application.name}"
            raise LogReplaced(store=self.name, topic_id=topic_id, topic=log, actual=self._topic_id)
        raise StoreMismatch(store=self.name, found=found, expected=tables)

    def _run(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        # As bytes: the names in it are declared and checked, the values are bound.
        return self._db.execute(query.encode(), values or None)

    def _at(self, table: str) -> str:
        return f'{self._schema}."{table}"'

    def _create_table(self, table: Table[Any]) -> str:
        columns = ", ".join(
            f'"{name}" {_TYPES[kind]}{"" if optional else " not null"}'
            for name, kind, optional in table.columns
        )
        return (
            f"create table if not exists {self._at(table.name)} ({_PARTITION} integer, {columns},"
            f" primary key ({_PARTITION}, {_names(table.key)}))"
        )

    def _upsert(self, table: Table[Any]) -> str:
        """Whole columns as arrays: one statement for any number of rows."""
        arrays = ", ".join(f"%s::{_TYPES[column.type]}[]" for column in table.columns)
        insert = f"insert into {self._at(table.name)} select %s::integer, * from unnest({arrays})"
        if table.append_only:
            return insert
        changed = [column.name for column in table.columns if column.name not in table.key]
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in changed)
        action = f"update set {sets}" if sets else "nothing"
        return f"{insert} on conflict ({_PARTITION}, {_names(table.key)}) do {action}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _where(table: Table[Any]) -> str:
    return " and ".join(f'"{name}" = %s' for name in table.key)
