"""Columns of a table as a job declares them, and the names that are taken.

A column's type is written as in Spark's DDL (`bigint`, `array<string>`, `struct<a: int>`), with one
addition: `timestamp_ms` is a timestamp that records carry as milliseconds since 1970.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.model.errors.pipeline import JobInvalid

TIMESTAMP_MS: Final = "timestamp_ms"
# Where a row came from. They stand in every table that a topic is written to. (Names that begin with
# an underscore are no choice: Iceberg has a `_partition` and a `_deleted` of its own.)
RESERVED: Final = "kafka_"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
TIMESTAMP: Final = "kafka_timestamp"
KEY: Final = "kafka_key"
HEADERS: Final = "kafka_headers"
DELETED: Final = "kafka_deleted"  # a record without a value: upserts remove the row of its key
ERROR: Final = "kafka_error"
VALUE: Final = "kafka_value"
BODY: Final = "body"  # the whole value as text, where a job of the platform keeps it
PLACE: Final = (f"{PARTITION} int", f"{OFFSET} bigint", f"{TIMESTAMP} timestamp")

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_SCALARS: Final = frozenset(
    [
        "string",
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "binary",
        "date",
        "timestamp",
    ]
)
_DECIMAL: Final = re.compile(r"decimal\(\d{1,2},\s?\d{1,2}\)")


class Evolve(StrEnum):
    """What becomes of fields that are not declared."""

    ADD = "add"  # the table gets a column of the type that the records show
    IGNORE = "ignore"
    STOP = "stop"  # the job stops before such records, and names the fields


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str

    @property
    def ddl(self) -> str:
        kind = "timestamp" if self.type == TIMESTAMP_MS else self.type
        return f"`{self.name}` {kind}"


def column(where: str, name: str, kind: str) -> Column:
    """A declared column, checked. Raises JobInvalid."""
    if not _NAME.fullmatch(name) or name.startswith(RESERVED):
        raise JobInvalid(
            where=where, key=name, value=kind, expected="expected letters, digits and _, and no kafka_ before"
        )
    kind = kind.strip().lower()
    if not _is_type(kind):
        raise JobInvalid(
            where=where,
            key=name,
            value=kind,
            expected=f"expected one of {', '.join(sorted(_SCALARS))}, {TIMESTAMP_MS}, decimal(p,s), "
            "array<…> or struct<…>",
        )
    return Column(name, kind)


def _is_type(kind: str) -> bool:
    if kind.startswith(("array<", "struct<")) and kind.endswith(">"):
        return TIMESTAMP_MS not in kind and "map<" not in kind
    return kind in _SCALARS or kind == TIMESTAMP_MS or bool(_DECIMAL.fullmatch(kind))
