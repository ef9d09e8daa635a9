"""The SQL of a view in SQLite: made once from the declaration of a table, bound with values after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.olep.table import COLUMN_TYPES
from penstock.olep.view import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.olep.table import Table


def _quoted(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f'{prefix}"{name}"' for name in names)


class LayerStatements:
    """SQL for a table of the layer's own, whose rows have no past."""

    def __init__(self, table: Table[Any]) -> None:
        name, columns = table.name, [column.name for column in table.columns]
        where = " and ".join(f'"{key}" = ?' for key in table.key)
        types = ", ".join(f'"{c}" {COLUMN_TYPES[kind]}' for c, kind, _ in table.columns)
        self.bound: Callable[[Any], tuple[Any, ...]] = tuple if len(table.key) > 1 else lambda key: (key,)
        self.create = [
            (
                f'create table if not exists "{name}" ({types}, olep_partition integer,'
                f" primary key ({_quoted(table.key)}, olep_partition)) strict, without rowid"
            )
        ]
        self.load = f'select {_quoted(columns)} from "{name}" where {where} and olep_partition = ?'
        self.scan = f'select {_quoted(columns)} from "{name}" where olep_partition = ?'
        self.replace = f'replace into "{name}" values ({", ".join("?" * (len(columns) + 1))})'
        self.delete = f'delete from "{name}" where {where} and olep_partition = ?'


class Statements:
    """SQL for a table of a projection."""

    def __init__(self, table: Table[Any], text: Sequence[str], *, fts: bool = True) -> None:
        """`fts`: words are indexed here, by FTS5, and not elsewhere."""
        self.table = table
        self.text = tuple(text)
        self._fts = fts
        name, key = table.name, table.key
        columns = _quoted(column.name for column in table.columns)
        places = [column.name for column in table.columns]
        at = [places.index(column) for column in self.text]
        self.texts: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda row: tuple(row[i] for i in at)
        self.bound: Callable[[Any], tuple[Any, ...]] = tuple if len(key) > 1 else lambda key: (key,)
        where = " and ".join(f'"{each}" = ?' for each in key)
        marks = ", ".join("?" * len(places))
        self.create = self._creates(name)
        self.load = f'select {columns} from "{name}" where {where} and olep_partition = ?'
        self.scan = f'select {columns} from "{name}" where olep_partition = ?'
        self.insert = f'insert into "{name}" values ({marks}, ?, ?)'
        self.replace = f'replace into "{name}" values ({marks}, ?, ?)'
        self.delete = f'delete from "{name}" where {where} and olep_partition = ?'
        self.past = f'insert into "{name}__past" values ({marks}, ?, ?, ?)'
        self.to_past = (
            f'insert into "{name}__past" select {columns}, olep_partition, olep_from, ? from "{name}"'
            f" where {where} and olep_partition = ?"
        )
        self.get = f'select olep_partition, {columns} from "{name}" where {where}'
        self.rows = f'select olep_partition, {columns} from "{name}"'
        self.as_of = self._as_of(name, columns)
        if self.text:
            self._text_statements(name, where)

    def _creates(self, name: str) -> list[str]:
        table = self.table
        types = ", ".join(
            f'"{column}" {COLUMN_TYPES[kind]}{"" if optional else " not null"}'
            for column, kind, optional in table.columns
        )
        own = "olep_partition integer not null, olep_from integer not null"
        keys = _quoted(table.key)
        made = [
            (
                f'create table if not exists "{name}" ({types}, {own}, primary key ({keys}, olep_partition))'
                " strict, without rowid"
            )
        ]
        if not table.append_only:
            made += [
                (
                    f'create table if not exists "{name}__past" ({types}, {own},'
                    " olep_until integer not null) strict"
                ),
                (
                    f'create index if not exists "{name}__past_key" on "{name}__past"'
                    f" ({keys}, olep_partition, olep_until)"
                ),
            ]
        if self.text:
            kinds = ", ".join(
                f'"{column}" {COLUMN_TYPES[kind]}' for column, kind, _ in table.columns if column in table.key
            )
            words = ", ".join(f'"text_{column}" text' for column in self.text)
            made += [
                (
                    f'create table if not exists "{name}__text" (id integer primary key, {kinds}, {own},'
                    f" olep_until integer not null, {words}) strict"
                ),
                (
                    f'create index if not exists "{name}__text_key" on "{name}__text"'
                    f" ({keys}, olep_partition, olep_until)"
                ),
                (
                    f'create index if not exists "{name}__text_past" on "{name}__text"'
                    f" (olep_partition, olep_until) where olep_until < {FOREVER}"
                ),
            ]
        if self.text and self._fts:
            made += [
                f'create virtual table if not exists "{name}__fts" using fts5('
                + ", ".join(f'"text_{column}"' for column in self.text)
                + f", content='{name}__text', content_rowid='id', tokenize='unicode61 remove_diacritics 2')",
            ]
        return made

    def _as_of(self, name: str, columns: str) -> str:
        current = (
            f"select {_quoted((c.name for c in self.table.columns), 't.')}, t.olep_partition, t.olep_from"
            f' from main."{name}" t join temp.olep_cut c'
            " on c.partition = t.olep_partition and t.olep_from < c.position"
        )
        if self.table.append_only:
            return f'create temp view "{name}" as {current}'
        past = current.replace(f'main."{name}"', f'main."{name}__past"') + " and t.olep_until >= c.position"
        return f'create temp view "{name}" as {current} union all {past}'

    def _text_statements(self, name: str, where: str) -> None:
        words = _quoted(f"text_{column}" for column in self.text)
        marks = ", ".join("?" * len(self.text))
        keys = len(self.table.key)
        self.text_end = (
            f'update "{name}__text" set olep_until = ? where {where} and olep_partition = ?'
            f" and olep_until = {FOREVER}"
        )
        self.text_entry = f'insert into "{name}__text" values (?, {", ".join("?" * (keys + 3))}, {marks})'
        self.text_words = f'insert into "{name}__fts" (rowid, {words}) values (?, {marks})'
        self.text_gone = (
            f'select id, {words} from "{name}__text"'
            f" where olep_partition = ? and olep_until < ? and olep_until < {FOREVER}"
        )
        self.text_unword = (
            f'insert into "{name}__fts" ("{name}__fts", rowid, {words}) values (\'delete\', ?, {marks})'
        )
        self.text_drop = f'delete from "{name}__text" where id = ?'
        found = f'select t.olep_partition, {_quoted(self.table.key, "t.")} from "{name}__fts" f'
        joined = f'join "{name}__text" t on t.id = f.rowid'
        match = f'where "{name}__fts" match ?'
        self.text_search = (
            f"{found} {joined} {match} and t.olep_until = {FOREVER} order by f.rank, t.id limit ?"
        )
        visible = (
            f'select t.id, t.olep_partition, {_quoted(self.table.key, "t.")} from "{name}__text" t'
            " {} where t.id in (select value from json_each(?)) {}"
        )
        self.text_visible = visible.format("", f"and t.olep_until = {FOREVER}")
        self.text_visible_as_of = visible.format(
            "join temp.olep_cut c on c.partition = t.olep_partition"
            " and t.olep_from < c.position and t.olep_until >= c.position",
            "",
        )
        self.text_all = f'select id, {words} from "{name}__text"'
        self.text_search_as_of = (
            f"{found} {joined} join temp.olep_cut c on c.partition = t.olep_partition"
            f" and t.olep_from < c.position and t.olep_until >= c.position {match}"
            " order by f.rank, t.id limit ?"
        )
