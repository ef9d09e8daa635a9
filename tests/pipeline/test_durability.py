"""The durability job: the same findings as the live engine, from any number of increments."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from penstock.audit.live import LiveEngine
from penstock.model.durability import LogEvent, Placement, Policy, Replica, What, members_of
from penstock.pipeline.jobs.durability import DURABILITY, findings, states
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from penstock.model.durability import Facts
    from tests.pipeline.conftest import PipelineHarness

BEGIN = datetime(2026, 11, 17, tzinfo=UTC)
DAY = timedelta(days=1)
FINDING = ("id", "rule", "subject", "first", "last", "detail")


def histories(
    *, subjects: int, sweeps: int, wrong: int, every: timedelta = timedelta(seconds=10)
) -> list[LogEvent]:
    """Partitions without retention; the log of one loses its first records in the middle."""
    result: list[LogEvent] = []
    begin_ms = int(BEGIN.timestamp() * 1000)
    for turn in range(sweeps):
        time_ms = begin_ms + int(turn * every.total_seconds() * 1000)
        for subject in range(subjects):
            start = 5 if subject == wrong and turn > sweeps // 2 else 0
            facts: Facts = (
                (Policy(), Placement("t", (1,), (1,), 1, 0, 0))[turn] if turn < 2 else Replica(1, start, 9)
            )
            what = What(type(facts).__name__.lower())
            name = f"partition/t/{subject}"
            result.append(LogEvent("c", name, "auditor", len(result), time_ms, what, members_of(facts)))
    return result


def frame(dry: PipelineHarness, events: list[LogEvent]) -> DataFrame:
    rows = [
        (e.cluster, e.subject, str(e.what), e.time_ms, e.to_bytes().decode(), 0, number)
        for number, e in enumerate(events)
    ]
    ddl = (
        "cluster string, subject string, what string, ms bigint, body string, "
        "kafka_partition int, kafka_offset bigint"
    )
    made = dry.session.createDataFrame(rows, ddl)
    return made.selectExpr("*", "timestamp_millis(ms) AS time").drop("ms")


@pytest.mark.spark
def test_daily_increments_one_full_run_and_the_live_engine_give_the_same_findings(
    dry: PipelineHarness,
) -> None:
    events = histories(subjects=3, sweeps=36, wrong=1, every=timedelta(hours=2))
    whole = frame(dry, events).cache()
    live = LiveEngine()
    live.fold(events)

    by_day = []
    state: DataFrame | None = None
    for number in range(3):
        since, until = BEGIN + number * DAY, BEGIN + (number + 1) * DAY
        of_day = [e for e in events if since.timestamp() <= e.time_ms / 1000 < until.timestamp()]
        rows = frame(dry, of_day)
        rows = rows if state is None else rows.unionByName(state, allowMissingColumns=True)
        by_day += findings(rows, since).select(*FINDING).collect()
        state = states(rows, until).cache()

    at_once = findings(whole).select(*FINDING).collect()
    expected = [(f.id, f.rule, f.subject, f.first, f.last, f.detail) for f in live.findings.values()]
    assert [tuple(row) for row in at_once] == [tuple(row) for row in by_day] == expected
    assert [(row.rule, row.subject, row.first, row.last) for row in at_once] == [
        ("log-start-unexplained", "partition/t/1", 0, 4)
    ]


@pytest.mark.spark
def test_a_planted_violation_is_the_only_finding_among_clean_histories(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    """Also after a run that failed between its table and its checkpoint."""
    topic = harness.make_topic(unique("durability"))
    events = histories(subjects=50, sweeps=20, wrong=49)
    harness.send(topic, [e.to_bytes() for e in events], keys=[e.key for e in events])
    job = replace(DURABILITY, source=replace(DURABILITY.source, topic=topic, batch_offsets_max=600))
    with interrupted("pipeline.table.committed", 2):
        harness.run(job)

    harness.run(job)

    rows = harness.rows("platform.durability_findings", "rule", "subject", "first", "last")
    assert rows == [("log-start-unexplained", "partition/t/49", 0, 4)]
