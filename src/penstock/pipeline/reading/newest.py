"""Of the rows of one worker, the newest of each key: what an upsert would drop anyway goes no further.

A topic of changes names the same keys again and again. Whatever is dropped here is neither handed
back to Java, nor shuffled, nor sorted. It is a saving and no promise: rows that are left are
compared once more by `penstock.pipeline.upsert`, since a key may come to several workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.pipeline.columns import ERROR, OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HELD_ROWS_MAX: Final = 200_000  # by one worker, waiting for newer rows of the same keys
_AT: Final = "penstock_at"


def newest_rows(
    blocks: Iterable[pa.RecordBatch], key: tuple[str, ...], *, held_max: int = HELD_ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """Blocks of rows in, fewer rows out. Rejected records have no key, and pass."""
    held: list[pa.RecordBatch] = []
    count = 0
    for block in blocks:
        if block.column(ERROR).null_count < block.num_rows:
            yield block
            continue
        held.append(block)
        count += block.num_rows
        if count > held_max:
            kept = reduced(pa.Table.from_batches(held), key)
            held, count = kept.to_batches(), kept.num_rows
            if count > held_max // 2:  # many keys, few repeats: nothing is won by waiting
                yield from held
                held, count = [], 0
    if held:
        yield from reduced(pa.Table.from_batches(held), key).to_batches()


def reduced(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The row of the highest offset for each key. Keys that Arrow cannot group by stay as they are."""
    if any(pa.types.is_nested(rows.schema.field(name).type) for name in key):
        return rows
    offsets = rows.column(OFFSET).to_numpy()
    if np.any(offsets[1:] < offsets[:-1]):
        rows = rows.take(pa.array(np.argsort(offsets, kind="stable")))
    places = rows.select(list(key)).append_column(_AT, pa.array(np.arange(rows.num_rows)))
    last = places.group_by(list(key), use_threads=False).aggregate([(_AT, "max")]).column(f"{_AT}_max")
    return rows if len(last) == rows.num_rows else rows.take(last)
