"""The audit job: the ordered history of each subject, checked by rules.

The job keeps `_penstock.audit` as a table and derives a table of findings. A subject is a partition, a
topic or an account; a rule is a pure function over its ordered events
(`penstock.pipeline.jobs.audit_rules`). Only subjects with new events are checked again, over their whole
history.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.model.events import AuditEvent
from penstock.model.key_names import AUDIT_TOPIC
from penstock.pipeline.job import Derived, Job, Sink, Source
from penstock.pipeline.jobs.audit_rules import RULES, LoggedEvent, apply_rules
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.lake.columns import OFFSET, PARTITION, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.pipeline.jobs.audit_rules import Rule

COLUMNS: Final = columns_of(
    "id string, time_ms timestamp_ms, source string, sequence bigint, cluster string, operation string, "
    "subject_kind string, subject string, actor string, outcome string"
)
_SUBJECT: Final = ("cluster", "subject_kind", "subject")
_FIELDS: Final = tuple(OFFSET if name == "offset" else name for name in LoggedEvent._fields)
FINDINGS_DDL: Final = (
    "rule string, cluster string, subject_kind string, subject string, "
    "time timestamp, at bigint, detail string"
)


def events(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("time_ms", "time")


def findings(rows: DataFrame, since: datetime | None = None, rules: Sequence[Rule] = RULES) -> DataFrame:
    """(rule, cluster, subject_kind, subject, time, at, detail); `at` is the offset of the offending event."""
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

    def check(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _check(blocks, rules)

    broken = ordered.mapInArrow(check, FINDINGS_DDL)
    return broken if since is None else broken.filter(F.col("time") >= F.lit(since))


def _check(blocks: Iterable[pa.RecordBatch], rules: Sequence[Rule]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = []
    for subject, group in itertools.groupby(_events_of(blocks), key=lambda event: event[:3]):
        history = [LoggedEvent._make(event) for event in group]
        for rule, finding in apply_rules(rules, history):
            rows.append((rule, *subject, finding.event.time_ms, finding.event.offset, finding.detail))
    names = ["rule", "cluster", "subject_kind", "subject", "time", "at", "detail"]
    kinds = [pa.string()] * 4 + [pa.int64(), pa.int64(), pa.string()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    arrays[4] = arrays[4].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    yield pa.RecordBatch.from_arrays(arrays, names=names)


def _events_of(blocks: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for block in blocks:
        yield from zip(*(column.to_pylist() for column in block.columns))


AUDIT: Final = Job(
    name="audit",
    summary="audit events to findings per partition, topic and account",
    source=Source(AUDIT_TOPIC, columns=COLUMNS, event=AuditEvent, body=True),
    sink=Sink("platform.audit_events", partition_by=("days(time)",)),
    transform=events,
    derived=(Derived("platform.audit_findings", findings, "time", "time", start_of_day, ("days(time)",)),),
    every_seconds=3600,
)
