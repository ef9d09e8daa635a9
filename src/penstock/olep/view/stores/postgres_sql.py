"""The SQL statements of a view in PostgreSQL, built once from a table's declaration.

Rows are passed as whole columns (`unnest`), so a statement takes any number of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.olep.sql import POSTGRES_TYPES, declared, quoted, same_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.table import Table


class InternalStatements:
    """SQL for an internal table, whose rows have no history. The first bound value is the partition."""

    def __init__(self, schema: str, table: Table[Any]) -> None:
        at = f'{schema}."{table.name}"'
        self.table, key = table, table.key
        columns, where = quoted(table.names), same_key(table, "%s")
        kinds = {column.name: POSTGRES_TYPES[column.type] for column in table.columns}
        types = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds.values())
        changed = ", ".join(f'"{name}" = excluded."{name}"' for name in table.names[len(key) :])
        self.create = [
            (
                f"create table if not exists {at} (olep_partition integer, {types},"
                f" primary key ({quoted(key)}, olep_partition))"
            )
        ]
        self.load = f"select {columns} from {at} where {where} and olep_partition = %s"
        self.scan = f"select {columns} from {at} where olep_partition = %s"
        self.replace = (
            f"insert into {at} select %s::integer, * from unnest({arrays})"
            f" on conflict ({quoted(key)}, olep_partition) do update set {changed}"
        )
        self.delete = (
            f"delete from {at} t using (select %s::integer as p) o, unnest("
            + ", ".join(f"%s::{kinds[name]}[]" for name in key)
            + f") k ({quoted(key)}) where t.olep_partition = o.p and "
            + " and ".join(f't."{name}" = k."{name}"' for name in key)
        )


class Statements:
    """SQL for a table of a projection. The first bound value of a write is the partition."""

    def __init__(self, schema: str, table: Table[Any], text: Sequence[str]) -> None:
        self.table = table
        self._at, self._history_at = f'{schema}."{table.name}"', f'{schema}."{table.name}__history"'
        self._kinds = {column.name: POSTGRES_TYPES[column.type] for column in table.columns}
        self._document = " || ' ' || ".join(f"coalesce(\"{name}\", '')" for name in text)
        columns, where = quoted(table.names), same_key(table, "%s")
        self.create = self._creates(bool(text))
        self.load = f"select {columns} from {self._at} where {where} and olep_partition = %s"
        self.scan = f"select {columns} from {self._at} where olep_partition = %s"
        self.get = f'select olep_partition, {columns} from "{table.name}" where {where}'
        self.rows = f'select olep_partition, {columns} from "{table.name}"'
        self._writes(columns)
        self.as_of = self._as_of()
        self.search = (
            f'select olep_partition, {quoted(table.key)} from "{table.name}" where'
            f" to_tsvector('simple', {self._document}) @@ plainto_tsquery('simple', %s)"
            f" order by {quoted(table.key)}, olep_partition limit %s"
        )

    def _creates(self, text: bool) -> list[str]:
        table, keys = self.table, quoted(self.table.key)
        types = declared(table, POSTGRES_TYPES)
        extra = "olep_partition integer not null, olep_from bigint not null"
        statements = [
            f"create table if not exists {self._at} ({types}, {extra}, primary key ({keys}, olep_partition))"
        ]
        tables = [(self._at, table.name)]
        if not table.append_only:
            history_name = f"{table.name}__history"
            statements += [
                (
                    f"create table if not exists {self._history_at} ({types}, {extra},"
                    " olep_until bigint not null)"
                ),
                (
                    f'create index if not exists "{history_name}_key" on {self._history_at}'
                    f" ({keys}, olep_partition, olep_until)"
                ),
                (
                    f'create index if not exists "{history_name}_until" on {self._history_at}'
                    " (olep_partition, olep_until)"
                ),
            ]
            tables.append((self._history_at, history_name))
        if text:
            statements += [
                f'create index if not exists "{name}_text" on {at}'
                f" using gin (to_tsvector('simple', {self._document}))"
                for at, name in tables
            ]
        return statements

    def _writes(self, columns: str) -> None:
        at, key = self._at, self.table.key
        arrays = ", ".join(f"%s::{kind}[]" for kind in self._kinds.values())
        keys = ", ".join(f"%s::{self._kinds[name]}[]" for name in key)
        extra = "olep_partition, olep_from"
        same = " and ".join(f't."{name}" = k."{name}"' for name in key)
        values = f"select {columns}, o.p, k.f"
        given = f"from (select %s::integer as p) o, unnest({arrays}, %s::bigint[])"
        self.insert = f"insert into {at} ({columns}, {extra}) {values} {given} k ({columns}, f)"
        changed = [*self.table.names[len(key) :], "olep_from"]
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in changed)
        self.replace = f"{self.insert} on conflict ({quoted(key)}, olep_partition) do update set {sets}"
        self.insert_history = (
            f"insert into {self._history_at} ({columns}, {extra}, olep_until) {values}, k.u"
            f" from (select %s::integer as p) o,"
            f" unnest({arrays}, %s::bigint[], %s::bigint[]) k ({columns}, f, u)"
        )
        self.move_to_history = (
            f"insert into {self._history_at} ({columns}, {extra}, olep_until)"
            f" select {quoted(self._kinds, 't.')}, t.olep_partition, t.olep_from, k.u"
            f" from {at} t, (select %s::integer as p) o, unnest({keys}, %s::bigint[]) k ({quoted(key)}, u)"
            f" where t.olep_partition = o.p and {same}"
        )
        self.delete = (
            f"delete from {at} t using (select %s::integer as p) o, unnest({keys}) k ({quoted(key)})"
            f" where t.olep_partition = o.p and {same}"
        )
        self.prune = (
            f"delete from {self._history_at} t using unnest(%s::int[], %s::bigint[]) c (p, at)"
            " where t.olep_partition = c.p and t.olep_until < c.at"
        )

    def _as_of(self) -> str:
        current = (
            f"select {quoted(self._kinds, 't.')}, t.olep_partition, t.olep_from from {self._at} t"
            " join pg_temp.olep_as_of c on c.partition = t.olep_partition and t.olep_from < c.position"
        )
        name = f'create temp view "{self.table.name}" as'
        if self.table.append_only:
            return f"{name} {current}"
        history = current.replace(f"from {self._at} t", f"from {self._history_at} t")
        return f"{name} {current} union all {history} and t.olep_until >= c.position"
