"""The durability job (Kora §4.6.3): the rules of `penstock.audit.rules` over `_penstock.durability`.

The same folds as in the live engine, on the same events, give the same findings. The rollup is a table of the
state of every subject before a day: a run reads that and the events since, not the whole history.

A finding belongs to the event whose arrival made it certain (`seen`), so that a run never misses one that is
judged after midnight and happened before.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from penstock.audit.rules.fold import ALL, step
from penstock.audit.rules.state import SubjectState
from penstock.model.durability import LogEvent
from penstock.model.key_names import DURABILITY_TOPIC
from penstock.pipeline.job import Derived, Job, Rollup, Sink, Source
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.lake.columns import BODY, OFFSET, PARTITION, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.audit.rules.finding import Finding
    from penstock.audit.rules.fold import RuleSet

COLUMNS: Final = columns_of(
    "cluster string, subject string, source string, sequence bigint, time_ms timestamp_ms, what string"
)
STATE: Final = "state"  # in `what`: a row of the rollup
LATE_DAYS: Final = 1
_SUBJECT: Final = ("cluster", "subject")
FINDINGS_DDL: Final = (
    "id string, rule string, severity string, cluster string, subject string, first bigint, last bigint, "
    "detail string, alert string, time timestamp, seen timestamp, evidence string"
)
STATES_DDL: Final = (
    "cluster string, subject string, source string, sequence bigint, time timestamp, what string, "
    f"{BODY} string, {PARTITION} int, {OFFSET} bigint"
)


def events(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("time_ms", "time")


def findings(rows: DataFrame, since: datetime | None = None, rules: RuleSet = ALL) -> DataFrame:
    """Findings, each as often as it was raised; `rules.finding.merged` joins those of one id."""

    def check(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _findings(blocks, rules)

    raised = _ordered(rows).mapInArrow(check, FINDINGS_DDL)
    return raised if since is None else raised.filter(F.col("seen") >= F.lit(since))


def states(rows: DataFrame, before: datetime) -> DataFrame:
    """The state of every subject after these rows, as rows that replace them."""
    last = F.lit(before) - F.expr("interval 1 millisecond")

    def fold(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _states(blocks)

    return _ordered(rows).mapInArrow(fold, STATES_DDL).withColumn("time", last)


def _ordered(rows: DataFrame) -> DataFrame:
    """Rows of a subject together: its state first, then its events as they were written."""
    is_event = F.col("what") != STATE
    return (
        rows.select(*_SUBJECT, "what", F.unix_millis("time").alias("time_ms"), BODY, PARTITION, OFFSET)
        .withColumn("is_event", is_event)
        .repartition(*_SUBJECT)
        .sortWithinPartitions(*_SUBJECT, "is_event", PARTITION, OFFSET)
        .drop("is_event")
    )


def _folded(
    blocks: Iterable[pa.RecordBatch], rules: RuleSet, report: Callable[[list[Finding], int], None]
) -> Iterator[SubjectState]:
    """The state of each subject; `report` gets findings and the time of the event that raised them."""
    rows = (row for block in blocks for row in zip(*(column.to_pylist() for column in block.columns)))
    for _, group in itertools.groupby(rows, key=lambda row: row[:2]):
        state: SubjectState | None = None
        for _, _, what, time_ms, body, _, _ in group:
            if what == STATE:
                state = SubjectState.from_bytes(body.encode())
                continue
            state, raised = step(state, LogEvent.from_bytes(body.encode()), rules)
            if raised:
                report(raised, time_ms)
        assert state is not None
        yield state


def _findings(blocks: Iterable[pa.RecordBatch], rules: RuleSet) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = []

    def report(raised: list[Finding], seen_ms: int) -> None:
        for each in raised:
            record = each.record()
            place = (record.id, record.rule, str(record.severity), record.cluster, record.subject)
            evidence = json.dumps(dict(each.evidence), sort_keys=True)
            details = (record.first, record.last, record.detail, record.alert)
            rows.append((*place, *details, each.time_ms, seen_ms, evidence))

    for _ in _folded(blocks, rules, report):
        pass
    kinds = [pa.string()] * 5 + [pa.int64()] * 2 + [pa.string()] * 2 + [pa.int64()] * 2 + [pa.string()]
    names = [part.split()[0] for part in FINDINGS_DDL.split(", ")]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    for position in (9, 10):
        arrays[position] = arrays[position].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    yield pa.RecordBatch.from_arrays(arrays, names=names)


def _states(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    folded = list(_folded(blocks, ALL, lambda raised, seen_ms: None))
    count = len(folded)
    times = pa.array([0] * count, pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = {
        "cluster": pa.array([each.cluster for each in folded], pa.string()),
        "subject": pa.array([each.subject for each in folded], pa.string()),
        "source": pa.array([""] * count, pa.string()),
        "sequence": pa.array([0] * count, pa.int64()),
        "time": times,
        "what": pa.array([STATE] * count, pa.string()),
        BODY: pa.array([each.to_bytes().decode() for each in folded], pa.string()),
        PARTITION: pa.array([0] * count, pa.int32()),
        OFFSET: pa.array([-1] * count, pa.int64()),
    }
    yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


DURABILITY: Final = Job(
    name="durability",
    summary="what happened to logs, to findings of the durability audit",
    source=Source(DURABILITY_TOPIC, columns=COLUMNS, event=LogEvent, body=True),
    sink=Sink("platform.durability_events", partition_by=("days(time)",)),
    transform=events,
    derived=(
        Derived("platform.durability_findings", findings, "seen", "time", start_of_day, ("days(seen)",)),
    ),
    rollup=Rollup("platform.durability_states", states, "time", LATE_DAYS),
    every_seconds=24 * 3600,
)
