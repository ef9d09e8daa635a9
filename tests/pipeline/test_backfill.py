"""A range read again into a table that is there. Records are frames: no Kafka is asked."""

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
from penstock.pipeline import batch
from penstock.pipeline.backfill import Refilled, backfill
from penstock.pipeline.batch import RECORD_DDL, TABLE_COMMITTED, BatchWriter
from penstock.pipeline.columns import Column, Evolve
from penstock.pipeline.derive import derive, missing
from penstock.pipeline.job import Derived, Job, Mode, Sink, Source
from penstock.pipeline.jobs.metering import start_of_day
from penstock.pipeline.lake import Tables
from penstock.pipeline.ledger import Commit, TopicFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from tests.pipeline.conftest import Ground

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
    kept = rows if since is None else rows.filter(F.col("at") >= F.lit(since))
    return kept.groupBy(F.date_trunc("day", "at").alias("day")).agg(F.count("*").alias("count"))


class Topic:
    """One partition of a topic, and a job that has read it."""

    def __init__(self, dry: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dry, self.tables = dry, Tables(dry.session, "")
        self.values: Sequence[bytes] = ()
        monkeypatch.setattr(filling, "records_between", lambda *_: self.frame())

    def frame(self, first: int = 0) -> DataFrame:
        rows = [(b"k", value, 0, offset, WHEN, None) for offset, value in enumerate(self.values, first)]
        return self.dry.session.createDataFrame(rows, RECORD_DDL)

    def facts(self, identity: str = ID) -> TopicFacts:
        return TopicFacts("t", identity, {0: 0}, {0: len(self.values)})

    def run(self, job: Job, values: Sequence[bytes], *, first: int = 0) -> None:
        """One batch from an offset on, as a run of the job writes it."""
        self.values = values
        writer = BatchWriter(job, self.tables)
        writer.prepare()
        end = {0: first + len(values)}
        writer.write(self.frame(first), Commit(job.name, "q", first, "t", ID, {0: first}, end))

    def fill(self, job: Job, facts: TopicFacts | None = None) -> Refilled:
        return backfill(self.tables, job, self.dry.connection, facts or self.facts(), None, None)


@pytest.fixture
def topic(dry: Ground, monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(dry, monkeypatch)


def test_rows_of_a_topic_are_not_replaced_by_those_of_another_of_its_name(topic: Topic) -> None:
    job = orders()
    topic.run(job, [order(id=n) for n in range(3)])
    topic.values = [order(id=900)]

    with pytest.raises(TopicReplaced, match="bbbb"):
        topic.fill(job, topic.facts("bb" * 16))

    assert topic.dry.rows("shop.orders", "id") == [(0,), (1,), (2,)]


@pytest.mark.soak  # three backfills: the longest here, too long for every run
def test_new_fields_of_a_range_stop_its_backfill_or_become_columns_as_the_job_says(topic: Topic) -> None:
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


def test_a_record_that_becomes_several_rows_is_not_filled_again(topic: Topic) -> None:
    job = orders("lines", transform=by_tag)
    topic.run(job, [order(id=1), order(id=2)])

    with pytest.raises(JobInvalid, match="several rows of one record"):
        topic.fill(job)

    assert topic.dry.rows("shop.lines", "id", "tag") == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_records_that_a_killed_run_did_not_list_are_listed_once_by_a_backfill_and_the_next_run(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, values = orders("halved"), [order(id=1), b"broken", order(id=3)]

    def strike(point: str) -> None:
        if point == TABLE_COMMITTED:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch, "faults", SimpleNamespace(reach=strike))
        with pytest.raises(KeyboardInterrupt):
            topic.run(job, values)

    topic.fill(job)
    topic.run(job, values)

    assert topic.dry.rows("shop.halved", "id") == [(1,), (3,)]
    assert topic.dry.rows("shop.halved_rejected", "kafka_offset") == [(1,)]


def test_a_derived_table_is_renewed_as_a_whole_where_a_row_was_replaced(topic: Topic) -> None:
    columns = (Column("id", "bigint"), Column("at", "timestamp_ms"))
    daily = Derived("shop.daily", per_day, "day", "at", start_of_day)
    job = Job("accounts", "", Source("t", columns=columns), Sink("shop.accounts", Mode.UPSERT, ("id",)))
    job = replace(job, derived=(daily,))
    appended = replace(job, sink=Sink("shop.accounts"))
    day_ms = 86_400_000
    topic.run(job, [order(id=1, at=day_ms), order(id=2, at=day_ms)])
    derive(job, topic.tables)
    topic.run(appended, [order(id=3, at=2 * day_ms)], first=2)
    snapshot = topic.tables.current_snapshot("shop.accounts") or 0
    new_rows = missing(topic.tables, job, daily, snapshot)
    topic.run(job, [order(id=1, at=5 * day_ms)], first=3)

    derive(job, topic.tables)

    assert new_rows.since == datetime(1970, 1, 3, tzinfo=UTC)  # where rows are but added, no more than these
    found = {day.day: count for day, count in topic.dry.rows("shop.daily", "day", "count")}
    assert found == {2: 1, 3: 1, 6: 1}
