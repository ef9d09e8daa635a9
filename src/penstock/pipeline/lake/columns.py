"""Columns as a job declares them, and the reserved `kafka_` columns.

A column type is written as in Spark DDL (`bigint`, `array<string>`, `map<string, int>`). One type is added:
`timestamp_ms`, a timestamp that records carry as milliseconds since 1970.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.model.errors.pipeline import JobInvalid

TIMESTAMP_MS: Final = "timestamp_ms"
# Every table written from a topic has columns for a row's origin. They do not start with an underscore
# because Iceberg reserves `_partition` and `_deleted`.
RESERVED: Final = "kafka_"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
TIMESTAMP: Final = "kafka_timestamp"
KEY: Final = "kafka_key"
HEADERS: Final = "kafka_headers"
DELETED: Final = "kafka_deleted"  # a tombstone: upserts delete the row of its key
ERROR: Final = "kafka_error"
VALUE: Final = "kafka_value"
BODY: Final = "body"  # the whole value as text, if a platform job keeps it
SOURCE_DDL: Final = (f"{PARTITION} int", f"{OFFSET} bigint", f"{TIMESTAMP} timestamp")

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_SCALARS: Final = frozenset((
    "string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "binary", "date",
    "timestamp",
))  # fmt: skip
_DECIMAL: Final = re.compile(r"decimal\(\d{1,2},\s?\d{1,2}\)")


class Evolve(StrEnum):
    """What happens to fields that the job does not declare."""

    ADD = "add"  # the table gets a column of the type seen in the records
    IGNORE = "ignore"
    STOP = "stop"  # the job stops before such records and reports the fields


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str

    @property
    def ddl(self) -> str:
        kind = "timestamp" if self.type == TIMESTAMP_MS else self.type
        return f"`{self.name}` {kind}"


def column(where: str, name: str, kind: str) -> Column:
    """A validated column. Raises JobInvalid."""
    if not _NAME.fullmatch(name) or name.startswith(RESERVED):
        expected = "expected letters, digits and _, not starting with kafka_"
        raise JobInvalid(where=where, key=name, value=kind, expected=expected)
    kind = kind.strip().lower()
    if not _is_type(kind):
        scalars = ", ".join((*sorted(_SCALARS), TIMESTAMP_MS))
        expected = f"expected one of {scalars}, decimal(p,s), array<…>, map<string, …> or struct<…>"
        raise JobInvalid(where=where, key=name, value=kind, expected=expected)
    return Column(name, kind)


def columns_of(ddl: str) -> tuple[Column, ...]:
    """Columns from text such as `id string, time_ms timestamp_ms`."""
    return tuple(Column(*each.split()) for each in ddl.split(", "))


def _is_type(kind: str) -> bool:
    if kind.startswith(("array<", "struct<", "map<string,")) and kind.endswith(">"):
        # JSON has no other keys.
        return TIMESTAMP_MS not in kind and kind.count("map<") == kind.count("map<string,")
    return kind in _SCALARS or kind == TIMESTAMP_MS or bool(_DECIMAL.fullmatch(kind))
