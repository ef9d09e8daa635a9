"""One batch into its tables, exactly once.

The batch is known by its query and number. What its table has already is not written again; rows
that cannot be read go to the table of rejected records, in a commit of its own that is known alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model import faults
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import FieldsUnknown
from penstock.pipeline.columns import (
    DELETED,
    ERROR,
    OFFSET,
    PARTITION,
    PLACE,
    RESERVED,
    VALUE,
    Column,
    Evolve,
)
from penstock.pipeline.decoders import decoder_of
from penstock.pipeline.failure import named, naming
from penstock.pipeline.job import Mode
from penstock.pipeline.ledger import is_done
from penstock.pipeline.reading import Rows, new_fields
from penstock.pipeline.reading.newest import newest_rows
from penstock.pipeline.reading.own import OwnRows
from penstock.pipeline.rejected import renew_rejected
from penstock.pipeline.upsert import upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake import Tables
    from penstock.pipeline.ledger import Commit

BATCH_BEGUN: Final = faults.declare("pipeline.batch.begun", "a batch is planned, nothing of it is written")
TABLE_COMMITTED: Final = faults.declare(
    "pipeline.table.committed", "the table has the batch, the checkpoint does not know yet"
)
REJECTED_COMMITTED: Final = faults.declare(
    "pipeline.rejected.committed",
    "rows and rejected records are in their tables, the checkpoint does not know",
)
EVOLUTIONS_MAX: Final = 100  # rounds of new columns for one batch
RECORD_DDL: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
REJECTED_DDL: Final = ", ".join((*PLACE, "kafka_key binary", f"{VALUE} binary", f"{ERROR} string"))


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch."""

    repeated: bool  # the table had it already
    rejected: int
    passes: int  # how often its records were read: once more where some were rejected


class BatchWriter:
    """Writes batches of one job. Columns may be added while it works."""

    def __init__(self, job: Job, tables: Tables) -> None:
        self.job = job
        self.tables = tables
        self.columns = job.source.columns
        self._absent: dict[str, str] = {}  # columns of the table that the job does not write

    def prepare(self) -> None:
        """Makes and checks the tables. Raises SchemaConflict, LakeUnusable, SchemaFileInvalid."""
        sink = self.job.sink
        if self.job.source.evolve is Evolve.ADD and self.tables.exists(sink.table):
            declared = {each.name for each in self.columns}
            found = self.tables.columns(sink.table)
            later = {n: t for n, t in found.items() if n not in declared and not n.startswith(RESERVED)}
            self.columns = (*self.columns, *(Column(name, kind) for name, kind in later.items()))
        schema = self.sink_schema()
        self.tables.ensure(sink.table, schema, partition_by=sink.partition_by, properties=sink.properties)
        self.tables.check(self.job.name, sink.table, schema)
        written = set(schema.names)
        self._absent = {n: t for n, t in self.tables.columns(sink.table).items() if n not in written}
        rejected = self.tables.session.createDataFrame([], REJECTED_DDL).schema
        self.tables.ensure(sink.rejected, rejected)

    def sink_schema(self) -> StructType:
        """The columns that a batch will have."""
        empty = self.tables.session.createDataFrame([], RECORD_DDL)
        schema = self.good(self.rows(empty, lambda _: None)).schema
        return type(schema)([field for field in schema if field.name != DELETED])

    def write(self, records: DataFrame, commit: Commit) -> Written:
        """The batch, once. Raises FieldsUnknown, SparkFailed, RoomMissing."""
        with naming(f"batch {commit.batch} of {self.job.name}"):
            return self._write(records, commit)

    def _write(self, records: DataFrame, commit: Commit) -> Written:
        faults.reach(BATCH_BEGUN)
        table = self.job.sink.table
        repeated = is_done(commit, self.tables.newest(table, query=commit.query))
        counted = 0
        if not repeated:
            what = f"batch {commit.batch} of {self.job.name}"
            counted = self.put_good(records, what, lambda rows: self._put(rows, commit))
            faults.reach(TABLE_COMMITTED)
        rejected = counted if not repeated else self._left_rejects(records, commit)
        if rejected:
            rejected = self._reject(records, commit, again=repeated)
        faults.reach(REJECTED_COMMITTED)
        return Written(repeated, rejected, 2 if rejected else 1)

    def _reject(self, records: DataFrame, commit: Commit, *, again: bool) -> int:
        table = self.job.sink.rejected
        bad = self.bad(self.rows(records, lambda _: None))
        if again:  # a backfill may have listed them since the crash
            return renew_rejected(self.tables, table, bad, commit.start, commit.end, commit.properties())
        self.tables.append(bad, table, commit.properties())
        # Tasks that were done again, since an executor was lost, have counted theirs twice.
        return self.tables.added(table)

    def _left_rejects(self, records: DataFrame, commit: Commit) -> int:
        """A crash may have come between the two tables: what the second one lacks is counted anew."""
        if is_done(commit, self.tables.newest(self.job.sink.rejected, query=commit.query)):
            return 0
        return self.bad(self.rows(records, lambda _: None)).count()

    def put_good(self, records: DataFrame, what: str, put: Callable[[DataFrame], None]) -> int:
        """Has the readable rows put into the table, once more after new columns. Returns how many
        records are not readable. Raises FieldsUnknown, SparkFailed, RoomMissing, and what `put` does."""
        for _ in range(EVOLUTIONS_MAX):
            counter = self.tables.session.sparkContext.accumulator(0)
            rows = self.good(self.rows(records, counter.add))
            for name, kind in self._absent.items():
                rows = rows.withColumn(name, F.lit(None).cast(kind))
            try:
                put(rows)
            except PenstockError:
                raise
            except Exception as error:
                fields = new_fields(str(error))
                if fields is None:
                    raise named(error, what) from error
                self._evolve(fields)
                continue
            return int(counter.value)
        raise FieldsUnknown(
            job=self.job.name, topic=self.job.source.topic, fields="new ones in every attempt"
        )

    def _put(self, rows: DataFrame, commit: Commit) -> None:
        sink = self.job.sink
        if sink.mode is Mode.UPSERT:
            upsert(self.tables, rows, sink, commit.properties())
            return
        self.tables.append(rows, sink.table, commit.properties())

    def _evolve(self, fields: dict[str, str]) -> None:
        if self.job.source.evolve is not Evolve.ADD or any(name.startswith(RESERVED) for name in fields):
            raise FieldsUnknown(
                job=self.job.name,
                topic=self.job.source.topic,
                fields=", ".join(f"{name} ({kind})" for name, kind in sorted(fields.items())),
            )
        self.tables.add_columns(self.job.sink.table, fields)
        known = {each.name for each in self.columns}
        self.columns = (*self.columns, *(Column(n, t) for n, t in sorted(fields.items()) if n not in known))

    # --- frames -------------------------------------------------------------------------------------

    def rows(self, records: DataFrame, note: Callable[[int], None]) -> DataFrame:
        """Everything read, good and bad, in the agreed form."""
        source = self.job.source
        reader = source.reader
        wanted = ["value", "partition", "offset", "timestamp"]
        wanted += ["key"] if source.key or reader is not None else []
        wanted += ["headers"] if source.headers else []
        session = self.tables.session
        if reader is not None:
            ddl = f"{reader.ddl}, {', '.join(PLACE)}, {VALUE} binary, {ERROR} string"
            out = arrow_schema(session.createDataFrame([], ddl).schema)
            function: Any = OwnRows(reader, out)
        else:
            decoder, ddl = decoder_of(session, source, self.columns)
            parts = [ddl, *PLACE, f"{DELETED} boolean", f"{VALUE} binary", f"{ERROR} string"]
            parts += ["kafka_key binary"] if source.key else []
            parts += ["kafka_headers array<struct<key: string, value: binary>>"] if source.headers else []
            ddl = ", ".join(filter(None, parts))
            out = arrow_schema(session.createDataFrame([], ddl).schema)
            required = self.job.sink.key if self.job.transform is None else ()
            function = Rows(decoder, out, key=source.key, headers=source.headers, required=required)
        by = self.job.sink.key if reader is None and self.job.transform is None else ()

        def mapped(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            made: Iterator[pa.RecordBatch] = function(blocks, note)
            return newest_rows(made, by) if by else made

        return records.select(*wanted).mapInArrow(mapped, ddl)

    def good(self, rows: DataFrame) -> DataFrame:
        """What goes to the table: readable rows, transformed."""
        kept = rows.filter(F.col(ERROR).isNull()).drop(ERROR, VALUE)
        if self.job.sink.mode is Mode.APPEND and DELETED in kept.columns:
            kept = kept.drop(DELETED)
        return kept if self.job.transform is None else self.job.transform(kept)

    def bad(self, rows: DataFrame) -> DataFrame:
        key = (
            F.col("kafka_key")
            if "kafka_key" in rows.columns
            else F.lit(None).cast("binary").alias("kafka_key")
        )
        place = [F.col(PARTITION), F.col(OFFSET), F.col("kafka_timestamp")]
        return rows.filter(F.col(ERROR).isNotNull()).select(*place, key, F.col(VALUE), F.col(ERROR))


def arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema)
    return found
