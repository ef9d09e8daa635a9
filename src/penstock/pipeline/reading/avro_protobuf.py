"""Decoders for Avro, Protobuf and raw values.

Avro: the writer's schema, with or without the five-byte prefix (a zero byte and the schema id) of schema
registries. Protobuf: a descriptor set made with `protoc -o`, and a message name in it.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

REGISTRY_PREFIX_BYTES: Final = 5  # a zero byte and the schema id
SCHEMAS_MAX: Final = 1000  # kept by a worker
_AVRO: Final = {
    "string": "string", "bytes": "binary", "int": "int", "long": "bigint", "float": "float",
    "double": "double", "boolean": "boolean", "enum": "string", "fixed": "binary",
}  # fmt: skip
_AVRO_LOGICAL: Final = {
    "timestamp-millis": "timestamp", "timestamp-micros": "timestamp", "date": "date", "uuid": "string",
}  # fmt: skip

_WELL_KNOWN: Final = ("any", "duration", "empty", "struct", "timestamp", "wrappers")


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    schema: pa.Schema
    avro: str

    def decode(self, values: pa.Array) -> list[pa.Array]:
        writer = _parsed(self.avro)
        rows = [read_avro(_without_prefix(value), writer) for value in values.to_pylist()]
        return columns_of(rows, self.schema)


@dataclass(frozen=True, slots=True)
class ProtobufDecoder:
    schema: pa.Schema
    descriptors: bytes
    message: str

    def decode(self, values: pa.Array) -> list[pa.Array]:
        kind = message_class(self.descriptors, self.message)
        return columns_of([read_message(kind, value) for value in values.to_pylist()], self.schema)


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """Leaves values as they are."""

    schema: pa.Schema

    def decode(self, values: pa.Array) -> list[pa.Array]:
        return [values]


@lru_cache(maxsize=SCHEMAS_MAX)
def _parsed(avro: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(avro))


def _without_prefix(value: bytes) -> bytes:
    prefixed = value[:1] == b"\0" and len(value) > REGISTRY_PREFIX_BYTES
    return value[REGISTRY_PREFIX_BYTES:] if prefixed else value


def read_avro(body: bytes, writer: Any, reader: Any = None) -> dict[str, Any]:
    """A record of parsed schemas. Raises ValueError, among others, unless it is the whole value."""
    import fastavro

    stream = io.BytesIO(body)
    row: Any = fastavro.schemaless_reader(stream, writer, reader)
    if stream.tell() != len(body):
        raise ValueError("bytes follow the end of the record")
    return dict(row)


def read_message(kind: Any, body: bytes) -> dict[str, Any]:
    """A message of a class. Raises ValueError."""
    from google.protobuf.message import DecodeError

    message = kind()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return _message_to_dict(message)


def columns_of(rows: list[dict[str, Any]], schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([arrow_value(row.get(field.name), field.type) for row in rows], field.type)
        for field in schema
    ]


def arrow_value(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow takes it: maps as lists of pairs, also inside lists, structs and maps."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_list(kind) and isinstance(value, list):
        return [arrow_value(each, kind.value_type) for each in value]
    if pa.types.is_list(kind) or not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} where {kind} was expected")
    if pa.types.is_map(kind):
        return [(key, arrow_value(each, kind.item_type)) for key, each in value.items()]
    return {field.name: arrow_value(value.get(field.name), field.type) for field in kind}


def avro_columns(text: str) -> dict[str, str]:
    """Name → type of the table's columns. Raises ValueError for types that no column can hold."""
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ValueError("its root is not a record")
    return {field["name"]: _avro_type(field["type"]) for field in parsed["fields"]}


def _avro_type(kind: Any) -> str:
    if isinstance(kind, list):
        options = [option for option in kind if option != "null"]
        if len(options) != 1:
            raise ValueError(f"no column can hold a union of {len(options)} types")
        return _avro_type(options[0])
    if isinstance(kind, dict):
        if kind.get("logicalType") in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[kind["logicalType"]]
        if kind["type"] == "array":
            return f"array<{_avro_type(kind['items'])}>"
        if kind["type"] == "map":
            return f"map<string, {_avro_type(kind['values'])}>"
        if kind["type"] == "record":
            fields = ", ".join(f"`{field['name']}`: {_avro_type(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
        return _avro_type(kind["type"])
    if kind not in _AVRO:
        raise ValueError(f"no column can hold the type {kind!r}")
    return _AVRO[kind]


@lru_cache(maxsize=SCHEMAS_MAX)
def message_class(descriptors: bytes, message: str) -> Any:
    """The class of a message. Raises ValueError or KeyError if the set or the message is not usable."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptors)
    except DecodeError as error:
        raise ValueError(f"not a descriptor set ({error})") from None
    return message_of(files, message)


def message_of(files: Any, message: str) -> Any:
    """The class of a message in a set of file descriptors. Raises KeyError if it has none of that name."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        _add_known_imports(pool, file)
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))


def _add_known_imports(pool: Any, file: Any) -> None:
    """Adds the well-known types that a file imports: descriptor sets need not include them."""
    from google.protobuf import descriptor_pb2

    for name in _WELL_KNOWN:
        if f"google/protobuf/{name}.proto" in file.dependency:
            copied = descriptor_pb2.FileDescriptorProto()
            import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(copied)
            pool.Add(copied)


def protobuf_columns(descriptors: bytes, message: str) -> dict[str, str]:
    return message_columns(message_class(descriptors, message).DESCRIPTOR)


def message_columns(descriptor: Any) -> dict[str, str]:
    return {field.name: _protobuf_type(field) for field in descriptor.fields}


def _protobuf_type(field: Any) -> str:
    kinds: Mapping[int, str] = {
        field.CPPTYPE_INT32: "int", field.CPPTYPE_INT64: "bigint", field.CPPTYPE_UINT32: "bigint",
        field.CPPTYPE_UINT64: "decimal(20,0)", field.CPPTYPE_DOUBLE: "double", field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_BOOL: "boolean", field.CPPTYPE_ENUM: "string",
    }  # fmt: skip
    if _is_map(field):
        key, value = (_protobuf_type(each) for each in field.message_type.fields)
        return f"map<{key}, {value}>"
    if field.message_type is not None:
        fields = ", ".join(f"`{each.name}`: {_protobuf_type(each)}" for each in field.message_type.fields)
        kind = f"struct<{fields}>"
    elif field.cpp_type == field.CPPTYPE_STRING:
        kind = "binary" if field.type == field.TYPE_BYTES else "string"
    else:
        kind = kinds[field.cpp_type]
    return f"array<{kind}>" if _is_repeated(field) else kind


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _message_to_dict(message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            row[field.name] = None
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            entry = field.message_type.fields_by_name["value"]
            row[field.name] = {key: _to_value(entry, each) for key, each in value.items()}
            continue
        repeated = _is_repeated(field)
        row[field.name] = [_to_value(field, each) for each in value] if repeated else _to_value(field, value)
    return row


def _to_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message_to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
