"""The SQL statements of a view in SQLite, built once from a table's declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.olep.sql import declared, quoted, same_key
from penstock.olep.table import COLUMN_TYPES
from penstock.olep.view import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.olep.table import Table


class InternalStatements:
    """SQL for an internal table, whose rows have no history."""

    def __init__(self, table: Table[Any]) -> None:
        self.table = table
        name, columns, where = table.name, quoted(table.names), same_key(table)
        types = ", ".join(f'"{column}" {COLUMN_TYPES[kind]}' for column, kind, _ in table.columns)
        self.create = [
            (
                f'create table if not exists "{name}" ({types}, olep_partition integer,'
                f" primary key ({quoted(table.key)}, olep_partition)) strict, without rowid"
            )
        ]
        self.load = f'select {columns} from "{name}" where {where} and olep_partition = ?'
        self.scan = f'select {columns} from "{name}" where olep_partition = ?'
        self.replace = f'replace into "{name}" values ({", ".join("?" * (len(table.names) + 1))})'
        self.delete = f'delete from "{name}" where {where} and olep_partition = ?'


class Statements:
    """SQL for a table of a projection."""

    def __init__(self, table: Table[Any], text: Sequence[str]) -> None:
        self.table = table
        self.text = tuple(text)
        name, columns, where = table.name, quoted(table.names), same_key(table)
        at = [table.names.index(column) for column in self.text]
        self.texts: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda row: tuple(row[i] for i in at)
        params = ", ".join("?" * len(table.names))
        self._others = table.names[len(table.key) :]  # the columns of a version
        self.nothing = (None,) * len(self._others)
        self.create = self._creates(name)
        self.load = f'select {columns} from "{name}" where {where} and olep_partition = ?'
        self.scan = f'select {columns} from "{name}" where olep_partition = ?'
        self.insert = f'insert into "{name}" values ({params}, ?, ?)'
        self.replace, self.replace_removed = (
            f'replace into "{name}__rows" values ({params}, ?, ?, {removed}, ?)' for removed in (0, 1)
        )
        self.remove = (
            f'update "{name}__rows" set olep_from = ?, olep_removed = 1, olep_previous = ?'
            f" where {where} and olep_partition = ?"
        )
        self.insert_history = f'insert into "{name}__history" values (?, {"?, " * len(self._others)}?, ?, ?)'
        versions = quoted((*self._others, "olep_from", "olep_removed", "olep_previous"))
        self.move_to_history = (
            f'insert into "{name}__history" select ?, {versions} from "{name}__rows"'
            f" where {where} and olep_partition = ?"
        )
        self.prune = f'delete from "{name}__history" where id <= ?'
        self.prune_removed = (
            f'delete from "{name}__rows" where olep_removed and olep_partition = ? and olep_from < ?'
        )
        self.get = f'select olep_partition, {columns} from "{name}" where {where}'
        self.rows = f'select olep_partition, {columns} from "{name}"'
        self.as_of = self._as_of(name)
        if self.text:
            self._text_statements(name, where)

    def _creates(self, name: str) -> list[str]:
        table = self.table
        types = declared(table, COLUMN_TYPES)
        extra = "olep_partition integer not null, olep_from integer not null"
        keys = quoted(table.key)
        clustered = f"primary key ({keys}, olep_partition)) strict, without rowid"
        statements = [f'create table if not exists "{name}" ({types}, {extra}, {clustered}']
        if not table.append_only:
            version = "olep_removed integer not null, olep_previous integer not null"
            nullable = "".join(
                f'"{column}" {COLUMN_TYPES[kind]}, ' for column, kind, _ in table.columns[len(table.key) :]
            )
            statements = [
                f'create table if not exists "{name}__rows" ({types}, {extra}, {version}, {clustered}',
                (
                    f'create index if not exists "{name}__removed" on "{name}__rows"'
                    " (olep_partition, olep_from) where olep_removed"
                ),
                (
                    f'create table if not exists "{name}__history"'
                    f" (id integer primary key, {nullable}olep_from integer not null, {version}) strict"
                ),
                (
                    f'create view if not exists "{name}" as select {quoted(table.names)}, olep_partition,'
                    f' olep_from from "{name}__rows" where not olep_removed'
                ),
            ]
        if self.text:
            kinds = ", ".join(
                f'"{column}" {COLUMN_TYPES[kind]}' for column, kind, _ in table.columns if column in table.key
            )
            words = ", ".join(f'"text_{column}" text' for column in self.text)
            statements += [
                (
                    f'create table if not exists "{name}__text" (id integer primary key, {kinds}, {extra},'
                    f" olep_until integer not null, {words}) strict"
                ),
                (
                    f'create index if not exists "{name}__text_key" on "{name}__text"'
                    f" ({keys}, olep_partition, olep_until)"
                ),
                (
                    f'create index if not exists "{name}__text_ended" on "{name}__text"'
                    f" (olep_partition, olep_until) where olep_until < {FOREVER}"
                ),
                f'create virtual table if not exists "{name}__fts" using fts5('
                + ", ".join(f'"text_{column}"' for column in self.text)
                + f", content='{name}__text', content_rowid='id', tokenize='unicode61 remove_diacritics 2')",
            ]
        return statements

    def _as_of(self, name: str) -> str:
        """The newest version of each row that starts below the position: the row itself, or the one that is
        reached from it by following `olep_previous`."""
        current = (
            f"select {quoted(self.table.names, 't.')}, t.olep_partition, t.olep_from"
            f' from main."{name}" t join temp.olep_as_of c'
            " on c.partition = t.olep_partition and t.olep_from < c.position"
        )
        if self.table.append_only:
            return f'create temp view "{name}" as {current}'
        columns = ", ".join(
            f't."{column}"' if column in self.table.key else f'h."{column}"' for column in self.table.names
        )
        version = f'select v.id, v.olep_from, v.olep_previous from main."{name}__history" v'
        previous = (
            f"with recursive chain (id, at, previous) as ({version} where v.id = t.olep_previous"
            f" union all {version} join chain on v.id = chain.previous"
            " where chain.at >= c.position) select id from chain where at < c.position"
        )
        # The key is the row's, so that a search by key starts there.
        return (
            f'create temp view "{name}" as {current} union all'
            f" select {columns}, t.olep_partition, h.olep_from"
            f' from main."{name}__rows" t join temp.olep_as_of c'
            " on c.partition = t.olep_partition and t.olep_from >= c.position"
            f' join main."{name}__history" h on h.id = ({previous}) where not h.olep_removed'
        )

    def _text_statements(self, name: str, where: str) -> None:
        words = quoted(f"text_{column}" for column in self.text)
        params = ", ".join("?" * len(self.text))
        keys = len(self.table.key)
        self.text_end = (
            f'update "{name}__text" set olep_until = ? where {where} and olep_partition = ?'
            f" and olep_until = {FOREVER}"
        )
        self.text_entry = f'insert into "{name}__text" values (?, {", ".join("?" * (keys + 3))}, {params})'
        self.text_index = f'insert into "{name}__fts" (rowid, {words}) values (?, {params})'
        self.text_expired = (
            f'select id, {words} from "{name}__text"'
            f" where olep_partition = ? and olep_until < ? and olep_until < {FOREVER}"
        )
        self.text_unindex = (
            f'insert into "{name}__fts" ("{name}__fts", rowid, {words}) values (\'delete\', ?, {params})'
        )
        self.text_drop = f'delete from "{name}__text" where id = ?'
        key = quoted(self.table.key, "t.")
        now = f"and t.olep_until = {FOREVER}"
        as_of = (
            "join temp.olep_as_of c on c.partition = t.olep_partition"
            " and t.olep_from < c.position and t.olep_until >= c.position"
        )
        select = (
            f'select t.olep_partition, {key} from "{name}__fts" f join "{name}__text" t on t.id = f.rowid'
        )
        match, best_first = f'where "{name}__fts" match ?', "order by f.rank, t.id limit ?"
        self.text_search = f"{select} {match} {now} {best_first}"
        self.text_search_as_of = f"{select} {as_of} {match} {best_first}"
