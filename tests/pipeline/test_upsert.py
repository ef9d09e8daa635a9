"""Upserts after partitions were added: refused by offset, right by a column that orders records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.model.errors.pipeline import JobInvalid, KeyMoved
from penstock.pipeline.job import Job, Mode, Sink, Source
from penstock.pipeline.lake.columns import Column
from tests.harness import propagation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.conftest import PipelineHarness

COLUMNS = (Column("name", "string"), Column("version", "bigint"))
KEYS = [f"k{n}".encode() for n in range(12)]


def accounts(topic: str, order_by: str | None = None) -> Job:
    sink = Sink("bank.accounts", Mode.UPSERT, ("kafka_key",), order_by)
    return Job("accounts", "", Source(topic, columns=COLUMNS, key=True), sink)


def send(harness: PipelineHarness, topic: str, version: int) -> None:
    values = [json.dumps({"name": key.decode(), "version": version}).encode() for key in KEYS]
    harness.send(topic, values, keys=KEYS)


def add_partitions(harness: PipelineHarness, topic: str, total: int) -> None:
    admin = AdminClient(dict(harness.client))
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
    assert harness.fleet is not None
    propagation.run_in_thread(propagation.wait_for_topics(harness.fleet, topic))


def versions(harness: PipelineHarness) -> list[tuple[bytes, int]]:
    return [(bytes(key), version) for key, version in harness.rows("bank.accounts", "kafka_key", "version")]


@pytest.mark.spark
def test_after_partitions_were_added_an_upsert_stops_and_continues_by_a_column(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("accounts"), partitions=1)
    for version in range(3):
        send(harness, topic, version)
    harness.run(accounts(topic))
    add_partitions(harness, topic, 4)
    send(harness, topic, 3)  # most keys are now in other partitions, at offsets lower than before
    with pytest.raises(KeyMoved, match="has 4 partitions and had 1 before"):
        harness.run(accounts(topic))
    assert {version for _, version in versions(harness)} == {2}

    harness.run(accounts(topic, "version"))

    assert versions(harness) == [(key, 3) for key in sorted(KEYS, key=repr)]


@pytest.mark.spark
@pytest.mark.parametrize("batch", [pytest.param(1000, marks=pytest.mark.soak), 20])
def test_a_key_in_several_partitions_stops_an_upsert_by_offset(
    harness: PipelineHarness, unique: Callable[[str], str], batch: int
) -> None:
    """Partitions were added before the job's first run, so only the records show it."""
    topic = harness.make_topic(unique("accounts"), partitions=1)
    for version in range(3):
        send(harness, topic, version)
    add_partitions(harness, topic, 4)
    send(harness, topic, 3)
    job = accounts(topic)
    job = replace(job, source=replace(job.source, batch_offsets_max=batch))
    with pytest.raises(KeyMoved, match="a key is in several partitions"):
        harness.run(job)

    harness.run(replace(job, sink=replace(job.sink, order_by="kafka_timestamp")))

    assert versions(harness) == [(key, 3) for key in sorted(KEYS, key=repr)]


def test_records_can_only_be_ordered_by_a_declared_column_of_an_upsert() -> None:
    assert accounts("t", "kafka_timestamp").sink.order_by == "kafka_timestamp"
    with pytest.raises(JobInvalid, match="order_by"):
        accounts("t", "updated")
    with pytest.raises(JobInvalid, match="order_by"):
        Job("orders", "", Source("t", columns=COLUMNS), Sink("shop.orders", order_by="version"))
