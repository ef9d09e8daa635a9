"""Backfill: reads an exact range of offsets into a job's table again.

Use it for records that were rejected, or restored after a loss. Rows of the range replace the existing
rows with the same partition and offset (the same key, in an upserted table), and the rejected records of
the range are replaced. Repeating a backfill changes nothing, and the job's position stays. The range ends
at that position at most, because the job's next run would write later records a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from penstock.model import fault_points
from penstock.model.errors.pipeline import JobInvalid, RangeInvalid
from penstock.pipeline.job import Mode, Sink
from penstock.pipeline.lake.batch import BatchWriter
from penstock.pipeline.lake.columns import DELETED, OFFSET, PARTITION
from penstock.pipeline.lake.commit import commit
from penstock.pipeline.lake.derived import refresh_derived
from penstock.pipeline.lake.ledger import check_topic_id
from penstock.pipeline.lake.upsert import replace_rejected, upsert
from penstock.pipeline.spark.failure import translate_errors
from penstock.pipeline.spark.kafka import records_between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake.ledger import Offsets, TopicOffsets
    from penstock.pipeline.lake.tables import Tables
    from penstock.pipeline.settings import Connection

BACKFILL: Final = "penstock.backfill"
ROWS_WRITTEN: Final = fault_points.declare(
    "pipeline.backfill.written", "rows of the range are written, its rejected records are not"
)


@dataclass(frozen=True, slots=True)
class BackfillResult:
    job: str
    records: int
    rejected: int
    start: Offsets
    end: Offsets


def parse_offsets(text: str, *, job: str, held: str) -> dict[int, int]:
    """Parses `0:100,1:250`. Raises RangeInvalid."""
    offsets: dict[int, int] = {}
    for item in text.split(","):
        partition, colon, offset = item.strip().partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise RangeInvalid(job=job, reason=f"{item.strip()!r} is not partition:offset", held=held)
        offsets[int(partition)] = int(offset)
    return offsets


def resolve_range(
    topic: TopicOffsets, job: str, start: str | None, end: str | None, *, read: Offsets | None = None
) -> tuple[Offsets, Offsets]:
    """Start and end for every partition. A partition that is not given defaults to all of it, up to `read`.

    Raises RangeInvalid."""
    if read is not None:
        ends = {p: max(first, min(topic.end[p], read.get(p, first))) for p, first in topic.start.items()}
        topic = replace(topic, end=ends)
    inside = "in the topic" if read is None else "in what the job has read of the topic"
    held = ", ".join(f"{p}:{topic.start[p]} to {p}:{topic.end[p]}" for p in sorted(topic.start))
    begin = {**topic.start, **(parse_offsets(start, job=job, held=held) if start else {})}
    until = {**topic.end, **(parse_offsets(end, job=job, held=held) if end else {})}
    for partition in sorted(begin.keys() | until.keys()):
        if partition not in topic.start:
            raise RangeInvalid(job=job, reason=f"there is no partition {partition}", held=held)
        if not topic.start[partition] <= begin[partition] <= until[partition] <= topic.end[partition]:
            reason = f"partition {partition} from {begin[partition]} until {until[partition]} is not {inside}"
            raise RangeInvalid(job=job, reason=reason, held=held)
    return begin, until


def backfill(
    tables: Tables, job: Job, connection: Connection, topic: TopicOffsets, start: str | None, end: str | None
) -> BackfillResult:
    """Reads the range again.

    Raises TopicReplaced, RangeInvalid, FieldsUnknown, SparkFailed, DiskFull, and JobInvalid if rows cannot
    be matched to records."""
    writer = BatchWriter(job, tables)
    writer.prepare()
    with translate_errors(f"backfill of {job.name}"):
        last = tables.newest_commit(job.sink.table, job=job.name)
        check_topic_id(job.name, topic, last)
        read = last.end if last is not None else {}
        begin, until = resolve_range(topic, job.name, start, end, read=read)
        if job.sink.mode is Mode.UPSERT:
            # A later record may have replaced or removed a row, so it must be read as well.
            _, until = resolve_range(topic, job.name, None, None, read=read)
        records = records_between(tables.session, connection, job.source, begin, until)
        properties = {BACKFILL: job.name}
        count = records.count()
        writer.write_accepted(
            records, f"backfill of {job.name}", lambda rows: _merge(tables, job, rows, properties)
        )
        fault_points.reach(ROWS_WRITTEN)
        rows = writer.rejected(writer.decoded(records, lambda _: None))
        rejected = rows.count()

        def replace_rows() -> None:
            replace_rejected(tables, job.sink.rejected, rows, begin, until)

        commit(tables, tables.session, job.sink.rejected, properties, replace_rows)
        if job.derived:
            refresh_derived(job, tables)
    return BackfillResult(job.name, count, rejected, begin, until)


def _merge(tables: Tables, job: Job, rows: DataFrame, properties: dict[str, str]) -> None:
    sink = job.sink
    if job.source.reader is not None:  # partial maxima: repeating them changes nothing
        append = rows.writeTo(tables.qualified(sink.table)).append
        commit(tables, rows.sparkSession, sink.table, properties, append)
        return
    if OFFSET not in rows.columns:
        expected = "a backfill needs rows that keep their offset"
        raise JobInvalid(where=f"job {job.name}", key=OFFSET, value=None, expected=expected)
    if sink.mode is Mode.APPEND:
        if job.transform is not None and _has_duplicates(rows):
            value, expected = "several rows of one record", "a backfill needs at most one row per record"
            raise JobInvalid(where=f"job {job.name}", key="transform", value=value, expected=expected)
        sink = Sink(sink.table, Mode.UPSERT, (PARTITION, OFFSET))
        rows = rows.withColumn(DELETED, F.lit(None).cast("boolean"))
    commit(tables, rows.sparkSession, sink.table, properties, lambda: upsert(tables, rows, sink))


def _has_duplicates(rows: DataFrame) -> bool:
    """Whether a record became several rows. Any of them could replace a row of the table."""
    return not rows.groupBy(PARTITION, OFFSET).count().filter("count > 1").isEmpty()
