"""JSON values by Arrow's own parser, a block at a time.

Values are joined by line feeds and parsed together. What makes this safe, whatever bytes somebody
put into a value: each begins with `{` and ends with `}`, so none can run on into the next (after a
`}` only a comma or another bracket could continue it); so each yields at least one object or an
error; and as many rows as records then means that each record is its own row.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.model.schema import SCHEMA
from penstock.pipeline.columns import BODY, Evolve
from penstock.pipeline.reading import NewFields

_SLACK: Final = 1024  # bytes; a block must hold the whole input, or lines would be cut


class JsonDecoder:
    """`schema` is what comes out; `millis` names timestamps that records carry as integers.

    `event` (kind and major version, `usage/1.`) and `required` are checked where given; the column
    `body` is the whole value as text.
    """

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
        read = [field for field in read if not (body and field.name == BODY)]
        self._explicit = pa.schema([*read, pa.field(SCHEMA, pa.string())] if event else read)

    def decode(self, values: pa.Array) -> list[pa.Array]:
        parsed = parse_objects(values, self._explicit, infer=self.evolve is not Evolve.IGNORE)
        known = set(self._explicit.names)
        extra = {
            f.name: ddl_of(f.type)
            for f in parsed.schema
            if f.name not in known and not pa.types.is_null(f.type)
        }
        if extra:
            raise NewFields(extra)
        if self._event is not None:
            self._check(parsed, self._event)
        return [
            values.cast(pa.string())
            if self._body and field.name == BODY
            else self._typed(parsed.column(field.name), field)
            for field in self.schema
        ]

    def _check(self, parsed: pa.RecordBatch, event: str) -> None:
        kinds = parsed.column(SCHEMA)
        if kinds.null_count or not pc.all(pc.starts_with(kinds, event)).as_py():
            raise ValueError(f"not of schema {event}x")
        for name in self._required:
            if parsed.column(name).null_count:
                raise ValueError(f"`{name}` is missing")

    def _typed(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.type == field.type:
            return array
        if field.name in self._millis:
            return array.cast(pa.timestamp("ms", "UTC")).cast(field.type)
        return array.cast(field.type)


def parse_objects(values: pa.Array, explicit: pa.Schema, *, infer: bool) -> pa.RecordBatch:
    """One row a value. Raises ArrowInvalid or ValueError for the block if any value is no object."""
    text = values.cast(pa.string())  # the parser takes bytes as they are: that they are UTF-8 is checked here
    if not _all_objects(text) and not _all_objects(pc.utf8_trim_whitespace(text)):
        raise ValueError("not a JSON object")
    lines = _lines(text)
    if bytes(lines).count(b"\n") != len(values):
        # Between tokens a tab means what a line feed means; inside a string both are errors.
        lines = _lines(pc.replace_substring(text, "\n", "\t"))
    table = pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(lines) + _SLACK),
        parse_options=pj.ParseOptions(
            explicit_schema=explicit, unexpected_field_behavior="infer" if infer else "ignore"
        ),
    )
    if table.num_rows != len(values):
        raise ValueError("not one JSON object")
    return table.combine_chunks().to_batches()[0]


def _lines(text: pa.Array) -> pa.Buffer:
    joined = pc.binary_join_element_wise(text, "", "\n")
    assert joined.offset == 0, "a join makes an array of its own"
    return joined.buffers()[2]


def _all_objects(text: pa.Array) -> bool:
    opened, closed = pc.starts_with(text, "{"), pc.ends_with(text, "}")
    return bool(pc.all(opened, min_count=0).as_py() and pc.all(closed, min_count=0).as_py())


def _read_type(field: pa.Field, millis: frozenset[str]) -> pa.DataType:
    """What the parser is asked for; text that Arrow's casts read better than its JSON parser stays text."""
    if field.name in millis:
        return pa.int64()
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type) or pa.types.is_binary(field.type):
        return pa.string()
    return field.type


def ddl_of(kind: pa.DataType) -> str:
    """The type of a new column. Text that looks like a time today may not tomorrow: it stays text."""
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
