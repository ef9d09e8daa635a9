"""Values of a schema registry: Avro and Protobuf in Confluent's wire format, of several versions."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from penstock.model.errors.pipeline import RegistryUnusable
from penstock.pipeline.job import Job, Sink, Source, ValueFormat
from penstock.pipeline.lake.columns import Evolve
from penstock.pipeline.reading import registry as registry_module
from penstock.pipeline.reading.avro_protobuf import message_of
from penstock.pipeline.reading.blocks import decode_block
from penstock.pipeline.reading.registry import (
    Registry,
    RegistryDecoder,
    newest_schema,
    registry_columns,
    schema_with_id,
)
from tests.pipeline.registry_server import RegistryServer, registry_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.pipeline.conftest import PipelineHarness

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "old", "type": "string"}],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string", "default": "none"},
        {"name": "tags", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("tags", pa.map_(pa.string(), pa.int64()))])


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    schema_with_id.cache_clear()  # servers of two tests may have the same port
    with registry_server() as server:
        yield server


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro(schema: Any, **fields: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, fields)
    return out.getvalue()


def proto_file(*, field_type: str = "") -> descriptor_pb2.FileDescriptorProto:
    """Two messages, of which the second has a nested one with a map, and an imported field if asked for."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    file.message_type.add(name="Other").field.add(name="x", number=1, type=kind.TYPE_INT32, label=1)
    line = file.message_type.add(name="Order").nested_type.add(name="Line")
    line.field.add(name="id", number=1, type=kind.TYPE_INT64, label=1)
    entry = line.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kind.TYPE_INT32, label=1)
    counts = ".shop.Order.Line.CountsEntry"
    line.field.add(name="counts", number=2, type=kind.TYPE_MESSAGE, label=3, type_name=counts)
    if field_type:
        file.dependency.append("place.proto")
        line.field.add(name="place", number=3, type=kind.TYPE_MESSAGE, label=1, type_name=field_type)
    return file


def encoded(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_values_of_all_versions_are_resolved_to_the_newest(server: RegistryServer) -> None:
    first = server.register("orders-value", json.dumps(FIRST))
    second = server.register("orders-value", json.dumps(SECOND))
    registry = Registry(server.url)
    reader = newest_schema(registry, "orders-value")
    values = [
        framed(first, avro(FIRST, id=1, old="x")),
        framed(second, avro(SECOND, id=2, note="n", tags={"a": 1})),
        framed(99, b"x"),
        framed(second, b"\xff"),
        b"no prefix",
    ]

    columns, indices, rejected = decode_block(RegistryDecoder(SCHEMA, registry, reader), pa.array(values))

    assert registry_columns(reader, None) == {"id": "bigint", "note": "string", "tags": "map<string, bigint>"}
    assert indices is not None
    assert [column.to_pylist() for column in columns] == [[1, 2], ["none", "n"], [[], [("a", 1)]]]
    assert [each.at for each in rejected] == [2, 3, 4]
    assert "no schema 99" in rejected[0].reason
    assert len([path for path in server.requests if path.startswith("/schemas/ids/1?")]) == 1


def test_a_protobuf_value_names_its_message_and_references_are_fetched(server: RegistryServer) -> None:
    kind = descriptor_pb2.FieldDescriptorProto
    place = descriptor_pb2.FileDescriptorProto(name="default", package="geo", syntax="proto3")
    place.message_type.add(name="Place").field.add(name="city", number=1, type=kind.TYPE_STRING, label=1)
    server.register("place", encoded(place), "PROTOBUF")
    references = [{"name": "place.proto", "subject": "place", "version": 1}]
    file = proto_file(field_type=".geo.Place")
    schema_id = server.register("orders-value", encoded(file), "PROTOBUF", references)
    registry = Registry(server.url)
    reader = newest_schema(registry, "orders-value")
    place.name = "place.proto"
    line = message_of(descriptor_pb2.FileDescriptorSet(file=[place, file]), "shop.Order.Line")
    value = line(id=7, counts={"a": 3}, place={"city": "Turin"}).SerializeToString()
    path = b"\x04\x02\x00"  # two indexes: the message 1, and in it 0
    types = {"id": pa.int64(), "counts": pa.map_(pa.string(), pa.int32())}
    schema = pa.schema([*types.items(), ("place", pa.struct([("city", pa.string())]))])

    columns = RegistryDecoder(schema, registry, reader).decode(pa.array([framed(schema_id, path + value)]))

    assert [column.to_pylist() for column in columns] == [[7], [[("a", 3)]], [{"city": "Turin"}]]
    assert registry_columns(reader, "shop.Order.Line") == {
        "id": "bigint",
        "counts": "map<string, int>",
        "place": "struct<`city`: string>",
    }


def test_a_registry_that_fails_fails_the_run_and_rejects_no_record(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "BETWEEN_SECONDS", 0.0)
    schema_id = server.register("orders-value", json.dumps(SECOND))
    registry = Registry(server.url, "reader", "secret")
    decoder = RegistryDecoder(SCHEMA, registry, newest_schema(registry, "orders-value"))
    values = pa.array([framed(schema_id, avro(SECOND, id=2, note="n", tags={}))])
    server.failures = 100
    with pytest.raises(RegistryUnusable):
        decode_block(decoder, values)
    server.failures = 2

    columns, _, rejected = decode_block(decoder, values)

    assert (columns[0].to_pylist(), rejected) == ([2], [])
    with pytest.raises(RegistryUnusable, match="no subject"):
        newest_schema(registry, "other-value")


@pytest.mark.spark
def test_a_job_follows_the_versions_of_its_subject(
    harness: PipelineHarness, unique: Callable[[str], str], server: RegistryServer
) -> None:
    topic = harness.make_topic(unique("orders"), partitions=1)
    subject = f"{topic}-value"
    source = Source(topic, format=ValueFormat.AVRO, registry=Registry(server.url), evolve=Evolve.ADD)
    job = Job("orders", "", source, Sink("shop.orders"))
    first = server.register(subject, json.dumps(FIRST | {"fields": FIRST["fields"][:1]}))
    harness.send(topic, [framed(first, avro({**FIRST, "fields": FIRST["fields"][:1]}, id=1))])
    harness.run(job)
    second = server.register(subject, json.dumps(SECOND))
    late = framed(first, avro({**FIRST, "fields": FIRST["fields"][:1]}, id=3))
    harness.send(topic, [framed(second, avro(SECOND, id=2, note="n", tags={"a": 1})), late, b"x"])

    outcome = harness.run(replace(job, source=source))

    assert outcome.rejected == 1
    assert harness.rows("shop.orders", "id", "note", "tags") == [
        (1, None, None),
        (2, "n", {"a": 1}),
        (3, "none", {}),
    ]
