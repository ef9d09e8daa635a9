"""State as tables of typed rows.

A row is a NamedTuple: immutable, comparable and ready to bind to an SQL statement. The columns of a table
are the fields of its row type, and the first `key` of them are its primary key. State is plain SQL that
any tool can query, while `decide` sees typed values.

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

import msgspec

from penstock.model.errors.olep import ApplicationInvalid, DecisionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

Row = TypeVar("Row", bound=tuple[Any, ...])
Key = Any  # the value of a one-column key, or a tuple of several

COLUMN_TYPES: Final = {int: "integer", str: "text", bytes: "blob", float: "real"}
INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,40}")


class Column(NamedTuple):
    name: str
    type: type[Any]
    optional: bool


class Table(Generic[Row]):
    """A table. `append_only` rows are written once and never read by `decide`, so they are not cached."""

    __slots__ = ("append_only", "bound", "columns", "key", "key_of", "name", "names", "row_type")

    def __init__(self, name: str, row_type: type[Row], *, key: int = 1, append_only: bool = False) -> None:
        self.name = name
        self.row_type = row_type
        self.append_only = append_only
        self.columns = _columns(name, row_type)
        if not _NAME.fullmatch(name) or not 1 <= key <= len(self.columns):
            raise ApplicationInvalid(
                application="-", reason=f"table {name!r} has an invalid name or a key of {key} columns"
            )
        self.names = tuple(column.name for column in self.columns)
        self.key = self.names[:key]
        self.key_of: Callable[[tuple[Any, ...]], Key] = itemgetter(*range(key))
        # A key as a tuple, to bind to a statement.
        self.bound: Callable[[Key], tuple[Any, ...]] = tuple if key > 1 else lambda key: (key,)

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    def described(self) -> str:
        """The declaration as one line, for fingerprints."""
        columns = ",".join(f"{name} {kind.__name__}{'?' * optional}" for name, kind, optional in self.columns)
        return f"{self.name}({columns})/{len(self.key)}"

    def is_key(self, key: Key) -> bool:
        """Whether a row can have this key. Stores differ in what they do with others."""
        values = self.bound(key)
        return len(values) == len(self.key) and all(map(_is_valid, self.columns, values))

    def plain(self, row: tuple[Any, ...]) -> list[Any]:
        """The row as a store returns it; memory may hold a subclass, such as an enum."""
        return [None if value is None else column.type(value) for column, value in zip(self.columns, row)]


class Put(msgspec.Struct, frozen=True, gc=False):
    """Writes a row, replacing the row with the same key."""

    table: Table[Any]
    row: tuple[Any, ...]


class Remove(msgspec.Struct, frozen=True, gc=False):
    """Removes the row with this key, if there is one."""

    table: Table[Any]
    key: Key


Effect = Put | Remove


def check_row(table: Table[Any], row: tuple[Any, ...]) -> None:
    """Raises DecisionInvalid for a row that some store would refuse or change."""
    if len(row) != len(table.columns):
        raise DecisionInvalid(application="-", reason=f"a row of `{table.name}` has {len(row)} columns")
    for column, value in zip(table.columns, row):
        if value is None and column.optional and column.name not in table.key:
            continue
        if not _is_valid(column, value):
            where = f"`{table.name}.{column.name}`"
            raise DecisionInvalid(application="-", reason=f"{where} would be {value!r:.80}")


def _is_valid(column: Column, value: Any) -> bool:
    """Whether every store can store the value, unchanged."""
    if not isinstance(value, column.type):
        return False
    if column.type is int:
        return value.__class__ is not bool and bool(INTEGER_MIN <= value <= INTEGER_MAX)
    if column.type is str:
        # PostgreSQL cannot store NUL, and no store can store a lone surrogate.
        return "\x00" not in value and _is_text(value)
    return column.type is not float or value == value


def storable(text: str) -> str:
    """The text, with characters replaced that some store cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")


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
                reason=f"`{name}.{field}` is {hint}; use int, str, bytes, float, or one of them or None",
            )
        columns.append(Column(field, members[0], optional=hint not in COLUMN_TYPES))
    if not columns:
        raise ApplicationInvalid(application="-", reason=f"the rows of table {name!r} are not a NamedTuple")
    return tuple(columns)
