"""Decodes blocks of records, isolates bad ones, and turns records into rows.

A decoder turns a whole block of values into columns or fails. `decode_block` halves a failed block until
each bad record is alone, so a bad record costs a few more passes and the rest is still decoded in bulk. A
rejected record becomes a row with its bytes and the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.lake.columns import DELETED, ERROR, HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

REASON_LENGTH_MAX: Final = 300  # characters of the reason for a rejection
NEW_FIELDS: Final = "penstock-new-fields:"
NEW_FIELDS_END: Final = ":penstock-end"
ORIGIN: Final = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}
UNREADABLE: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, IndexError, EOFError)


class NewFields(Exception):
    """Records have undeclared fields. The driver parses their names and types from the message."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(f"{NEW_FIELDS}{json.dumps(fields)}{NEW_FIELDS_END}")


def new_fields(text: str) -> dict[str, str] | None:
    """The fields of a worker's `NewFields`, extracted from Spark's error text."""
    _, marker, rest = text.partition(NEW_FIELDS)
    body, ended, _ = rest.partition(NEW_FIELDS_END)
    if not (marker and ended):
        return None
    fields: dict[str, str] = json.loads(body.replace('\\"', '"'))
    return fields


class Rejected(NamedTuple):
    at: int  # index within the block
    reason: str


class Decoder(Protocol):
    """Decodes a block to columns in the order of `schema`, or raises one of UNREADABLE for all of it."""

    @property
    def schema(self) -> pa.Schema: ...

    def decode(self, values: pa.Array) -> list[pa.Array]: ...


class Reader(Protocol):
    """Turns blocks of records into rows, for topics whose records are aggregated rather than stored."""

    ddl: str

    def read(self, block: pa.RecordBatch) -> tuple[pa.RecordBatch | None, list[Rejected]]: ...


def decode_block(
    decoder: Decoder, values: pa.Array
) -> tuple[list[pa.Array], pa.Array | None, list[Rejected]]:
    """The decoded columns, the indices of the decoded records (None: all), and the rejected records."""
    try:
        return decoder.decode(values), None, []
    except UNREADABLE as error:
        if len(values) == 1:
            return [], None, [Rejected(0, reason_of(error))]
    pieces: list[tuple[int, list[pa.Array]]] = []
    rejected: list[Rejected] = []
    _halve(decoder, values, 0, pieces, rejected)
    decoded = [i for at, columns in pieces for i in range(at, at + len(columns[0]))]
    columns = [pa.concat_arrays(parts) for parts in zip(*(columns for _, columns in pieces))]
    return columns, pa.array(decoded, pa.int64()), rejected


def _halve(
    decoder: Decoder,
    values: pa.Array,
    at: int,
    pieces: list[tuple[int, list[pa.Array]]],
    rejected: list[Rejected],
) -> None:
    middle = len(values) // 2
    for start, half in ((at, values[:middle]), (at + middle, values[middle:])):
        if not len(half):
            continue
        try:
            pieces.append((start, decoder.decode(half)))
        except UNREADABLE as error:
            if len(half) == 1:
                rejected.append(Rejected(start, reason_of(error)))
            else:
                _halve(decoder, half, start, pieces, rejected)


def reason_of(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:REASON_LENGTH_MAX]


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Maps blocks of records to blocks of rows. Spark calls it for each partition."""

    decoder: Decoder
    out: pa.Schema
    key: bool
    headers: bool
    required: tuple[str, ...] = ()  # columns that must not be null: an upsert's key

    def __call__(
        self, blocks: Iterable[pa.RecordBatch], count_rejected: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            if block.num_rows:
                yield from self._block(block, count_rejected)

    def _block(
        self, block: pa.RecordBatch, count_rejected: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        tombstones = None
        if block.column("value").null_count:
            null = pc.is_null(block.column("value"))
            tombstones = block.filter(null)
            block = block.filter(pc.invert(null))
        rejected: list[tuple[int, str]] = []
        if block.num_rows:
            columns, indices, bad = decode_block(self.decoder, block.column("value"))
            rejected += bad
            good = block if indices is None else block.take(indices)
            if columns:
                by_name = dict(zip(self.decoder.schema.names, columns))
                yield from self._keyed(self._rows(good, by_name), good, count_rejected)
        if rejected:
            count_rejected(len(rejected))
            yield self._rejects(block, rejected)
        if tombstones is not None and self.required not in ((), (KEY,)):
            count_rejected(tombstones.num_rows)
            reason = f"no value, so {', '.join(self.required)} cannot be known"
            yield self._rejects(tombstones, [(i, reason) for i in range(tombstones.num_rows)])
        elif tombstones is not None:
            yield self._rows(tombstones, {DELETED: pa.array([True] * tombstones.num_rows)})

    def _keyed(
        self, rows: pa.RecordBatch, block: pa.RecordBatch, count_rejected: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        """Rows with a key; those without one are rejected."""
        missing = None
        for name in self.required:
            null = pc.is_null(rows.column(name))
            missing = null if missing is None else pc.or_(missing, null)
        if missing is None or not pc.any(missing).as_py():
            yield rows
            return
        indices = pc.indices_nonzero(missing).to_pylist()
        count_rejected(len(indices))
        yield rows.filter(pc.invert(missing))
        yield self._rejects(block, [(i, f"{', '.join(self.required)}: the key is missing") for i in indices])

    def _rejects(self, block: pa.RecordBatch, rejected: list[tuple[int, str]]) -> pa.RecordBatch:
        taken = block.take(pa.array([index for index, _ in rejected], pa.int64()))
        return self._rows(
            taken, {ERROR: pa.array([reason for _, reason in rejected]), VALUE: taken.column("value")}
        )

    def _rows(self, block: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Rows of the output schema: the given columns, and each row's origin."""
        origin = ORIGIN | ({KEY: "key"} if self.key else {}) | ({HEADERS: "headers"} if self.headers else {})
        from_block = {name: block.column(field) for name, field in origin.items()}
        return rows_of(block.num_rows, {**from_block, **columns}, self.out)


@dataclass(frozen=True, slots=True)
class ReaderRows:
    """As `RecordRows`, for a platform topic whose reader builds the rows itself."""

    reader: Reader
    out: pa.Schema

    def __call__(
        self, blocks: Iterable[pa.RecordBatch], count_rejected: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            if not block.num_rows:
                continue
            rows, rejected = self.reader.read(block)
            if rows is not None and rows.num_rows:
                columns = {field.name: rows.column(i) for i, field in enumerate(rows.schema)}
                yield rows_of(rows.num_rows, columns, self.out)
            if rejected:
                count_rejected(len(rejected))
                bad = block.take(pa.array([each.at for each in rejected], pa.int64()))
                origin = {name: bad.column(field) for name, field in {**ORIGIN, VALUE: "value"}.items()}
                reasons = pa.array([each.reason for each in rejected])
                yield rows_of(bad.num_rows, {ERROR: reasons, **origin}, self.out)


def rows_of(count: int, columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a schema from columns by name, cast to its types; missing columns are null."""
    arrays: list[pa.Array] = []
    for field in schema:
        array: Any = columns.get(field.name)
        if array is None:
            array = pa.nulls(count, field.type)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
