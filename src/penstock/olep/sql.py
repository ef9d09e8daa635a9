"""Pieces of SQL statements, built from a table's declaration. Its names are checked; values are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.olep.table import Table

POSTGRES_TYPES: Final = {int: "bigint", str: "text", bytes: "bytea", float: "double precision"}


def quoted(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(f'{prefix}"{name}"' for name in names)


def same_key(table: Table[Any], mark: str = "?") -> str:
    """The condition that selects a row by its key, bound to `mark`."""
    return " and ".join(f'"{name}" = {mark}' for name in table.key)


def declared(table: Table[Any], types: Mapping[type[Any], str]) -> str:
    """The columns with their types, as in `create table`."""
    columns = table.columns
    return ", ".join(
        f'"{name}" {types[kind]}{"" if optional else " not null"}' for name, kind, optional in columns
    )
