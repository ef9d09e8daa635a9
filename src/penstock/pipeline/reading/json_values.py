"""The decoder for JSON values, on Arrow's parser, a block at a time.

Values are joined with line feeds and parsed together. This is safe for any bytes in a value: each must
start with `{` and end with `}`, so no value can run on into the next (only a comma or a closing bracket
could continue it after a `}`). Each value therefore yields at least one object or an error, and if there
are as many rows as records, each record is exactly one row.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.model.schema import SCHEMA
from penstock.pipeline.lake.columns import BODY, Evolve
from penstock.pipeline.reading.avro_protobuf import arrow_value
from penstock.pipeline.reading.blocks import NewFields

_SLACK_BYTES: Final = 1024  # a block must hold the whole input, or lines would be cut


class JsonDecoder:
    """Decodes to `schema`; `millis` names timestamps that records carry as integer milliseconds.

    `event` (kind and major version, as in `usage/1.`) and `required` are checked if given. The column
    `body` is the whole value as text."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        millis: frozenset[str] = frozenset(),
        evolve: Evolve = Evolve.IGNORE,
        event: str | None = None,
        required: tuple[str, ...] = (),
        body: bool = False,
    ) -> None:
        self.schema = schema
        self.evolve = evolve
        self._millis = millis
        self._event = event
        self._required = required
        self._body = body
        read = [pa.field(field.name, _read_type(field, millis)) for field in schema]
        # Arrow's parser knows no maps: it takes an object for a struct.
        self._maps = [field for field in schema if _has_map(field.type)]
        left_out = {*(field.name for field in self._maps), *((BODY,) if body else ())}
        read = [field for field in read if field.name not in left_out]
        self._explicit = pa.schema([*read, pa.field(SCHEMA, pa.string())] if event else read)

    def decode(self, values: pa.Array) -> list[pa.Array]:
        parsed = parse_objects(values, self._explicit, infer=self.evolve is not Evolve.IGNORE)
        known = {*self._explicit.names, *(field.name for field in self._maps)}
        unknown = [f for f in parsed.schema if f.name not in known and not pa.types.is_null(f.type)]
        if extra := {f.name: ddl_of(f.type) for f in unknown}:
            raise NewFields(extra)
        if self._event is not None:
            check_event(parsed, self._event, self._required)
        columns = {name: parsed.column(name) for name in self._explicit.names} | self._map_columns(values)
        if self._body:
            columns[BODY] = values.cast(pa.string())
        return [self._typed(columns[field.name], field) for field in self.schema]

    def _map_columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """The columns with maps, parsed record by record."""
        if not self._maps:
            return {}
        objects = [json.loads(value) for value in values.to_pylist()]
        return {
            field.name: pa.array(
                [arrow_value(each.get(field.name), field.type) for each in objects], field.type
            )
            for field in self._maps
        }

    def _typed(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.type == field.type:
            return array
        if field.name in self._millis:
            return array.cast(pa.timestamp("ms", "UTC")).cast(field.type)
        return array.cast(field.type)


def check_event(parsed: pa.RecordBatch, event: str, required: tuple[str, ...]) -> None:
    """Raises ValueError unless all are of this kind and major version, with the required fields."""
    kinds = parsed.column(SCHEMA)
    if kinds.null_count or not pc.all(pc.starts_with(kinds, event)).as_py():
        raise ValueError(f"not of schema {event}x")
    for name in required:
        if parsed.column(name).null_count:
            raise ValueError(f"`{name}` is missing")


def parse_objects(values: pa.Array, explicit: pa.Schema, *, infer: bool) -> pa.RecordBatch:
    """One row per value. Raises ArrowInvalid or ValueError for the block if any value is not an object."""
    text = values.cast(pa.string())  # the cast checks that values are UTF-8; the parser does not
    if not _all_objects(text) and not _all_objects(pc.utf8_trim_whitespace(text)):
        raise ValueError("not a JSON object")
    lines = _lines(text)
    if bytes(lines).count(b"\n") != len(values):
        # Between tokens a tab is as good as a line feed; inside a string both are errors.
        lines = _lines(pc.replace_substring(text, "\n", "\t"))
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + _SLACK_BYTES),
        parse_options=pj.ParseOptions(
            explicit_schema=explicit, unexpected_field_behavior="infer" if infer else "ignore"
        ),
    )
    if table.num_rows != len(values):
        raise ValueError("not one JSON object")
    return table.combine_chunks().to_batches()[0]


def _lines(text: pa.Array) -> pa.Buffer:
    joined = pc.binary_join_element_wise(text, "", "\n")
    assert joined.offset == 0, "a join creates a new array"
    return joined.buffers()[2]


def _all_objects(text: pa.Array) -> bool:
    opened, closed = pc.starts_with(text, "{"), pc.ends_with(text, "}")
    return bool(pc.all(opened, min_count=0).as_py() and pc.all(closed, min_count=0).as_py())


def _has_map(kind: pa.DataType) -> bool:
    nested = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_map(kind) or any(_has_map(each) for each in nested)


def _read_type(field: pa.Field, millis: frozenset[str]) -> pa.DataType:
    """The type to parse a field as; text is cast later if Arrow's casts accept more than its JSON parser."""
    if field.name in millis:
        return pa.int64()
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type) or pa.types.is_binary(field.type):
        return pa.string()
    return field.type


def ddl_of(kind: pa.DataType) -> str:
    """The type of a new column. Text that looks like a time stays text: later values may not."""
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type)}>"
    if pa.types.is_struct(kind):
        inner = ", ".join(f"`{f.name}`: {ddl_of(f.type)}" for f in kind)
        return f"struct<{inner}>" if inner else "string"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "bigint"
    return "double" if pa.types.is_floating(kind) else "string"
