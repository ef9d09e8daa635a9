"""Upserts, formats, partitions, readers without Spark, backfill and maintenance."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from penstock.model.errors.pipeline import SchemaFileInvalid
from penstock.pipeline.backfill import backfill
from penstock.pipeline.job import Job, Mode, Sink, Source, ValueFormat
from penstock.pipeline.lake.columns import Column
from penstock.pipeline.lake.ledger import BATCH, JOB, SOURCE_SNAPSHOT
from penstock.pipeline.lake.maintenance import COMMITS_MAX, is_due, maintain, snapshots_to_keep
from penstock.pipeline.reading.avro_protobuf import message_class
from penstock.pipeline.reading.decoders import file_columns
from penstock.pipeline.spark.kafka import describe_topic
from penstock.pipeline.spark.session import catalog_file
from tests.pipeline.interruption import interrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.conftest import PipelineHarness

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def json_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def descriptor_set() -> bytes:
    """The output of `protoc -o` for a message with an id, tags and a nested place."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    order.field.add(name="tags", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    order.field.add(
        name="place", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".shop.Place"
    )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.spark
def test_an_upserted_table_holds_the_newest_record_of_each_key_and_is_read_without_spark(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("accounts"))
    job = Job(
        "accounts",
        "",
        Source(topic, columns=(Column("name", "string"), Column("balance", "bigint")), key=True),
        Sink("bank.accounts", Mode.UPSERT, ("kafka_key",)),
    )
    keys = [f"a{n}".encode() for n in range(20)]
    harness.send(topic, [json_of(name=k.decode(), balance=n) for n, k in enumerate(keys)], keys=keys)
    first = harness.run(job).offsets
    harness.send(topic, [json_of(name="x", balance=1), json_of(name="y", balance=2)], keys=[keys[3]] * 2)
    harness.send(topic, [None, b"broken"], keys=[keys[4], keys[5]])
    with interrupted("pipeline.table.committed"):
        harness.run(job)

    outcome = harness.run(job)

    expected = {k: (k.decode(), n) for n, k in enumerate(keys)} | {keys[3]: ("y", 2)}
    del expected[keys[4]]
    rows = {bytes(k): (n, b) for k, n, b in harness.rows("bank.accounts", "kafka_key", "name", "balance")}
    assert (outcome.rejected, rows) == (1, expected)

    offsets = asyncio.run(describe_topic(harness.connection, topic, job="accounts"))
    until = ",".join(f"{partition}:{offset}" for partition, offset in first.items())
    backfill(harness.runner().tables, job, harness.connection, offsets, None, until)
    again = {bytes(k): (n, b) for k, n, b in harness.rows("bank.accounts", "kafka_key", "name", "balance")}
    assert again == expected  # a row that was deleted later does not come back

    from pyiceberg.catalog.sql import SqlCatalog

    lake = harness.settings.lake
    catalog = SqlCatalog("lake", uri=f"sqlite:///{catalog_file(lake)}", warehouse=lake.warehouse)
    scan = catalog.load_table("bank.accounts").scan()
    assert {r["kafka_key"]: (r["name"], r["balance"]) for r in scan.to_arrow().to_pylist()} == expected
    assert len(scan.to_pandas()) == len(expected)
    total = scan.to_duckdb("accounts").sql("select sum(balance) from accounts").fetchall()
    assert total == [(sum(balance for _, balance in expected.values()),)]
    catalog.close()


@pytest.mark.spark
def test_avro_protobuf_and_raw_values_become_rows_by_a_schema_from_a_file(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    (harness.directory / "order.avsc").write_text(json.dumps(AVRO))
    (harness.directory / "order.desc").write_bytes(descriptor_set())
    out = io.BytesIO()
    when = datetime(2026, 11, 16, tzinfo=UTC)
    fastavro.schemaless_writer(out, AVRO, {"id": 1, "at": when, "note": None, "tags": ["a", "b"]})
    order = message_class(descriptor_set(), "shop.Order")
    proto = order(id=7, tags=["x"], place={"city": "Turin"}).SerializeToString()
    registered = b"\0\0\0\0\x05" + out.getvalue()
    cases: dict[ValueFormat, tuple[list[bytes], Any]] = {
        ValueFormat.AVRO: ([out.getvalue(), registered, b"\xff"], [(1, None, ["a", "b"])] * 2),
        ValueFormat.PROTOBUF: ([proto, b"\xff\xff"], [(7, ["x"], ("Turin",))]),
        ValueFormat.RAW: ([b"\0\1"], [(b"\0\1", [("trace", b"t1")])]),
    }
    columns = {
        ValueFormat.AVRO: ("id", "note", "tags"),
        ValueFormat.PROTOBUF: ("id", "tags", "place"),
        ValueFormat.RAW: ("value", "kafka_headers"),
    }
    results: dict[ValueFormat, Any] = {}

    for value_format, (values, _) in cases.items():
        topic = harness.make_topic(unique(value_format), partitions=1)
        harness.send(topic, values, headers=[("trace", b"t1")])
        source = Source(topic, format=value_format, headers=value_format is ValueFormat.RAW)
        if value_format is not ValueFormat.RAW:
            suffix = "avsc" if value_format is ValueFormat.AVRO else "desc"
            source = replace(source, schema_file=harness.directory / f"order.{suffix}", message="shop.Order")
        job = Job(value_format.value, "", source, Sink(f"shop.{value_format}"))
        outcome = harness.run(job)
        results[value_format] = (
            outcome.rejected,
            harness.rows(f"shop.{value_format}", *columns[value_format]),
        )

    assert results[ValueFormat.AVRO] == (1, cases[ValueFormat.AVRO][1])
    assert results[ValueFormat.PROTOBUF] == (1, cases[ValueFormat.PROTOBUF][1])
    assert results[ValueFormat.RAW] == (0, cases[ValueFormat.RAW][1])


@pytest.mark.spark
@pytest.mark.soak  # in every run, test_story has a backfill and maintenance of a whole table
def test_a_backfill_and_maintenance_change_no_row_and_the_job_continues(
    harness: PipelineHarness, unique: Callable[[str], str]
) -> None:
    topic = harness.make_topic(unique("orders"), partitions=1)
    source = Source(
        topic, columns=(Column("id", "bigint"), Column("at", "timestamp_ms")), batch_offsets_max=11
    )
    job = Job("orders", "", source, Sink("shop.orders", partition_by=("days(at)",)))
    orders = [json_of(id=n, at=1_700_000_000_000 + n * 3_600_000) for n in range(20)]
    harness.send(topic, [*orders[:10], json_of(id="x"), *orders[10:]])
    harness.run(job)
    before = harness.rows("shop.orders")
    tables = harness.runner().tables
    offsets = asyncio.run(describe_topic(harness.connection, topic, job="orders"))
    harness.session.sql("DELETE FROM lake.shop.orders WHERE id IN (3, 12)")

    filled = backfill(tables, job, harness.connection, offsets, "0:2", "0:15")
    later = datetime.now(UTC) + timedelta(days=30)
    maintained = maintain(tables, "shop.orders", now=later)

    assert (filled.records, filled.rejected) == (13, 1)
    assert harness.rows("shop.orders") == before
    assert len(harness.rows("shop.orders_rejected")) == 1
    assert maintained.files_after <= maintained.files_before
    newest = tables.newest_commit("shop.orders", job="orders")
    assert newest is not None
    assert newest.end == {0: 21}
    harness.send(topic, [json_of(id=99, at=1)])
    assert harness.run(job).records == 1


def test_expiry_keeps_the_newest_commit_of_every_job() -> None:
    history = [
        (9, {"operation": "replace"}),
        (8, {JOB: "a", BATCH: "4"}),
        (7, {JOB: "a", BATCH: "3"}),
        (6, {"operation": "replace"}),
        (5, {JOB: "b", BATCH: "0"}),
        (4, {JOB: "a", BATCH: "2"}),
    ]

    assert snapshots_to_keep(history) == 5
    assert snapshots_to_keep(history[:4]) == 2
    assert snapshots_to_keep([(2, {}), (1, {SOURCE_SNAPSHOT: "7"}), (0, {SOURCE_SNAPSHOT: "6"})]) == 2


def test_a_table_is_compacted_after_many_commits() -> None:
    appended = [(n, {"operation": "append"}) for n in range(COMMITS_MAX)]

    assert is_due(appended)
    assert not is_due(appended[1:])
    assert not is_due([appended[0], (99, {"operation": "replace"}), *appended])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.avsc", b"{", "JSONDecodeError"),
        ("a.avsc", b'"string"', "not a record"),
        ("a.avsc", b'{"type":"record","name":"x","fields":[{"name":"a","type":["int","string"]}]}', "union"),
        (
            "a.avsc",
            b'{"type":"record","name":"x","fields":[{"name":"a","type":"null"}]}',
            "no column",
        ),
        ("a.desc", b"\xff", "not a descriptor set"),
        ("a.desc", b"", "shop.Order"),
    ],
)
def test_an_unusable_schema_file_is_reported(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(SchemaFileInvalid, match=reason):
        file_columns(path, ValueFormat.AVRO if name.endswith("avsc") else ValueFormat.PROTOBUF, "shop.Order")
