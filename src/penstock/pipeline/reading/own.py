"""The function that Spark maps over a topic of the platform's own, whose reader makes rows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.columns import ERROR, OFFSET, PARTITION, TIMESTAMP, VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.pipeline.reading import Reader


class OwnRows:
    def __init__(self, reader: Reader, out: pa.Schema) -> None:
        self.reader = reader
        self.out = out

    def __call__(
        self, blocks: Iterable[pa.RecordBatch], note: Callable[[int], None]
    ) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            if not block.num_rows:
                continue
            rows, rejected = self.reader.read(block)
            if rows is not None and rows.num_rows:
                yield self._formed(rows.num_rows, {f.name: rows.column(i) for i, f in enumerate(rows.schema)})
            if rejected:
                note(len(rejected))
                bad = block.take(pa.array([each.at for each in rejected], pa.int64()))
                place = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp", VALUE: "value"}
                made = {name: bad.column(column) for name, column in place.items()}
                yield self._formed(bad.num_rows, {ERROR: pa.array([r.reason for r in rejected]), **made})

    def _formed(self, count: int, made: dict[str, pa.Array]) -> pa.RecordBatch:
        arrays = []
        for field in self.out:
            array = made.get(field.name)
            if array is None:
                array = pa.nulls(count, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.out)
