"""What a job is: a source, a pure transformation, a sink, tables derived from it, and a rhythm.

Nothing here runs anything. `penstock.pipeline.runner` does, for every job alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.pipeline import JobInvalid
from penstock.pipeline.columns import Column, Evolve

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame

    from penstock.model.schema import Event
    from penstock.pipeline.reading import Reader

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,49}")
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,49}\.[a-z][a-z0-9_]{0,79}")
BATCH_OFFSETS_MAX: Final = 1_000_000  # a trigger: bounds memory, and what a crash makes one do again

Transform = Callable[["DataFrame"], "DataFrame"]


class Form(StrEnum):
    """How the values of a topic are written."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    RAW = "raw"


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Source:
    """A topic, and how its values become rows. `reader` is for topics of the platform itself."""

    topic: str
    form: Form = Form.JSON
    columns: tuple[Column, ...] = ()
    evolve: Evolve = Evolve.IGNORE
    schema_file: Path | None = None
    message: str | None = None  # of a Protobuf descriptor set
    key: bool = False  # keep the record's key
    headers: bool = False
    reader: Reader | None = None
    event: type[Event] | None = None  # values are this event of the platform, and checked to be
    body: bool = False  # keep the value as text in the column `body`
    batch_offsets_max: int = BATCH_OFFSETS_MAX


@dataclass(frozen=True, slots=True)
class Sink:
    table: str
    mode: Mode = Mode.APPEND
    key: tuple[str, ...] = ()  # columns by which rows are upserted
    partition_by: tuple[str, ...] = ()  # `days(time)`, `bucket(8, account)`, a column
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def rejected(self) -> str:
        """The table of records that could not be read."""
        return f"{self.table}_rejected"


@dataclass(frozen=True, slots=True)
class Derived:
    """A table that is a function of the sink's: renewed in one commit, as far back as new rows reach.

    `transform(rows, since)` sees all rows of the sink, and returns those of the derived table whose
    `column` is at or after `since`, or all of them if that is None. `watch` is the sink's column
    whose least new value `since` is taken from, rounded down by `align`.
    """

    table: str
    transform: Callable[[DataFrame, datetime | None], DataFrame]
    column: str
    watch: str
    align: Callable[[datetime], datetime]
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    summary: str
    source: Source
    sink: Sink
    transform: Transform | None = None
    derived: tuple[Derived, ...] = ()
    every_seconds: int | None = None  # when `penstock pipeline schedule` runs it

    def __post_init__(self) -> None:
        self._require(bool(_NAME.fullmatch(self.name)), "name", self.name, "expected a-z, 0-9 and -")
        for table in (self.sink.table, *(each.table for each in self.derived)):
            self._require(bool(_TABLE.fullmatch(table)), "table", table, "expected namespace.table")
        upsert = self.sink.mode is Mode.UPSERT
        self._require(
            upsert == bool(self.sink.key),
            "key",
            list(self.sink.key),
            "expected columns if, and only if, mode is upsert",
        )
        names = [each.name for each in self.source.columns]
        self._require(len(set(names)) == len(names), "columns", names, "expected each name once")
        if upsert and names:
            missing = [name for name in self.sink.key if name not in (*names, "kafka_key")]
            self._require(not missing, "key", missing, "expected declared columns, or kafka_key")
        file = self.source.form in (Form.AVRO, Form.PROTOBUF)
        self._require(
            file == (self.source.schema_file is not None),
            "schema_file",
            str(self.source.schema_file),
            "expected a file if, and only if, the format is avro or protobuf",
        )
        self._require(
            self.source.batch_offsets_max > 0, "batch", self.source.batch_offsets_max, "expected one or more"
        )

        self._require(
            self.every_seconds is None or self.every_seconds > 0,
            "every_seconds",
            self.every_seconds,
            "expected one or more",
        )

    def _require(self, holds: bool, key: str, value: object, expected: str) -> None:
        if not holds:
            raise JobInvalid(where=f"job {self.name}", key=key, value=value, expected=expected)
