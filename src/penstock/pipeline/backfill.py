"""An exact range of offsets, read again into the table: what was rejected, or restored after a loss.

Rows of the range take the place of those that are there, known by partition and offset (by the key,
in a table of upserts); rejected records of the range are listed anew. Doing it twice changes
nothing, and the job's own position is not touched. What lies beyond that is not read: the job's
next run would write it a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from penstock.model import faults
from penstock.model.errors.pipeline import JobInvalid, RangeInvalid
from penstock.pipeline.batch import BatchWriter
from penstock.pipeline.columns import DELETED, OFFSET, PARTITION
from penstock.pipeline.derive import derive
from penstock.pipeline.failure import naming
from penstock.pipeline.job import Mode, Sink
from penstock.pipeline.kafka import records_between
from penstock.pipeline.ledger import same_topic
from penstock.pipeline.rejected import renew_rejected
from penstock.pipeline.upsert import upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake import Tables
    from penstock.pipeline.ledger import Offsets, TopicFacts
    from penstock.pipeline.settings import Connection

BACKFILL: Final = "penstock.backfill"
ROWS_PUT: Final = faults.declare(
    "pipeline.backfill.put", "rows of the range are in their table, its rejected records are as they were"
)


@dataclass(frozen=True, slots=True)
class Refilled:
    job: str
    records: int
    rejected: int
    start: Offsets
    end: Offsets


def parse_offsets(text: str, *, job: str, held: str) -> dict[int, int]:
    """`0:100,1:250`. Raises RangeInvalid."""
    found: dict[int, int] = {}
    for part in text.split(","):
        partition, colon, offset = part.strip().partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise RangeInvalid(job=job, reason=f"{part.strip()!r} is not partition:offset", held=held)
        found[int(partition)] = int(offset)
    return found


def chosen_range(
    topic: TopicFacts, job: str, start: str | None, end: str | None, *, read: Offsets | None = None
) -> tuple[Offsets, Offsets]:
    """Both ends for every partition: what is not named is everything, as far as it was `read`.

    Raises RangeInvalid.
    """
    if read is not None:
        reach = {p: max(first, min(topic.end[p], read.get(p, first))) for p, first in topic.start.items()}
        topic = replace(topic, end=reach)
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
    tables: Tables, job: Job, connection: Connection, topic: TopicFacts, start: str | None, end: str | None
) -> Refilled:
    """Raises TopicReplaced, RangeInvalid, JobInvalid for rows that are not known by their offsets,
    FieldsUnknown, SparkFailed, RoomMissing."""
    writer = BatchWriter(job, tables)
    writer.prepare()
    with naming(f"backfill of {job.name}"):
        last = tables.newest(job.sink.table, job=job.name)
        same_topic(job.name, topic, last)
        read = last.end if last is not None else {}
        begin, until = chosen_range(topic, job.name, start, end, read=read)
        if job.sink.mode is Mode.UPSERT:
            # What came later may have replaced or removed a row: it has to be seen as well.
            _, until = chosen_range(topic, job.name, None, None, read=read)
        records = records_between(tables.session, connection, job.source, begin, until)
        said = {BACKFILL: job.name}
        count = records.count()
        writer.put_good(records, f"backfill of {job.name}", lambda rows: _put(tables, job, rows, said))
        faults.reach(ROWS_PUT)
        bad = writer.bad(writer.rows(records, lambda _: None))
        rejected = renew_rejected(tables, job.sink.rejected, bad, begin, until, said)
        if job.derived:
            derive(job, tables)
    return Refilled(job.name, count, rejected, begin, until)


def _put(tables: Tables, job: Job, good: DataFrame, said: dict[str, str]) -> None:
    sink = job.sink
    if job.source.reader is not None:
        tables.append(good, sink.table, said)  # partial maxima: more of the same change nothing
        return
    if OFFSET not in good.columns:
        raise JobInvalid(
            where=f"job {job.name}", key=OFFSET, value=None, expected="rows do not know their offsets"
        )
    if sink.mode is Mode.APPEND:
        if job.transform is not None and _repeats(good):
            raise JobInvalid(
                where=f"job {job.name}",
                key="transform",
                value="several rows of one record",
                expected="a backfill cannot tell them apart",
            )
        sink = Sink(sink.table, Mode.UPSERT, (PARTITION, OFFSET))
        good = good.withColumn(DELETED, F.lit(None).cast("boolean"))
    upsert(tables, good, sink, said)


def _repeats(rows: DataFrame) -> bool:
    """Whether a record has become more than one row. A row of the table would be replaced by any of them."""
    return not rows.groupBy(PARTITION, OFFSET).count().filter("count > 1").isEmpty()
