"""What goes wrong, named: topics, logins, checkpoints, schemas, tables, ranges."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F

from penstock.cli.pipeline import _need_table
from penstock.model.errors.pipeline import (
    CheckpointDamaged,
    CheckpointForeign,
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
from penstock.pipeline.backfill import chosen_range
from penstock.pipeline.columns import Column, Evolve
from penstock.pipeline.job import Job, Sink, Source
from penstock.pipeline.ledger import TopicFacts
from penstock.pipeline.lock import only_run
from penstock.pipeline.runner import Runner
from penstock.pipeline.session import catalog_options
from penstock.pipeline.settings import Lake
from penstock.pipeline.status import State, job_files, read_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.conftest import Ground

COLUMNS = (Column("id", "bigint"), Column("note", "string"))


def orders(topic: str, **more: Any) -> Job:
    return Job("orders", "", Source(topic, columns=COLUMNS, **more), Sink("shop.orders"))


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "note": "x", **more}).encode()


@pytest.mark.spark
def test_a_missing_topic_and_a_wrong_key_are_told_before_anything_is_made(ground: Ground) -> None:
    wrong = Runner(ground.session, ground.settings, replace(ground.connection, password="wrong"))

    with pytest.raises(TopicMissing, match="nowhere"):
        ground.run(orders("nowhere"))
    with pytest.raises(LoginRefused):
        wrong.run(orders("nowhere"))

    assert not ground.runner().tables.exists("shop.orders")
    status = read_status(job_files(ground.settings.state, "orders"), "orders")
    assert status.state is State.FAILED
    assert "PEN-3013" in (status.error or "")


@pytest.mark.spark
def test_what_stands_in_the_way_of_a_second_run_is_named_and_nothing_is_lost(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    """One job through all that can befall it, since each run of Spark takes a while."""
    topic = ground.make_topic(unique("orders"), partitions=1)
    job = orders(topic)
    files = job_files(ground.settings.state, "orders")
    ground.send(topic, [order(n) for n in range(10)])
    ground.run(job)
    kept = files.checkpoint.with_name("kept")
    shutil.copytree(files.checkpoint, kept)

    with pytest.raises(SchemaConflict, match=r"`note` of shop\.orders is string, the job writes int"):
        ground.run(replace(job, source=replace(job.source, columns=(COLUMNS[0], Column("note", "int")))))
    (files.checkpoint / "metadata").write_text('{"id":"another"}')
    with pytest.raises(CheckpointForeign):
        ground.run(job)
    (files.checkpoint / "metadata").write_text("half")
    with pytest.raises(CheckpointDamaged):
        ground.run(job)
    with pytest.raises(JobBusy), only_run(files.lock, "orders"):
        ground.run(job)

    shutil.rmtree(files.checkpoint)
    ground.send(topic, [order(n) for n in range(10, 15)])
    again = ground.run(job)
    assert again.rows == 5  # the table itself knew where to go on

    admin = AdminClient(dict(ground.client))
    ground.send(topic, [order(n) for n in range(15, 20)])
    admin.delete_records([TopicPartition(topic, 0, 18)])[TopicPartition(topic, 0, 18)].result(30)
    with pytest.raises(RecordsLost, match="partition 0 offsets 15 to 17"):
        ground.run(job)
    accepted = ground.run(job, accept_loss=True)
    assert (accepted.rows, accepted.lost) == (2, {0: (15, 18)})
    assert [n for (n,) in sorted(ground.rows("shop.orders", "id"))] == [*range(15), 18, 19]

    ground.session.sql("DROP TABLE lake.shop.orders")
    with pytest.raises(TableBehind):
        ground.run(job)
    assert kept.exists()


def move(metadata: Path) -> Callable[[], object]:
    moved = metadata.rename(metadata.with_name("moved"))
    return lambda: moved.rename(metadata)


def halve(metadata: Path) -> Callable[[], object]:
    newest = max(metadata.glob("*.metadata.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    return lambda: newest.write_bytes(whole)


@pytest.mark.spark
@pytest.mark.parametrize(
    "harm",
    [
        move,
        # Iceberg reads what it cannot parse twenty times over.
        pytest.param(halve, marks=[pytest.mark.soak, pytest.mark.timeout(1500)]),
    ],
)
def test_a_table_that_was_moved_or_is_half_written_is_named_and_goes_on_when_it_is_whole(
    ground: Ground, unique: Callable[[str], str], harm: Callable[[Path], Callable[[], object]]
) -> None:
    job = orders(ground.make_topic(unique("orders"), partitions=1))
    ground.send(job.source.topic, [order(n) for n in range(5)])
    ground.run(job)
    ground.send(job.source.topic, [order(n) for n in range(5, 8)])
    table = ground.directory / "lake" / "shop" / "orders"
    mend = harm(table / "metadata")
    harmed = sorted(table.rglob("*"))

    with pytest.raises(LakeUnusable, match=r"metadata\.json"):
        ground.run(job)

    assert sorted(table.rglob("*")) == harmed  # no other table was made in its place
    mend()
    assert ground.run(job).rows == 3
    assert [n for (n,) in sorted(ground.rows("shop.orders", "id"))] == list(range(8))


@pytest.mark.spark
def test_undeclared_fields_stop_the_job_or_become_columns_as_it_says(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("orders"), partitions=1)
    ground.send(topic, [order(1), order(2, tags=["a"], price=1.5), order(3, tags="no list")])
    job = orders(topic, evolve=Evolve.STOP)

    with pytest.raises(FieldsUnknown, match="price"):
        ground.run(job)
    outcome = ground.run(replace(job, source=replace(job.source, evolve=Evolve.ADD)))

    assert ground.rows("shop.orders", "id", "tags", "price") == [(1, None, None), (2, ["a"], 1.5)]
    assert outcome.rejected == 1  # a field that is a list in one record and a text in another


@pytest.mark.spark
def test_what_fails_inside_spark_is_told_in_its_words_and_nothing_is_committed(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("orders"), partitions=1)
    ground.send(topic, [order(1)])
    job = replace(
        orders(topic),
        transform=lambda rows: rows.withColumn("id", F.raise_error(F.lit("of mine")).cast("bigint")),
    )

    with pytest.raises(SparkFailed, match="batch 0 of orders"):
        ground.run(job)

    assert ground.rows("shop.orders") == []
    assert ground.run(orders(topic)).rows == 1
    with pytest.raises(TableMissing, match=r"platform\.usage_daily"):
        _need_table(ground.runner(), ground.settings, "platform.usage_daily", "metering")


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
    topic = TopicFacts("orders", "id", start={0: 10, 1: 0}, end={0: 100, 1: 50})

    with pytest.raises(RangeInvalid, match=reason) as raised:
        chosen_range(topic, "orders", start, until)

    assert "0:10 to 0:100" in raised.value.advice


def test_a_range_that_is_not_named_is_everything() -> None:
    topic = TopicFacts("orders", "id", start={0: 10, 1: 0}, end={0: 100, 1: 50})

    assert chosen_range(topic, "orders", "0:20", None) == ({0: 20, 1: 0}, {0: 100, 1: 50})


def test_a_range_ends_where_the_job_has_read_to() -> None:
    topic = TopicFacts("orders", "id", start={0: 10, 1: 5, 2: 0}, end={0: 100, 1: 50, 2: 7})
    read = {0: 60, 1: 3}  # what lay between 3 and 5 is gone; the third partition is new

    assert chosen_range(topic, "orders", None, None, read=read) == (topic.start, {0: 60, 1: 5, 2: 0})
    with pytest.raises(RangeInvalid, match="until 70 is not in what the job has read"):
        chosen_range(topic, "orders", None, "0:70", read=read)
