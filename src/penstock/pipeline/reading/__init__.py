"""From records to rows, a block at a time, in Arrow: what Python workers of Spark run.

A decoder turns a block of values into columns or fails as a whole; `read_block` halves a block that
failed until the records to blame are alone, so that one bad record costs a few more passes and not
a slow way of reading the rest. A record that cannot be read becomes a row with its bytes and the
reason, for the table of rejected records.

Decoders are values that travel to the workers, so they hold data and no session.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.columns import DELETED, ERROR, HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REASON_LENGTH_MAX: Final = 300  # characters of the reason for a rejection
NEW_FIELDS: Final = "penstock-new-fields:"
NEW_FIELDS_END: Final = ":penstock-end"
UNREADABLE: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, IndexError, EOFError)


class NewFields(Exception):
    """Records have fields that nobody declared. The driver reads names and types from the text."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(f"{NEW_FIELDS}{json.dumps(fields)}{NEW_FIELDS_END}")


def new_fields(text: str) -> dict[str, str] | None:
    """What a worker said, found in whatever Spark made of it."""
    _, found, rest = text.partition(NEW_FIELDS)
    body, ended, _ = rest.partition(NEW_FIELDS_END)
    if not (found and ended):
        return None
    fields: dict[str, str] = json.loads(body.replace('\\"', '"'))
    return fields


class Rejected(NamedTuple):
    at: int  # index within the block
    reason: str


class Decoder(Protocol):
    """Columns of a block, in the order of `schema`; raises one of UNREADABLE for the whole block."""

    schema: pa.Schema

    def decode(self, values: pa.Array) -> list[pa.Array]: ...


class Reader(Protocol):
    """Turns blocks of records into rows of its own. For topics whose records are not kept one by one."""

    ddl: str

    def read(self, block: pa.RecordBatch) -> tuple[pa.RecordBatch | None, list[Rejected]]: ...


def decode_block(
    decoder: Decoder, values: pa.Array
) -> tuple[list[pa.Array], pa.Array | None, list[Rejected]]:
    """The columns of what can be read, its indices (None: everything), and what cannot."""
    try:
        return decoder.decode(values), None, []
    except UNREADABLE as error:
        if len(values) == 1:
            return [], None, [Rejected(0, reason_of(error))]
    pieces: list[tuple[int, list[pa.Array]]] = []
    rejected: list[Rejected] = []
    _halve(decoder, values, 0, pieces, rejected)
    kept = [i for at, columns in pieces for i in range(at, at + len(columns[0]))]
    columns = [pa.concat_arrays(parts) for parts in zip(*(columns for _, columns in pieces))]
    return columns, pa.array(kept, pa.int64()), rejected


def _halve(
    decoder: Decoder,
    values: pa.Array,
    at: int,
    pieces: list[tuple[int, list[pa.Array]]],
    rejected: list[Rejected],
) -> None:
    middle = len(values) // 2
    for start, part in ((at, values[:middle]), (at + middle, values[middle:])):
        if not len(part):
            continue
        try:
            pieces.append((start, decoder.decode(part)))
        except UNREADABLE as error:
            if len(part) == 1:
                rejected.append(Rejected(start, reason_of(error)))
            else:
                _halve(decoder, part, start, pieces, rejected)


def reason_of(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:REASON_LENGTH_MAX]


class Rows:
    """The function that Spark maps over a partition: blocks of records in, blocks of rows out."""

    def __init__(
        self, decoder: Decoder, out: pa.Schema, *, key: bool, headers: bool, required: tuple[str, ...] = ()
    ) -> None:
        self.decoder = decoder
        self.out = out
        self.key = key
        self.headers = headers
        self.required = required  # columns that a row cannot be without: those of an upsert's key

    def __call__(
        self, blocks: Iterable[pa.RecordBatch], note: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            if block.num_rows:
                yield from self._block(block, note)

    def _block(self, block: pa.RecordBatch, note: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        deleted = None
        if block.column("value").null_count:
            gone = pc.is_null(block.column("value"))
            deleted = block.filter(gone)
            block = block.filter(pc.invert(gone))
        rejected: list[tuple[int, str]] = []
        if block.num_rows:
            columns, kept, bad = decode_block(self.decoder, block.column("value"))
            rejected += bad
            good = block if kept is None else block.take(kept)
            if columns:
                made = dict(zip(self.decoder.schema.names, columns))
                yield from self._keyed(self._rows(good, made), good, note)
        if rejected:
            note(len(rejected))
            yield self._rejects(block, rejected)
        if deleted is not None and self.required not in ((), (KEY,)):
            note(deleted.num_rows)
            reason = f"no value, so {', '.join(self.required)} cannot be known"
            yield self._rejects(deleted, [(i, reason) for i in range(deleted.num_rows)])
        elif deleted is not None:
            yield self._rows(deleted, {DELETED: pa.array([True] * deleted.num_rows)})

    def _keyed(
        self, rows: pa.RecordBatch, block: pa.RecordBatch, note: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        """Rows whose key is there; the others are rejected."""
        missing = None
        for name in self.required:
            null = pc.is_null(rows.column(name))
            missing = null if missing is None else pc.or_(missing, null)
        if missing is None or not pc.any(missing).as_py():
            yield rows
            return
        indices = pc.indices_nonzero(missing).to_pylist()
        note(len(indices))
        yield rows.filter(pc.invert(missing))
        yield self._rejects(block, [(i, f"{', '.join(self.required)}: the key is missing") for i in indices])

    def _rejects(self, block: pa.RecordBatch, rejected: list[tuple[int, str]]) -> pa.RecordBatch:
        taken = block.take(pa.array([index for index, _ in rejected], pa.int64()))
        return self._rows(
            taken, {ERROR: pa.array([reason for _, reason in rejected]), VALUE: taken.column("value")}
        )

    def _rows(self, block: pa.RecordBatch, made: dict[str, pa.Array]) -> pa.RecordBatch:
        """A block of the agreed form: what was made, where it came from, and nothing else."""
        place = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp"}
        if self.key:
            place[KEY] = "key"
        if self.headers:
            place[HEADERS] = "headers"
        arrays: list[pa.Array] = []
        for field in self.out:
            array: Any = made.get(field.name)
            if array is None and field.name in place:
                array = block.column(place[field.name])
            if array is None:
                array = pa.nulls(block.num_rows, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.out)
