"""Backfills into an existing table. Records come from frames, without Kafka."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from penstock.model.errors.pipeline import FieldsUnknown, JobInvalid, TopicReplaced
from penstock.pipeline import backfill as filling
from penstock.pipeline.backfill import BackfillResult, backfill
from penstock.pipeline.job import Derived, Job, Mode, Sink, Source
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.lake import batch
from penstock.pipeline.lake.batch import RECORD_DDL, TABLE_COMMITTED, BatchWriter
from penstock.pipeline.lake.columns import Column, Evolve
from penstock.pipeline.lake.derived import pending_refresh, refresh_derived
from penstock.pipeline.lake.ledger import Commit, TopicOffsets
from penstock.pipeline.lake.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from tests.pipeline.conftest import PipelineHarness

pytestmark = pytest.mark.spark
ID = "aa" * 16
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def order(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def orders(name: str = "orders", **more: Any) -> Job:
    return Job(name, "", Source("t", columns=(Column("id", "bigint"),)), Sink(f"shop.{name}"), **more)


def by_tag(rows: DataFrame) -> DataFrame:
    return rows.withColumn("tag", F.explode(F.array(F.lit("x"), F.lit("y"))))


def per_day(rows: DataFrame, since: datetime | None) -> DataFrame:
    recent = rows if since is None else rows.filter(F.col("at") >= F.lit(since))
    return recent.groupBy(F.date_trunc("day", "at").alias("day")).agg(F.count("*").alias("count"))


class Topic:
    """One partition of a topic, and a job that has read it."""

    def __init__(self, dry: PipelineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dry, self.tables = dry, Tables(dry.session, "")
        self.values: Sequence[bytes] = ()
        monkeypatch.setattr(filling, "records_between", lambda *_: self.frame())

    def frame(self, first: int = 0) -> DataFrame:
        rows = [(b"k", value, 0, offset, WHEN, None) for offset, value in enumerate(self.values, first)]
        return self.dry.session.createDataFrame(rows, RECORD_DDL)

    def offsets(self, identity: str = ID) -> TopicOffsets:
        return TopicOffsets("t", identity, {0: 0}, {0: len(self.values)})

    def run(self, job: Job, values: Sequence[bytes], *, first: int = 0) -> None:
        """Writes one batch from an offset on, as a run of the job does."""
        self.values = values
        writer = BatchWriter(job, self.tables)
        writer.prepare()
        end = {0: first + len(values)}
        writer.write(self.frame(first), Commit(job.name, "q", first, "t", ID, {0: first}, end))

    def fill(self, job: Job, offsets: TopicOffsets | None = None) -> BackfillResult:
        return backfill(self.tables, job, self.dry.connection, offsets or self.offsets(), None, None)


@pytest.fixture
def topic(dry: PipelineHarness, monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(dry, monkeypatch)


def test_a_recreated_topic_does_not_replace_rows(topic: Topic) -> None:
    job = orders()
    topic.run(job, [order(id=n) for n in range(3)])
    topic.values = [order(id=900)]

    with pytest.raises(TopicReplaced, match="bbbb"):
        topic.fill(job, topic.offsets("bb" * 16))

    assert topic.dry.rows("shop.orders", "id") == [(0,), (1,), (2,)]


@pytest.mark.soak  # three backfills: too slow for every run
def test_new_fields_stop_a_backfill_or_become_columns_as_configured(topic: Topic) -> None:
    job = orders("evolved")
    topic.run(job, [order(id=1, extra="e"), b"broken"])
    stop, add = (replace(job, source=replace(job.source, evolve=how)) for how in (Evolve.STOP, Evolve.ADD))

    with pytest.raises(FieldsUnknown, match="extra"):
        topic.fill(stop)
    filled = topic.fill(add)
    topic.fill(job)  # which does not write the new column

    assert (filled.records, filled.rejected) == (2, 1)
    assert topic.dry.rows("shop.evolved", "id") == [(1,)]
    assert "extra" in topic.tables.columns("shop.evolved")


def test_a_job_that_makes_several_rows_of_a_record_cannot_be_backfilled(topic: Topic) -> None:
    job = orders("lines", transform=by_tag)
    topic.run(job, [order(id=1), order(id=2)])

    with pytest.raises(JobInvalid, match="several rows of one record"):
        topic.fill(job)

    assert topic.dry.rows("shop.lines", "id", "tag") == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_rejected_records_that_a_killed_run_did_not_write_are_written_once(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, values = orders("halved"), [order(id=1), b"broken", order(id=3)]

    def strike(point: str) -> None:
        if point == TABLE_COMMITTED:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch, "fault_points", SimpleNamespace(reach=strike))
        with pytest.raises(KeyboardInterrupt):
            topic.run(job, values)

    topic.fill(job)
    topic.run(job, values)

    assert topic.dry.rows("shop.halved", "id") == [(1,), (3,)]
    assert topic.dry.rows("shop.halved_rejected", "kafka_offset") == [(1,)]


def test_a_derived_table_is_recomputed_as_a_whole_when_a_row_was_replaced(topic: Topic) -> None:
    columns = (Column("id", "bigint"), Column("at", "timestamp_ms"))
    daily = Derived("shop.daily", per_day, "day", "at", start_of_day)
    job = Job("accounts", "", Source("t", columns=columns), Sink("shop.accounts", Mode.UPSERT, ("id",)))
    job = replace(job, derived=(daily,))
    appended = replace(job, sink=Sink("shop.accounts"))
    day_ms = 86_400_000
    topic.run(job, [order(id=1, at=day_ms), order(id=2, at=day_ms)])
    refresh_derived(job, topic.tables)
    topic.run(appended, [order(id=3, at=2 * day_ms)], first=2)
    snapshot = topic.tables.current_snapshot("shop.accounts") or 0
    new_rows = pending_refresh(topic.tables, job, "shop.daily", "at", snapshot)
    topic.run(job, [order(id=1, at=5 * day_ms)], first=3)

    refresh_derived(job, topic.tables)

    assert new_rows.since == datetime(1970, 1, 3, tzinfo=UTC)  # if rows were only added, from the new ones on
    counts = {day.day: count for day, count in topic.dry.rows("shop.daily", "day", "count")}
    assert counts == {2: 1, 3: 1, 6: 1}
