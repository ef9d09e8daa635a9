"""What a job declares: source, pure transformation, sink, derived tables and interval.

Values only; `penstock.pipeline.runner` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.pipeline import JobInvalid
from penstock.pipeline.lake.columns import Column, Evolve

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame

    from penstock.model.schema import Event
    from penstock.pipeline.reading.blocks import Reader
    from penstock.pipeline.reading.registry import Registry

TOPIC_IN_TABLE: Final = "{topic}"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,99}")
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,49}\.[a-z][a-z0-9_]{0,79}")
BATCH_OFFSETS_MAX: Final = 1_000_000  # per trigger: bounds memory and the work repeated after a crash

Transform = Callable[["DataFrame"], "DataFrame"]


class ValueFormat(StrEnum):
    """The encoding of a topic's record values."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    RAW = "raw"


class Mode(StrEnum):
    APPEND = "append"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Source:
    """A topic, and how its values become rows. `reader` is for the platform's own topics."""

    topic: str
    format: ValueFormat = ValueFormat.JSON
    columns: tuple[Column, ...] = ()
    evolve: Evolve = Evolve.IGNORE
    schema_file: Path | None = None
    message: str | None = None  # the message type in a Protobuf descriptor set
    registry: Registry | None = None  # where values name their schemas, instead of a file
    subject: str | None = None  # in the registry; default: the topic and `-value`
    key: bool = False  # keep the record key in `kafka_key`
    headers: bool = False
    reader: Reader | None = None
    event: type[Event] | None = None  # values are checked to be this platform event
    body: bool = False  # keep the value as text in the column `body`
    batch_offsets_max: int = BATCH_OFFSETS_MAX


@dataclass(frozen=True, slots=True)
class Sink:
    table: str
    mode: Mode = Mode.APPEND
    key: tuple[str, ...] = ()  # the columns that identify a row when upserting
    order_by: str | None = None  # the column that orders records of a key; default: their offsets
    partition_by: tuple[str, ...] = ()  # `days(time)`, `bucket(8, account)`, a column
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def rejected(self) -> str:
        """The table of records that could not be read."""
        return f"{self.table}_rejected"


@dataclass(frozen=True, slots=True)
class Derived:
    """A table computed from the sink table, refreshed in one commit as far back as new rows reach.

    `transform(rows, since)` gets all rows of the sink. It returns the derived rows whose `column` is at
    or after `since`, or all of them if `since` is None. `since` is the lowest new value of the sink's
    `sink_column`, rounded down by `align`."""

    table: str
    transform: Callable[[DataFrame, datetime | None], DataFrame]
    column: str
    sink_column: str
    align: Callable[[datetime], datetime]
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollup:
    """A small table of rows that replace all older rows of the sink when derived tables are refreshed.

    `fold(rows, before)` gets sink rows, or their rollup, from before a day. For any later `since`, derived
    tables of the folded rows and the rows from that day on must equal those of all rows."""

    table: str
    fold: Callable[[DataFrame, datetime], DataFrame]
    column: str  # the time of a sink row
    days: int  # how many days before the newest row are not rolled up, for late rows


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    summary: str
    source: Source
    sink: Sink
    transform: Transform | None = None
    derived: tuple[Derived, ...] = ()
    rollup: Rollup | None = None
    every_seconds: int | None = None  # the interval for `penstock pipeline schedule`

    def __post_init__(self) -> None:
        source, sink = self.source, self.sink
        upsert, needs_file = (
            sink.mode is Mode.UPSERT,
            source.format in (ValueFormat.AVRO, ValueFormat.PROTOBUF),
        )
        names = [each.name for each in source.columns]
        undeclared = [name for name in sink.key if name not in (*names, "kafka_key")] if names else []
        ordered = sink.order_by in (None, "kafka_timestamp", *names) or (upsert and not names)
        every, offsets_max, file = self.every_seconds, source.batch_offsets_max, source.schema_file
        only_upsert = "expected columns if, and only if, mode is upsert"
        only_file = "expected a file, or a registry, if, and only if, the format is avro or protobuf"
        has_schema = file is not None or source.registry is not None
        for holds, key, value, expected in (
            (_NAME.fullmatch(self.name), "name", self.name, "expected a-z, 0-9 and -"),
            *((_TABLE.fullmatch(t), "table", t, "expected namespace.table") for t in self.tables),
            (upsert == bool(sink.key), "key", list(sink.key), only_upsert),
            (
                upsert or sink.order_by is None,
                "order_by",
                sink.order_by,
                "expected it only if mode is upsert",
            ),
            (ordered, "order_by", sink.order_by, "expected a declared column, or kafka_timestamp"),
            (len(set(names)) == len(names), "columns", names, "expected each name once"),
            (not undeclared, "key", undeclared, "expected declared columns, or kafka_key"),
            (needs_file == has_schema, "schema_file", None if file is None else str(file), only_file),
            (offsets_max > 0, "batch", offsets_max, "expected one or more"),
            (every is None or every > 0, "every_seconds", every, "expected one or more"),
        ):
            if not holds:
                raise JobInvalid(where=f"job {self.name}", key=key, value=value, expected=expected)

    @property
    def tables(self) -> tuple[str, ...]:
        """The sink table, the derived tables and their rollup."""
        rollup = () if self.rollup is None else (self.rollup.table,)
        return (self.sink.table, *(each.table for each in self.derived), *rollup)


@dataclass(frozen=True, slots=True)
class JobPattern:
    """A job for each topic whose name matches, with a table and a name made from the topic's."""

    name: str
    topics: re.Pattern[str]
    table: str  # `{topic}` is replaced
    job_of: Callable[[str, str, str], Job]  # name, topic, table

    def jobs(self, topics: Iterable[str]) -> list[Job]:
        """The jobs for these topics, ordered by topic. Raises JobInvalid if two share a table."""
        by_table: dict[str, Job] = {}
        for topic in sorted(topic for topic in topics if self.topics.fullmatch(topic)):
            slug = re.sub(r"[^a-z0-9]+", "_", topic.lower()).strip("_")
            table = self.table.replace(TOPIC_IN_TABLE, slug)
            if table in by_table:
                value, expected = by_table[table].source.topic, f"which has the same table as {topic!r}"
                raise JobInvalid(where=f"job {self.name}", key="topics", value=value, expected=expected)
            by_table[table] = self.job_of(f"{self.name}-{slug.replace('_', '-')}", topic, table)
        return list(by_table.values())
