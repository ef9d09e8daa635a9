"""Avro and Protobuf values, by a schema from a file, record by record.

Avro: the writer's schema, with or without the five bytes (a zero and the schema's id) that
registries put before a value. Protobuf: a descriptor set, made with `protoc -o`, and the name of a
message in it. Neither needs a jar or a service; both travel to the workers as text or bytes.
"""

from __future__ import annotations

import io
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

REGISTRY_HEAD_BYTES: Final = 5
_AVRO: Final = {
    "string": "string", "bytes": "binary", "int": "int", "long": "bigint", "float": "float",
    "double": "double",
    "boolean": "boolean", "enum": "string", "fixed": "binary",
}  # fmt: skip
_AVRO_LOGICAL: Final = {
    "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "date": "date", "uuid": "string",
}  # fmt: skip


class AvroDecoder:
    def __init__(self, schema: pa.Schema, avro: str) -> None:
        self.schema = schema
        self.avro = avro

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        return fastavro.parse_schema(json.loads(self.avro))

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "avro": self.avro}

    def decode(self, values: pa.Array) -> list[pa.Array]:
        import fastavro

        rows = []
        for value in values.to_pylist():
            body = (
                value[REGISTRY_HEAD_BYTES:]
                if value[:1] == b"\0" and len(value) > REGISTRY_HEAD_BYTES
                else value
            )
            stream = io.BytesIO(body)
            row: Any = fastavro.schemaless_reader(stream, self._parsed, None)
            if stream.tell() != len(body):
                raise ValueError("bytes follow the end of the record")
            rows.append(row)
        return columns_of(rows, self.schema)


class ProtobufDecoder:
    def __init__(self, schema: pa.Schema, descriptors: bytes, message: str) -> None:
        self.schema = schema
        self.descriptors = descriptors
        self.message = message

    @cached_property
    def _class(self) -> Any:
        return message_class(self.descriptors, self.message)

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "descriptors": self.descriptors, "message": self.message}

    def decode(self, values: pa.Array) -> list[pa.Array]:
        from google.protobuf.message import DecodeError

        rows = []
        for value in values.to_pylist():
            message = self._class()
            try:
                message.ParseFromString(value)
            except DecodeError as error:
                raise ValueError(str(error)) from None
            rows.append(_plain(message))
        return columns_of(rows, self.schema)


class RawDecoder:
    """Values as they are."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def decode(self, values: pa.Array) -> list[pa.Array]:
        return [values]


def columns_of(rows: list[dict[str, Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]


# --- schemas to columns ----------------------------------------------------------------------------


def avro_columns(text: str) -> dict[str, str]:
    """Name → type of a table's columns. Raises ValueError for what has no column."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ValueError("its root is not a record")
    return {field["name"]: _avro_type(field["type"]) for field in parsed["fields"]}


def _avro_type(kind: Any) -> str:
    if isinstance(kind, list):
        options = [option for option in kind if option != "null"]
        if len(options) != 1:
            raise ValueError(f"a union of {len(options)} types has no column")
        return _avro_type(options[0])
    if isinstance(kind, dict):
        if kind.get("logicalType") in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[kind["logicalType"]]
        if kind["type"] == "array":
            return f"array<{_avro_type(kind['items'])}>"
        if kind["type"] == "record":
            return (
                "struct<" + ", ".join(f"`{f['name']}`: {_avro_type(f['type'])}" for f in kind["fields"]) + ">"
            )
        return _avro_type(kind["type"])
    if kind not in _AVRO:
        raise ValueError(f"the type {kind!r} has no column")
    return _AVRO[kind]


def message_class(descriptors: bytes, message: str) -> Any:
    """Raises ValueError or KeyError if the set or the message in it cannot be used."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError as error:
        raise ValueError(f"it is no descriptor set ({error})") from None
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def protobuf_columns(descriptors: bytes, message: str) -> dict[str, str]:
    return {
        field.name: _protobuf_type(field) for field in message_class(descriptors, message).DESCRIPTOR.fields
    }


def _protobuf_type(field: Any) -> str:
    kinds: Mapping[int, str] = {
        field.CPPTYPE_INT32: "int", field.CPPTYPE_INT64: "bigint", field.CPPTYPE_UINT32: "bigint",
        field.CPPTYPE_UINT64: "decimal(20,0)", field.CPPTYPE_DOUBLE: "double", field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_BOOL: "boolean", field.CPPTYPE_ENUM: "string",
    }  # fmt: skip
    if field.message_type is not None:
        kind = (
            "struct<" + ", ".join(f"`{f.name}`: {_protobuf_type(f)}" for f in field.message_type.fields) + ">"
        )
    elif field.cpp_type == field.CPPTYPE_STRING:
        kind = "binary" if field.type == field.TYPE_BYTES else "string"
    else:
        kind = kinds[field.cpp_type]
    return f"array<{kind}>" if _repeated(field) else kind


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _plain(message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            row[field.name] = None
            continue
        value = getattr(message, field.name)
        row[field.name] = [_one(field, each) for each in value] if _repeated(field) else _one(field, value)
    return row


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
