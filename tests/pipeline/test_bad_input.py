"""Errors for bad topics, logins, checkpoints, schemas, tables and ranges."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from penstock.cli.library.pipeline import _need_table
from penstock.model.errors.pipeline import (
    CheckpointDamaged,
    CheckpointMismatch,
    FieldsUnknown,
    JobBusy,
    LakeUnusable,
    RangeInvalid,
    RecordsLost,
    SchemaConflict,
    SparkFailed,
    TableBehind,
    TableMissing,
    TopicMissing,
)
from penstock.model.errors.wire import LoginRefused
from penstock.pipeline.backfill import resolve_range
from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.lake.columns import Column, Evolve
from penstock.pipeline.lake.ledger import TopicOffsets
from penstock.pipeline.lock import exclusive_run
from penstock.pipeline.runner import Runner
from penstock.pipeline.settings import Lake
from penstock.pipeline.spark.session import catalog_options
from penstock.pipeline.status import State, job_files, read_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.conftest import PipelineHarness

COLUMNS = (Column("id", "bigint"), Column("note", "string"))


def orders(topic: str, **more: Any) -> Job:
    return Job("orders", "", Source(topic, columns=COLUMNS, **more), Sink("shop.orders"))


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "note": "x", **more}).encode()


@pytest.mark.spark
def test_a_missing_topic_or_wrong_key_is_reported_before_a_table_is_created(
    harness: PipelineHarness,
) -> None:
    wrong = Runner(harness.session, harness.settings, replace(harness.connection, password="wrong"))

    with pytest.raises(TopicMissing, match="nowhere"):
        harness.run(orders("nowhere"))
    with pytest.raises(LoginRefused):
        wrong.run(orders("nowhere"))

    assert not harness.runner().tables.exists("shop.orders")
    status = read_status(job_files(harness.settings.state, "orders"), "orders")
    assert status.state is State.FAILED
    assert "PEN-3013" in (status.error or "")


@pytest.mark.spark
def test_every_obstacle_to_a_second_run_is_reported_and_nothing_is_lost(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    """One job through all obstacles, since each Spark run takes a while."""
    topic = harness.make_topic(unique("orders"), partitions=1)
    job = orders(topic)
    files = job_files(harness.settings.state, "orders")
    harness.send(topic, [order(n) for n in range(10)])
    harness.run(job)
    copy = files.checkpoint.with_name("copy")
    shutil.copytree(files.checkpoint, copy)

    with pytest.raises(SchemaConflict, match=r"`note` of shop\.orders is string, but the job writes int"):
        harness.run(replace(job, source=replace(job.source, columns=(COLUMNS[0], Column("note", "int")))))
    (files.checkpoint / "metadata").write_text('{"id":"another"}')
    with pytest.raises(CheckpointMismatch):
        harness.run(job)
    (files.checkpoint / "metadata").write_text("half")
    with pytest.raises(CheckpointDamaged):
        harness.run(job)
    with pytest.raises(JobBusy), exclusive_run(files.lock, "orders"):
        harness.run(job)

    shutil.rmtree(files.checkpoint)
    harness.send(topic, [order(n) for n in range(10, 15)])
    again = harness.run(job)
    assert again.records == 5  # the table has stored where to resume

    admin = AdminClient(dict(harness.client))
    harness.send(topic, [order(n) for n in range(15, 20)])
    admin.delete_records([TopicPartition(topic, 0, 18)])[TopicPartition(topic, 0, 18)].result(30)
    with pytest.raises(RecordsLost, match="partition 0 offsets 15 to 17"):
        harness.run(job)
    accepted = harness.run(job, accept_loss=True)
    assert (accepted.records, accepted.lost) == (2, {0: (15, 18)})
    assert [n for (n,) in sorted(harness.rows("shop.orders", "id"))] == [*range(15), 18, 19]

    harness.session.sql("DROP TABLE lake.shop.orders")
    with pytest.raises(TableBehind):
        harness.run(job)
    assert copy.exists()


def move(metadata: Path) -> Callable[[], object]:
    moved = metadata.rename(metadata.with_name("moved"))
    return lambda: moved.rename(metadata)


def truncate(metadata: Path) -> Callable[[], object]:
    newest = max(metadata.glob("*.metadata.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    return lambda: newest.write_bytes(whole)


@pytest.mark.spark
@pytest.mark.parametrize(
    "harm",
    [
        move,
        # Iceberg retries a file it cannot parse twenty times.
        pytest.param(truncate, marks=[pytest.mark.soak, pytest.mark.timeout(1500)]),
    ],
)
def test_a_moved_or_truncated_table_is_reported_and_works_again_once_repaired(
    harness: PipelineHarness, unique: Callable[[str], str], harm: Callable[[Path], Callable[[], object]]
) -> None:
    job = orders(harness.make_topic(unique("orders"), partitions=1))
    harness.send(job.source.topic, [order(n) for n in range(5)])
    harness.run(job)
    harness.send(job.source.topic, [order(n) for n in range(5, 8)])
    table = harness.directory / "lake" / "shop" / "orders"
    mend = harm(table / "metadata")
    harmed = sorted(table.rglob("*"))

    with pytest.raises(LakeUnusable, match=r"metadata\.json"):
        harness.run(job)

    assert sorted(table.rglob("*")) == harmed  # no new table took its place
    mend()
    assert harness.run(job).records == 3
    assert [n for (n,) in sorted(harness.rows("shop.orders", "id"))] == list(range(8))


@pytest.mark.spark
def test_undeclared_fields_stop_the_job_or_become_columns_as_configured(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("orders"), partitions=1)
    harness.send(topic, [order(1), order(2, tags=["a"], price=1.5), order(3, tags="no list")])
    job = orders(topic, evolve=Evolve.STOP)

    with pytest.raises(FieldsUnknown, match="price"):
        harness.run(job)
    outcome = harness.run(replace(job, source=replace(job.source, evolve=Evolve.ADD)))

    assert harness.rows("shop.orders", "id", "tags", "price") == [(1, None, None), (2, ["a"], 1.5)]
    assert outcome.rejected == 1  # a field that is a list in one record and a text in another


@pytest.mark.spark
def test_a_failure_inside_spark_is_reported_and_nothing_is_committed(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("orders"), partitions=1)
    harness.send(topic, [order(1)])
    job = replace(
        orders(topic),
        transform=lambda rows: rows.withColumn("id", F.raise_error(F.lit("of mine")).cast("bigint")),
    )

    with pytest.raises(SparkFailed, match="batch 0 of orders"):
        harness.run(job)

    assert harness.rows("shop.orders") == []
    assert harness.run(orders(topic)).records == 1
    with pytest.raises(TableMissing, match=r"platform\.usage_daily"):
        _need_table(harness.runner(), harness.settings, "platform.usage_daily", "metering")


def test_a_lake_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(LakeUnusable, match="file"):
        catalog_options(Lake(str(tmp_path / "file" / "lake")))


@pytest.mark.parametrize(
    ("start", "until", "reason"),
    [
        ("0-5", None, "not partition:offset"),
        ("7:0", None, "no partition 7"),
        ("0:50", "0:40", "is not in the topic"),
        ("0:1", None, "is not in the topic"),
        (None, "1:99", "is not in the topic"),
    ],
)
def test_a_range_outside_the_topic_is_refused(start: str | None, until: str | None, reason: str) -> None:
    topic = TopicOffsets("orders", "id", start={0: 10, 1: 0}, end={0: 100, 1: 50})

    with pytest.raises(RangeInvalid, match=reason) as raised:
        resolve_range(topic, "orders", start, until)

    assert "0:10 to 0:100" in raised.value.advice


def test_a_range_defaults_to_the_whole_topic() -> None:
    topic = TopicOffsets("orders", "id", start={0: 10, 1: 0}, end={0: 100, 1: 50})

    assert resolve_range(topic, "orders", "0:20", None) == ({0: 20, 1: 0}, {0: 100, 1: 50})


def test_a_range_ends_at_the_job_s_position() -> None:
    topic = TopicOffsets("orders", "id", start={0: 10, 1: 5, 2: 0}, end={0: 100, 1: 50, 2: 7})
    read = {0: 60, 1: 3}  # retention removed 3 and 4; the third partition is new

    assert resolve_range(topic, "orders", None, None, read=read) == (topic.start, {0: 60, 1: 5, 2: 0})
    with pytest.raises(RangeInvalid, match="until 70 is not in what the job has read"):
        resolve_range(topic, "orders", None, "0:70", read=read)
