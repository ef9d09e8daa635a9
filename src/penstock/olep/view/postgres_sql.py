"""The SQL of a view in PostgreSQL: made once from the declaration of a table, bound with values after.

Rows travel as whole columns (`unnest`), so a statement takes any number of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.olep.table import Table

_TYPES: Final = {int: "bigint", str: "text", bytes: "bytea", float: "double precision"}


def _quoted(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f'{prefix}"{name}"' for name in names)


class LayerStatements:
    """SQL for a table of the layer's own, whose rows have no past. The first value bound is the partition."""

    def __init__(self, schema: str, table: Table[Any]) -> None:
        at = f'{schema}."{table.name}"'
        columns, key = [column.name for column in table.columns], table.key
        kinds = {column.name: _TYPES[column.type] for column in table.columns}
        where = " and ".join(f'"{each}" = %s' for each in key)
        types = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds.values())
        changed = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name not in key)
        self.bound: Callable[[Any], tuple[Any, ...]] = tuple if len(key) > 1 else lambda key: (key,)
        self.create = [
            (
                f"create table if not exists {at} (olep_partition integer, {types},"
                f" primary key ({_quoted(key)}, olep_partition))"
            )
        ]
        self.load = f"select {_quoted(columns)} from {at} where {where} and olep_partition = %s"
        self.scan = f"select {_quoted(columns)} from {at} where olep_partition = %s"
        self.replace = (
            f"insert into {at} select %s::integer, * from unnest({arrays})"
            f" on conflict ({_quoted(key)}, olep_partition) do update set {changed}"
        )
        self.delete = (
            f"delete from {at} t using (select %s::integer as p) o, unnest("
            + ", ".join(f"%s::{kinds[name]}[]" for name in key)
            + f") k ({_quoted(key)}) where t.olep_partition = o.p and "
            + " and ".join(f't."{name}" = k."{name}"' for name in key)
        )


class Statements:
    """SQL for a table of a projection. The first value bound by a write is the partition."""

    def __init__(self, schema: str, table: Table[Any], text: Sequence[str]) -> None:
        self.table = table
        self.bound: Callable[[Any], tuple[Any, ...]] = tuple if len(table.key) > 1 else lambda key: (key,)
        self._at, self._past_at = f'{schema}."{table.name}"', f'{schema}."{table.name}__past"'
        self._kinds = {column.name: _TYPES[column.type] for column in table.columns}
        self._words = " || ' ' || ".join(f"coalesce(\"{name}\", '')" for name in text)
        columns = _quoted(self._kinds)
        where = " and ".join(f'"{each}" = %s' for each in table.key)
        self.create = self._creates(bool(text))
        self.load = f"select {columns} from {self._at} where {where} and olep_partition = %s"
        self.scan = f"select {columns} from {self._at} where olep_partition = %s"
        self.get = f'select olep_partition, {columns} from "{table.name}" where {where}'
        self.rows = f'select olep_partition, {columns} from "{table.name}"'
        self._writes(columns)
        self.as_of = self._as_of()
        self.search = (
            f'select olep_partition, {_quoted(table.key)} from "{table.name}" where'
            f" to_tsvector('simple', {self._words}) @@ plainto_tsquery('simple', %s)"
            f" order by {_quoted(table.key)}, olep_partition limit %s"
        )

    def _creates(self, text: bool) -> list[str]:
        table, keys = self.table, _quoted(self.table.key)
        types = ", ".join(
            f'"{name}" {_TYPES[kind]}{"" if optional else " not null"}'
            for name, kind, optional in table.columns
        )
        own = "olep_partition integer not null, olep_from bigint not null"
        made = [
            f"create table if not exists {self._at} ({types}, {own}, primary key ({keys}, olep_partition))"
        ]
        places = [(self._at, table.name)]
        if not table.append_only:
            past = f"{table.name}__past"
            made += [
                f"create table if not exists {self._past_at} ({types}, {own}, olep_until bigint not null)",
                (
                    f'create index if not exists "{past}_key" on {self._past_at}'
                    f" ({keys}, olep_partition, olep_until)"
                ),
                f'create index if not exists "{past}_until" on {self._past_at} (olep_partition, olep_until)',
            ]
            places.append((self._past_at, past))
        if text:
            made += [
                f'create index if not exists "{name}_words" on {at}'
                f" using gin (to_tsvector('simple', {self._words}))"
                for at, name in places
            ]
        return made

    def _writes(self, columns: str) -> None:
        at, key = self._at, self.table.key
        arrays = ", ".join(f"%s::{kind}[]" for kind in self._kinds.values())
        keys = ", ".join(f"%s::{self._kinds[name]}[]" for name in key)
        own = "olep_partition, olep_from"
        same = " and ".join(f't."{name}" = k."{name}"' for name in key)
        values = f"select {columns}, o.p, k.f"
        given = f"from (select %s::integer as p) o, unnest({arrays}, %s::bigint[])"
        self.insert = f"insert into {at} ({columns}, {own}) {values} {given} k ({columns}, f)"
        changed = [name for name in self._kinds if name not in key]
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in changed) + ", " * bool(changed)
        self.replace = (
            f"{self.insert} on conflict ({_quoted(key)}, olep_partition)"
            f" do update set {sets}olep_from = excluded.olep_from"
        )
        self.past = (
            f"insert into {self._past_at} ({columns}, {own}, olep_until) {values}, k.u"
            f" from (select %s::integer as p) o,"
            f" unnest({arrays}, %s::bigint[], %s::bigint[]) k ({columns}, f, u)"
        )
        self.to_past = (
            f"insert into {self._past_at} ({columns}, {own}, olep_until)"
            f" select {_quoted(self._kinds, 't.')}, t.olep_partition, t.olep_from, k.u"
            f" from {at} t, (select %s::integer as p) o, unnest({keys}, %s::bigint[]) k ({_quoted(key)}, u)"
            f" where t.olep_partition = o.p and {same}"
        )
        self.delete = (
            f"delete from {at} t using (select %s::integer as p) o, unnest({keys}) k ({_quoted(key)})"
            f" where t.olep_partition = o.p and {same}"
        )
        self.prune = (
            f"delete from {self._past_at} t using unnest(%s::int[], %s::bigint[]) c (p, at)"
            " where t.olep_partition = c.p and t.olep_until < c.at"
        )

    def _as_of(self) -> str:
        current = (
            f"select {_quoted(self._kinds, 't.')}, t.olep_partition, t.olep_from from {self._at} t"
            " join pg_temp.olep_cut c on c.partition = t.olep_partition and t.olep_from < c.position"
        )
        name = f'create temp view "{self.table.name}" as'
        if self.table.append_only:
            return f"{name} {current}"
        past = current.replace(f"from {self._at} t", f"from {self._past_at} t")
        return f"{name} {current} union all {past} and t.olep_until >= c.position"
