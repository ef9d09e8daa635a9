"""Audit: the history of each subject, in order, judged by rules.

The job keeps `_penstock.audit` as a table and derives one of findings. A rule is a pure function
over the ordered events of one subject (a partition, a topic, an account): see
`penstock.pipeline.rules`. Only subjects with new events are judged again, over all their history.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model.events import AuditEvent
from penstock.model.keys import AUDIT_TOPIC
from penstock.pipeline.columns import OFFSET, PARTITION, Column
from penstock.pipeline.job import Derived, Job, Sink, Source
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.rules import RULES, LoggedEvent, judged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.pipeline.rules import Rule

COLUMNS: Final = (
    Column("id", "string"),
    Column("time_ms", "timestamp_ms"),
    Column("source", "string"),
    Column("sequence", "bigint"),
    Column("cluster", "string"),
    Column("operation", "string"),
    Column("subject_kind", "string"),
    Column("subject", "string"),
    Column("actor", "string"),
    Column("outcome", "string"),
)
_SUBJECT: Final = ("cluster", "subject_kind", "subject")
_FIELDS: Final = (
    *_SUBJECT,
    "id",
    "time_ms",
    "source",
    "sequence",
    "operation",
    "actor",
    "outcome",
    OFFSET,
    "body",
)
FINDINGS_DDL: Final = ", ".join(
    (
        "rule string, cluster string, subject_kind string, subject string",
        "time timestamp, at bigint, detail string",
    )
)


def events(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("time_ms", "time")


def findings(rows: DataFrame, since: datetime | None = None, rules: Sequence[Rule] = RULES) -> DataFrame:
    """(rule, cluster, subject_kind, subject, time, at, detail): what rules found, where it shows."""
    history = rows
    if since is not None:
        touched = rows.filter(F.col("time") >= F.lit(since)).select(*_SUBJECT).distinct()
        history = rows.join(touched, list(_SUBJECT), "left_semi")
    ordered = (
        history.select(*(F.unix_millis("time").alias(n) if n == "time_ms" else n for n in _FIELDS), PARTITION)
        .repartition(*_SUBJECT)
        .sortWithinPartitions(*_SUBJECT, PARTITION, OFFSET)
        .drop(PARTITION)
    )

    def judge(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _judge(blocks, rules)

    found = ordered.mapInArrow(judge, FINDINGS_DDL)
    return found if since is None else found.filter(F.col("time") >= F.lit(since))


def _judge(blocks: Iterable[pa.RecordBatch], rules: Sequence[Rule]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = []
    for subject, group in itertools.groupby(_flat(blocks), key=lambda event: event[:3]):
        history = [LoggedEvent._make(event) for event in group]
        for rule, finding in judged(rules, history):
            rows.append((rule, *subject, finding.event.time_ms, finding.event.offset, finding.detail))
    names = ["rule", "cluster", "subject_kind", "subject", "time", "at", "detail"]
    kinds = [pa.string()] * 4 + [pa.int64(), pa.int64(), pa.string()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    arrays[4] = arrays[4].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    yield pa.RecordBatch.from_arrays(arrays, names=names)


def _flat(blocks: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for block in blocks:
        yield from zip(*(column.to_pylist() for column in block.columns))


AUDIT: Final = Job(
    name="audit",
    summary="histories of partitions, topics and accounts to findings of the rules",
    source=Source(AUDIT_TOPIC, columns=COLUMNS, event=AuditEvent, body=True),
    sink=Sink("platform.audit_events", partition_by=("days(time)",)),
    transform=events,
    derived=(Derived("platform.audit_findings", findings, "time", "time", start_of_day, ("days(time)",)),),
    every_seconds=3600,
)
