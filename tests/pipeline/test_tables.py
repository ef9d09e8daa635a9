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
from penstock.pipeline.columns import Column
from penstock.pipeline.decoders import file_columns
from penstock.pipeline.job import Form, Job, Mode, Sink, Source
from penstock.pipeline.kafka import look_at
from penstock.pipeline.ledger import BATCH, JOB, SOURCE_SNAPSHOT
from penstock.pipeline.maintenance import maintain, snapshots_to_keep
from penstock.pipeline.reading.binary import message_class
from penstock.pipeline.session import catalog_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.pipeline.conftest import Ground

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
    """What `protoc -o` makes of a message with an id, a note and a nested place."""
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
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("accounts"))
    job = Job(
        "accounts",
        "",
        Source(topic, columns=(Column("name", "string"), Column("balance", "bigint")), key=True),
        Sink("bank.accounts", Mode.UPSERT, ("kafka_key",)),
    )
    keys = [f"a{n}".encode() for n in range(20)]
    ground.send(topic, [json_of(name=k.decode(), balance=n) for n, k in enumerate(keys)], keys=keys)
    first = ground.run(job).offsets
    ground.send(topic, [json_of(name="x", balance=1), json_of(name="y", balance=2)], keys=[keys[3]] * 2)
    ground.send(topic, [None, b"broken"], keys=[keys[4], keys[5]])

    outcome = ground.run(job)

    expected = {k: (k.decode(), n) for n, k in enumerate(keys)} | {keys[3]: ("y", 2)}
    del expected[keys[4]]
    found = {bytes(k): (n, b) for k, n, b in ground.rows("bank.accounts", "kafka_key", "name", "balance")}
    assert (outcome.rejected, found) == (1, expected)

    facts = asyncio.run(look_at(ground.connection, topic, job="accounts"))
    until = ",".join(f"{partition}:{offset}" for partition, offset in first.items())
    backfill(ground.runner().tables, job, ground.connection, facts, None, until)
    again = {bytes(k): (n, b) for k, n, b in ground.rows("bank.accounts", "kafka_key", "name", "balance")}
    assert again == expected  # a row that was removed later does not come back

    from pyiceberg.catalog.sql import SqlCatalog

    lake = ground.settings.lake
    catalog = SqlCatalog("lake", uri=f"sqlite:///{catalog_file(lake)}", warehouse=lake.warehouse)
    scan = catalog.load_table("bank.accounts").scan()
    assert {r["kafka_key"]: (r["name"], r["balance"]) for r in scan.to_arrow().to_pylist()} == expected
    assert len(scan.to_pandas()) == len(expected)
    total = scan.to_duckdb("accounts").sql("select sum(balance) from accounts").fetchall()
    assert total == [(sum(balance for _, balance in expected.values()),)]
    catalog.close()


@pytest.mark.spark
def test_avro_protobuf_and_raw_values_become_rows_by_a_schema_from_a_file(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    (ground.directory / "order.avsc").write_text(json.dumps(AVRO))
    (ground.directory / "order.desc").write_bytes(descriptor_set())
    out = io.BytesIO()
    when = datetime(2026, 11, 16, tzinfo=UTC)
    fastavro.schemaless_writer(out, AVRO, {"id": 1, "at": when, "note": None, "tags": ["a", "b"]})
    order = message_class(descriptor_set(), "shop.Order")
    proto = order(id=7, tags=["x"], place={"city": "Turin"}).SerializeToString()
    registered = b"\0\0\0\0\x05" + out.getvalue()
    cases: dict[Form, tuple[list[bytes], Any]] = {
        Form.AVRO: ([out.getvalue(), registered, b"\xff"], [(1, None, ["a", "b"])] * 2),
        Form.PROTOBUF: ([proto, b"\xff\xff"], [(7, ["x"], ("Turin",))]),
        Form.RAW: ([b"\0\1"], [(b"\0\1", [("trace", b"t1")])]),
    }
    columns = {
        Form.AVRO: ("id", "note", "tags"),
        Form.PROTOBUF: ("id", "tags", "place"),
        Form.RAW: ("value", "kafka_headers"),
    }
    found: dict[Form, Any] = {}

    for form, (values, _) in cases.items():
        topic = ground.make_topic(unique(form), partitions=1)
        ground.send(topic, values, headers=[("trace", b"t1")])
        source = Source(topic, form=form, headers=form is Form.RAW)
        if form is not Form.RAW:
            suffix = "avsc" if form is Form.AVRO else "desc"
            source = replace(source, schema_file=ground.directory / f"order.{suffix}", message="shop.Order")
        job = Job(form.value, "", source, Sink(f"shop.{form}"))
        outcome = ground.run(job)
        found[form] = (outcome.rejected, ground.rows(f"shop.{form}", *columns[form]))

    assert found[Form.AVRO] == (1, cases[Form.AVRO][1])
    assert found[Form.PROTOBUF] == (1, cases[Form.PROTOBUF][1])
    assert found[Form.RAW] == (0, cases[Form.RAW][1])


@pytest.mark.spark
def test_a_backfill_and_maintenance_change_no_row_and_the_job_goes_on(
    ground: Ground, unique: Callable[[str], str]
) -> None:
    topic = ground.make_topic(unique("orders"), partitions=1)
    source = Source(
        topic, columns=(Column("id", "bigint"), Column("at", "timestamp_ms")), batch_offsets_max=5
    )
    job = Job("orders", "", source, Sink("shop.orders", partition_by=("days(at)",)))
    wanted = [json_of(id=n, at=1_700_000_000_000 + n * 3_600_000) for n in range(20)]
    ground.send(topic, [*wanted[:10], json_of(id="x"), *wanted[10:]])
    ground.run(job)
    before = ground.rows("shop.orders")
    tables = ground.runner().tables
    facts = asyncio.run(look_at(ground.connection, topic, job="orders"))
    ground.session.sql("DELETE FROM lake.shop.orders WHERE id IN (3, 12)")

    filled = backfill(tables, job, ground.connection, facts, "0:2", "0:15")
    later = datetime.now(UTC) + timedelta(days=30)
    kept = maintain(tables, "shop.orders", now=later)

    assert (filled.records, filled.rejected) == (13, 1)
    assert ground.rows("shop.orders") == before
    assert len(ground.rows("shop.orders_rejected")) == 1
    assert kept.files_after <= kept.files_before
    newest = tables.newest("shop.orders", job="orders")
    assert newest is not None
    assert newest.end == {0: 21}
    ground.send(topic, [json_of(id=99, at=1)])
    assert ground.run(job).rows == 1


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


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.avsc", b"{", "JSONDecodeError"),
        ("a.avsc", b'"string"', "not a record"),
        ("a.avsc", b'{"type":"record","name":"x","fields":[{"name":"a","type":["int","string"]}]}', "union"),
        (
            "a.avsc",
            b'{"type":"record","name":"x","fields":[{"name":"a","type":{"type":"map"}}]}',
            "no column",
        ),
        ("a.desc", b"\xff", "no descriptor set"),
        ("a.desc", b"", "shop.Order"),
    ],
)
def test_a_schema_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(SchemaFileInvalid, match=reason):
        file_columns(path, Form.AVRO if name.endswith("avsc") else Form.PROTOBUF, "shop.Order")
