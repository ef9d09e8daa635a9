"""Writes one micro-batch to its tables, exactly once.

A batch is identified by its query and number; a table that already has it is not written again. Its commit
is conditional on the table's position: two runs on two hosts cannot both write a range. Records that cannot
be decoded go to the table of rejected records, in a separate commit that is recognised the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.model import fault_points
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import FieldsUnknown, KeyMoved
from penstock.pipeline.job import Mode
from penstock.pipeline.lake.columns import (
    DELETED,
    ERROR,
    KEY,
    OFFSET,
    PARTITION,
    RESERVED,
    SOURCE_DDL,
    TIMESTAMP,
    VALUE,
    Column,
    Evolve,
)
from penstock.pipeline.lake.commit import commit as commit_to
from penstock.pipeline.lake.ledger import is_committed, newest_commit
from penstock.pipeline.lake.upsert import KEY_MOVED, replace_rejected, upsert
from penstock.pipeline.reading.blocks import ReaderRows, RecordRows, new_fields
from penstock.pipeline.reading.decoders import arrow_schema, decoder_of, spark_schema
from penstock.pipeline.reading.newest_by_key import newest_rows
from penstock.pipeline.spark.failure import translate_error, translate_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake.commit import Snapshots
    from penstock.pipeline.lake.ledger import Commit
    from penstock.pipeline.lake.tables import Tables
    from penstock.pipeline.reading.blocks import Decoder

BATCH_STARTED: Final = fault_points.declare(
    "pipeline.batch.started", "a batch is planned, nothing of it is written"
)
TABLE_COMMITTED: Final = fault_points.declare(
    "pipeline.table.committed", "the table has the batch, the checkpoint does not yet"
)
REJECTED_COMMITTED: Final = fault_points.declare(
    "pipeline.rejected.committed", "rows and rejected records are committed, the checkpoint is not"
)
ADDED_ROWS: Final = "added-records"  # a key of Iceberg's snapshot summary
EVOLUTIONS_MAX: Final = 100  # schema changes for one batch
RECORD_DDL: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
REJECTED_DDL: Final = ", ".join((*SOURCE_DDL, "kafka_key binary", f"{VALUE} binary", f"{ERROR} string"))


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of writing a batch."""

    repeated: bool  # the table already had it
    rejected: int
    passes: int  # how often its records were read: twice if some were rejected


class BatchWriter:
    """Writes the batches of one job; may add columns between batches."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job = job
        self.tables = tables
        self.lost: Mapping[int, tuple[int, int]] = {}  # ranges that the run may skip
        self.columns = job.source.columns
        self._decoder: tuple[tuple[Column, ...], Decoder, str] | None = None  # for these columns
        self._unwritten: dict[str, str] = {}  # table columns that the job does not write

    def prepare(self) -> None:
        """Creates and checks the tables. Raises SchemaConflict, LakeUnusable, SchemaFileInvalid."""
        sink = self.job.sink
        if self.job.source.evolve is Evolve.ADD and self.tables.exists(sink.table):
            declared = {each.name for each in self.columns}
            existing = self.tables.columns(sink.table)
            added = {n: t for n, t in existing.items() if n not in declared and not n.startswith(RESERVED)}
            self.columns = (*self.columns, *(Column(name, kind) for name, kind in added.items()))
        schema = self.sink_schema()
        if self.job.source.evolve is Evolve.ADD and self.tables.exists(sink.table):
            # A registry's new version may have more fields.
            self.tables.add_columns(sink.table, {f.name: f.dataType.simpleString() for f in schema})
        self.tables.ensure(sink.table, schema, partition_by=sink.partition_by, properties=sink.properties)
        self.tables.check_schema(self.job.name, sink.table, schema)
        written = set(schema.names)
        self._unwritten = {n: t for n, t in self.tables.columns(sink.table).items() if n not in written}
        self.tables.ensure(sink.rejected, spark_schema(REJECTED_DDL))

    def sink_schema(self) -> StructType:
        """The columns of a batch as the table gets them."""
        empty = self.tables.session.createDataFrame([], RECORD_DDL)
        schema = self.accepted(self.decoded(empty, lambda _: None)).schema
        return StructType([field for field in schema if field.name != DELETED])

    def write(self, records: DataFrame, commit: Commit) -> BatchResult:
        """Writes the batch unless the table has it.

        Raises PositionMoved, KeyMoved, FieldsUnknown, TableContended, SparkFailed, DiskFull."""
        what = f"batch {commit.batch} of {self.job.name}"
        written = False

        def merge(rows: DataFrame) -> None:
            nonlocal written
            written = self._merge(rows, commit)

        with translate_errors(what):
            fault_points.reach(BATCH_STARTED)
            rejected = self.write_accepted(records, what, merge)
            if written:
                fault_points.reach(TABLE_COMMITTED)
                rejected = self._reject(records, commit) if rejected else 0
            else:
                rejected = self.restore_rejected(records, commit)
            fault_points.reach(REJECTED_COMMITTED)
            return BatchResult(not written, rejected, 2 if rejected else 1)

    def _reject(self, records: DataFrame, commit: Commit, *, again: bool = False) -> int:
        """Writes the batch's rejected records unless the table has them. Returns how many it wrote."""
        table, tables = self.job.sink.rejected, self.tables
        rejected = self.rejected(self.decoded(records, lambda _: None))

        def write() -> None:
            if again:  # a backfill may have written them since the crash
                replace_rejected(tables, table, rejected, commit.start, commit.end)
            else:
                rejected.writeTo(tables.qualified(table)).append()

        def unless(snapshots: Snapshots) -> bool:
            newest = newest_commit(snapshots, query=commit.query)
            return newest is not None and newest.batch >= commit.batch

        summary = commit_to(tables, rejected.sparkSession, table, commit.properties(), write, unless=unless)
        # The accumulator counts twice what was retried after losing an executor; the commit does not.
        return 0 if summary is None else int(summary.get(ADDED_ROWS, 0))

    def restore_rejected(self, records: DataFrame, commit: Commit) -> int:
        """Writes the rejected records of a batch that the table has, if a crash came before that."""
        newest = self.tables.newest_commit(self.job.sink.rejected, query=commit.query)
        if newest is not None and newest.batch >= commit.batch:
            return 0
        if self.rejected(self.decoded(records, lambda _: None)).isEmpty():
            return 0
        return self._reject(records, commit, again=True)

    def write_accepted(self, records: DataFrame, what: str, write: Callable[[DataFrame], None]) -> int:
        """Calls `write` with the decoded rows, again after each schema change.

        Returns the number of rejected records. Raises FieldsUnknown, SparkFailed, DiskFull, and what
        `write` raises."""
        for _ in range(EVOLUTIONS_MAX):
            counter = self.tables.session.sparkContext.accumulator(0)
            rows = self.accepted(self.decoded(records, counter.add))
            for name, kind in self._unwritten.items():
                rows = rows.withColumn(name, F.lit(None).cast(kind))
            try:
                write(rows)
            except PenstockError:
                raise
            except Exception as error:
                if KEY_MOVED in str(error):
                    topic, reason = self.job.source.topic, "a key is in several partitions"
                    raise KeyMoved(job=self.job.name, reason=reason, topic=topic) from error
                fields = new_fields(str(error))
                if fields is None:
                    raise translate_error(error, what) from error
                self._evolve(fields)
                continue
            return int(counter.value)
        raise self._fields_unknown("new ones at every attempt")

    def _merge(self, rows: DataFrame, commit: Commit) -> bool:
        """Whether the table got the rows; it may have them already."""
        sink, tables = self.job.sink, self.tables

        def write() -> None:
            if sink.mode is Mode.UPSERT:
                upsert(tables, rows, sink)
            else:
                rows.writeTo(tables.qualified(sink.table)).append()

        def unless(snapshots: Snapshots) -> bool:
            last = newest_commit(snapshots, job=commit.job)
            by_offset = sink.mode is Mode.UPSERT and sink.order_by is None
            if by_offset and last is not None and last.end.keys() != commit.end.keys():
                counts = f"{commit.topic} has {len(commit.end)} partitions and had {len(last.end)} before"
                raise KeyMoved(job=commit.job, reason=counts, topic=commit.topic)
            return is_committed(commit, last, table=sink.table, lost=self.lost)

        properties = commit.properties()
        return commit_to(tables, rows.sparkSession, sink.table, properties, write, unless=unless) is not None

    def _evolve(self, fields: dict[str, str]) -> None:
        if self.job.source.evolve is not Evolve.ADD or any(name.startswith(RESERVED) for name in fields):
            raise self._fields_unknown(", ".join(f"{n} ({kind})" for n, kind in sorted(fields.items())))
        self.tables.add_columns(self.job.sink.table, fields)
        known = {each.name for each in self.columns}
        self.columns = (*self.columns, *(Column(n, t) for n, t in sorted(fields.items()) if n not in known))

    def _fields_unknown(self, fields: str) -> FieldsUnknown:
        return FieldsUnknown(job=self.job.name, topic=self.job.source.topic, fields=fields)

    def decoded(self, records: DataFrame, count_rejected: Callable[[int], None]) -> DataFrame:
        """All records as rows: accepted ones, and rejected ones with bytes and reason."""
        source = self.job.source
        reader = source.reader
        fields = ["value", "partition", "offset", "timestamp"]
        fields += ["key"] if source.key or reader is not None else []
        fields += ["headers"] if source.headers else []
        if reader is not None:
            ddl = f"{reader.ddl}, {', '.join(SOURCE_DDL)}, {VALUE} binary, {ERROR} string"
            out = arrow_schema(ddl)
            function: Any = ReaderRows(reader, out)
        else:
            if self._decoder is None or self._decoder[0] != self.columns:
                self._decoder = (self.columns, *decoder_of(source, self.columns))
            _, decoder, ddl = self._decoder
            parts = [ddl, *SOURCE_DDL, f"{DELETED} boolean", f"{VALUE} binary", f"{ERROR} string"]
            parts += ["kafka_key binary"] if source.key else []
            parts += ["kafka_headers array<struct<key: string, value: binary>>"] if source.headers else []
            ddl = ", ".join(filter(None, parts))
            out = arrow_schema(ddl)
            order_by = self.job.sink.order_by
            ordered = () if order_by is None or order_by.startswith(RESERVED) else (order_by,)
            required = (*self.job.sink.key, *ordered) if self.job.transform is None else ()
            function = RecordRows(decoder, out, key=source.key, headers=source.headers, required=required)
        by_offset = reader is None and self.job.transform is None and self.job.sink.order_by is None
        key = self.job.sink.key if by_offset else ()

        def to_rows(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows: Iterator[pa.RecordBatch] = function(blocks, count_rejected)
            return newest_rows(rows, key) if key else rows

        return records.select(*fields).mapInArrow(to_rows, ddl)

    def accepted(self, rows: DataFrame) -> DataFrame:
        """The rows that go to the table, transformed."""
        accepted = rows.filter(F.col(ERROR).isNull()).drop(ERROR, VALUE)
        if self.job.sink.mode is Mode.APPEND and DELETED in accepted.columns:
            accepted = accepted.drop(DELETED)
        return accepted if self.job.transform is None else self.job.transform(accepted)

    def rejected(self, rows: DataFrame) -> DataFrame:
        """The rows that go to the table of rejected records."""
        key = F.col(KEY) if KEY in rows.columns else F.lit(None).cast("binary").alias(KEY)
        return rows.filter(F.col(ERROR).isNotNull()).select(PARTITION, OFFSET, TIMESTAMP, key, VALUE, ERROR)
