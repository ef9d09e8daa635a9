"""Drops superseded rows of a key in the worker, before an upsert.

A changelog topic repeats the same keys. Rows dropped here are not passed back to the JVM, shuffled or
sorted. This is an optimisation only: `penstock.pipeline.lake.upsert` compares the remaining rows again,
since rows of a key may reach several workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.pipeline.lake.columns import ERROR, OFFSET, PARTITION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HELD_ROWS_MAX: Final = 200_000  # per worker, waiting for newer rows of the same keys
_INDEX: Final = "penstock_index"


def newest_rows(
    blocks: Iterable[pa.RecordBatch], key: tuple[str, ...], *, held_max: int = HELD_ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """The blocks without superseded rows. Rejected records have no key and pass unchanged."""
    held: list[pa.RecordBatch] = []
    count = 0
    for block in blocks:
        if block.column(ERROR).null_count < block.num_rows:
            yield block
            continue
        held.append(block)
        count += block.num_rows
        if count > held_max:
            newest = newest_of_each_key(pa.Table.from_batches(held), key)
            held, count = newest.to_batches(), newest.num_rows
            if count > held_max // 2:  # many keys, few repeats: waiting does not pay
                yield from held
                held, count = [], 0
    if held:
        yield from newest_of_each_key(pa.Table.from_batches(held), key).to_batches()


def newest_of_each_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The row with the highest offset of each key and partition; all rows if Arrow cannot group by the key.

    Offsets of two partitions do not compare: a key in several is left to the upsert, which refuses it."""
    if any(pa.types.is_nested(rows.schema.field(name).type) for name in key):
        return rows
    offsets = rows.column(OFFSET).to_numpy()
    if np.any(offsets[1:] < offsets[:-1]):
        rows = rows.take(pa.array(np.argsort(offsets, kind="stable")))
    same = list(dict.fromkeys((*key, PARTITION)))
    indexed = rows.select(same).append_column(_INDEX, pa.array(np.arange(rows.num_rows)))
    last = indexed.group_by(same, use_threads=False).aggregate([(_INDEX, "max")]).column(f"{_INDEX}_max")
    return rows if len(last) == rows.num_rows else rows.take(last)
