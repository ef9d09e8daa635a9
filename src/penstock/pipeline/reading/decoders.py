"""Chooses the decoder of a source, and the columns it yields."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, get_args, get_type_hints

from penstock.model.errors.pipeline import SchemaFileInvalid
from penstock.pipeline.job import ValueFormat
from penstock.pipeline.lake.columns import TIMESTAMP_MS
from penstock.pipeline.reading.avro_protobuf import (
    AvroDecoder,
    ProtobufDecoder,
    RawDecoder,
    avro_columns,
    protobuf_columns,
)
from penstock.pipeline.reading.json_values import JsonDecoder
from penstock.pipeline.reading.registry import RegistryDecoder, newest_schema, registry_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.model.schema import Event
    from penstock.pipeline.job import Source
    from penstock.pipeline.lake.columns import Column
    from penstock.pipeline.reading.blocks import Decoder
    from penstock.pipeline.reading.registry import Registry


def decoder_of(source: Source, columns: Sequence[Column]) -> tuple[Decoder, str]:
    """The decoder and its columns as DDL. Raises SchemaFileInvalid, RegistryUnusable."""
    if source.format is ValueFormat.JSON:
        ddl = ", ".join(each.ddl for each in columns)
        millis = frozenset(each.name for each in columns if each.type == TIMESTAMP_MS)
        ddl += ", body string" if source.body else ""
        return JsonDecoder(
            arrow_schema(ddl),
            millis=millis,
            evolve=source.evolve,
            event=None if source.event is None else f"{source.event.kind}/{source.event.major}.",
            required=required_fields(source.event, columns),
            body=source.body,
        ), ddl
    if source.format is ValueFormat.RAW:
        return RawDecoder(arrow_schema("value binary")), "value binary"
    if source.registry is not None:
        return _registry_decoder(source, source.registry)
    assert source.schema_file is not None, "a job of this format has a schema file or a registry"
    declared = file_columns(source.schema_file, source.format, source.message)
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in declared.items())
    schema = arrow_schema(ddl)
    if source.format is ValueFormat.AVRO:
        return AvroDecoder(schema, source.schema_file.read_text(encoding="utf-8")), ddl
    return ProtobufDecoder(schema, source.schema_file.read_bytes(), source.message or ""), ddl


def _registry_decoder(source: Source, registry: Registry) -> tuple[Decoder, str]:
    subject = source.subject or f"{source.topic}-value"
    reader = newest_schema(registry, subject)
    try:
        if reader.kind.lower() != source.format:
            raise ValueError(f"its type is {reader.kind}, but the job's format is {source.format}")
        declared = registry_columns(reader, source.message)
    except (ValueError, KeyError, TypeError) as error:
        where = f"subject {subject} of {registry.url}"
        raise SchemaFileInvalid(path=where, reason=f"{type(error).__name__}: {error}") from error
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in declared.items())
    return RegistryDecoder(arrow_schema(ddl), registry, reader), ddl


def required_fields(event: type[Event] | None, columns: Sequence[Column]) -> tuple[str, ...]:
    """The declared columns that are mandatory in the event's class."""
    if event is None:
        return ()
    hints = get_type_hints(event)
    mandatory = {
        each.name
        for each in fields(event)
        if each.default is MISSING
        and each.default_factory is MISSING
        and NoneType not in get_args(hints[each.name])
    }
    return tuple(each.name for each in columns if each.name in mandatory)


@lru_cache(maxsize=64)
def file_columns(path: Path, value_format: ValueFormat, message: str | None) -> dict[str, str]:
    """Name → type, from a schema file. Raises SchemaFileInvalid."""
    try:
        if value_format is ValueFormat.AVRO:
            return avro_columns(path.read_text(encoding="utf-8"))
        return protobuf_columns(path.read_bytes(), message or "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaFileInvalid(path=path, reason=f"{type(error).__name__}: {error}") from error


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of columns declared as DDL."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(spark_schema(ddl))
    return schema


def spark_schema(ddl: str) -> StructType:
    """Spark's schema of columns declared as DDL."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType), "several columns"
    return schema
