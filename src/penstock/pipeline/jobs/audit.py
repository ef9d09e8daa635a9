"""The audit job: operators' actions from `_penstock.audit`, as a table.

What happened to logs is in another topic, which the durability job checks
(`penstock.pipeline.jobs.durability`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.model.events import AuditEvent
from penstock.model.key_names import AUDIT_TOPIC
from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.lake.columns import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = columns_of(
    "id string, time_ms timestamp_ms, source string, sequence bigint, cluster string, operation string, "
    "subject_kind string, subject string, actor string, outcome string"
)


def events(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("time_ms", "time")


AUDIT: Final = Job(
    name="audit",
    summary="operators' actions",
    source=Source(AUDIT_TOPIC, columns=COLUMNS, event=AuditEvent, body=True),
    sink=Sink("platform.audit_events", partition_by=("days(time)",)),
    transform=events,
    every_seconds=3600,
)
