"""State as tables of typed rows.

A row is a NamedTuple: immutable, comparable, and ready to be bound to an SQL statement. The
columns of a table are the fields of its row type, and the first `key` of them are its primary
key. State is therefore plain SQL that anybody may query, while `decide` sees typed values.

    class Account(NamedTuple):
        account: str
        balance: int

    ACCOUNTS = Table("accounts", Account)
"""

from __future__ import annotations

import re
from operator import itemgetter
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from penstock.model.errors.olep import ApplicationInvalid, DecisionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

Row = TypeVar("Row", bound=tuple[Any, ...])
Key = Any  # the value of a one-column key, a tuple of several

COLUMN_TYPES: Final = {int: "integer", str: "text", bytes: "blob", float: "real"}
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")


class Column(NamedTuple):
    name: str
    type: type[Any]
    optional: bool


class Table(Generic[Row]):
    """A table. `append_only` rows are written once and never read by `decide`, so none is cached."""

    __slots__ = ("append_only", "columns", "key", "key_of", "name", "row_type")

    def __init__(self, name: str, row_type: type[Row], *, key: int = 1, append_only: bool = False) -> None:
        self.name = name
        self.row_type = row_type
        self.append_only = append_only
        self.columns = _columns(name, row_type)
        if not _NAME.fullmatch(name) or not 1 <= key <= len(self.columns):
            raise ApplicationInvalid(
                application="-", reason=f"table {name!r}: a bad name, or a key of {key} columns"
            )
        self.key = tuple(column.name for column in self.columns[:key])
        self.key_of: Callable[[tuple[Any, ...]], Key] = itemgetter(*range(key))

    def __repr__(self) -> str:
        return f"Table({self.name!r})"


class Put(NamedTuple):
    """Writes a row, in place of one with the same key."""

    table: Table[Any]
    row: tuple[Any, ...]


class Remove(NamedTuple):
    """Removes the row with this key, if there is one."""

    table: Table[Any]
    key: Key


Effect = Put | Remove


def check_row(table: Table[Any], row: tuple[Any, ...]) -> None:
    """Raises for a row that one store might keep and another refuse, or change."""
    if len(row) != len(table.columns):
        raise DecisionInvalid(application="-", reason=f"a row of `{table.name}` has {len(row)} columns")
    for column, value in zip(table.columns, row):
        if value is None and column.optional and column.name not in table.key:
            continue
        wrong = value.__class__ is not column.type
        if column.type is int:
            wrong = wrong or not INTEGER_MIN <= value <= INTEGER_MAX
        elif column.type is str:
            # PostgreSQL keeps no NUL, and nobody keeps a lone surrogate.
            wrong = wrong or "\x00" in value or not _is_text(value)
        elif column.type is float:
            wrong = wrong or value != value
        if wrong:
            where = f"`{table.name}.{column.name}`"
            raise DecisionInvalid(application="-", reason=f"{where} would be {value!r:.80}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _columns(name: str, row_type: type[Any]) -> tuple[Column, ...]:
    hints = get_type_hints(row_type)
    columns = []
    for field in getattr(row_type, "_fields", ()):
        hint = hints[field]
        of_union = get_args(hint) if get_origin(hint) in {Union, UnionType} else ()
        members = (
            [hint] if hint in COLUMN_TYPES else [member for member in of_union if member is not type(None)]
        )
        if len(members) != 1 or members[0] not in COLUMN_TYPES or not _NAME.fullmatch(field):
            raise ApplicationInvalid(
                application="-",
                reason=f"`{name}.{field}` is {hint}, not int, str, bytes or float, nor one of them or None",
            )
        columns.append(Column(field, members[0], optional=hint not in COLUMN_TYPES))
    if not columns:
        raise ApplicationInvalid(application="-", reason=f"the rows of table {name!r} are not a NamedTuple")
    return tuple(columns)
