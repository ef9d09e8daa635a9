"""Which decoder a source wants, and the columns that come of it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, get_args, get_type_hints

from penstock.model.errors.pipeline import SchemaFileInvalid
from penstock.pipeline.columns import TIMESTAMP_MS
from penstock.pipeline.job import Form
from penstock.pipeline.reading.binary import (
    AvroDecoder,
    ProtobufDecoder,
    RawDecoder,
    avro_columns,
    protobuf_columns,
)
from penstock.pipeline.reading.text import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.model.schema import Event
    from penstock.pipeline.columns import Column
    from penstock.pipeline.job import Source
    from penstock.pipeline.reading import Decoder


def decoder_of(session: SparkSession, source: Source, columns: Sequence[Column]) -> tuple[Decoder, str]:
    """The decoder, and its columns as DDL. Raises SchemaFileInvalid."""
    if source.form is Form.JSON:
        ddl = ", ".join(each.ddl for each in columns)
        millis = frozenset(each.name for each in columns if each.type == TIMESTAMP_MS)
        ddl += ", body string" if source.body else ""
        return JsonDecoder(
            _arrow(session, ddl),
            millis=millis,
            evolve=source.evolve,
            event=None if source.event is None else f"{source.event.kind}/{source.event.major}.",
            required=required_fields(source.event, columns),
            body=source.body,
        ), ddl
    if source.form is Form.RAW:
        return RawDecoder(_arrow(session, "value binary")), "value binary"
    assert source.schema_file is not None, "a job of this form has a file"
    ddl = ", ".join(
        f"`{n}` {t}" for n, t in file_columns(source.schema_file, source.form, source.message).items()
    )
    schema = _arrow(session, ddl)
    if source.form is Form.AVRO:
        return AvroDecoder(schema, source.schema_file.read_text(encoding="utf-8")), ddl
    return ProtobufDecoder(schema, source.schema_file.read_bytes(), source.message or ""), ddl


def required_fields(event: type[Event] | None, columns: Sequence[Column]) -> tuple[str, ...]:
    """Declared columns that the event's class cannot be without."""
    if event is None:
        return ()
    hints = get_type_hints(event)
    needed = {
        each.name
        for each in fields(event)
        if each.default is MISSING
        and each.default_factory is MISSING
        and NoneType not in get_args(hints[each.name])
    }
    return tuple(each.name for each in columns if each.name in needed)


@lru_cache(maxsize=64)
def file_columns(path: Path, form: Form, message: str | None) -> dict[str, str]:
    """Name → type, from a schema file. Raises SchemaFileInvalid."""
    try:
        if form is Form.AVRO:
            return avro_columns(path.read_text(encoding="utf-8"))
        return protobuf_columns(path.read_bytes(), message or "")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaFileInvalid(path=path, reason=f"{type(error).__name__}: {error}") from error


def _arrow(session: SparkSession, ddl: str) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(session.createDataFrame([], ddl).schema)
    return found
