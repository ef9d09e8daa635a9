"""Rows of a platform topic whose reader builds them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.lake.columns import ERROR, OFFSET, PARTITION, TIMESTAMP, VALUE
from penstock.pipeline.reading.blocks import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.pipeline.reading.blocks import Reader

_ORIGIN = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp", VALUE: "value"}


class ReaderRows:
    """Maps blocks of records to the rows of a reader. Spark calls it for each partition."""

    def __init__(self, reader: Reader, out: pa.Schema) -> None:
        self.reader = reader
        self.out = out

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
                origin = {name: bad.column(field) for name, field in _ORIGIN.items()}
                reasons = pa.array([each.reason for each in rejected])
                yield rows_of(bad.num_rows, {ERROR: reasons, **origin}, self.out)
