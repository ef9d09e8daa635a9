"""What a worker keeps of the rows of one key."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.columns import ERROR, OFFSET
from penstock.pipeline.reading.newest import newest_rows, reduced


def block(rows: list[tuple[str | None, int]], error: str | None = None) -> pa.RecordBatch:
    names, offsets = [key for key, _ in rows], [offset for _, offset in rows]
    errors = pa.array([error] * len(rows), pa.string())
    return pa.RecordBatch.from_arrays(
        [pa.array(names, pa.string()), pa.array(offsets, pa.int64()), errors], names=["k", OFFSET, ERROR]
    )


def read(blocks: Any) -> list[tuple[str | None, int]]:
    return [(row["k"], row[OFFSET]) for each in blocks for row in each.to_pylist()]


@pytest.mark.parametrize("held", [1, 20, 1_000_000])
def test_the_highest_offset_of_each_key_is_always_among_what_is_left(held: int) -> None:
    chance = random.Random(3)
    rows = [(f"k{chance.randrange(9)}", offset) for offset in range(300)]
    blocks = [block(rows[at : at + 13]) for at in range(0, 300, 13)]

    left = read(newest_rows(blocks, ("k",), held_max=held))

    assert set(dict(rows).items()) <= set(left) <= set(rows)
    assert len(left) < len(rows)


def test_rows_that_are_out_of_order_are_compared_by_offset() -> None:
    rows = pa.Table.from_batches([block([("a", 9), ("b", 1), ("a", 3), ("b", 7)])])

    assert sorted(read([reduced(rows, ("k",))])) == [("a", 9), ("b", 7)]


def test_rejected_records_pass_whatever_their_key() -> None:
    rejected = block([(None, 1), (None, 2)], error="broken")

    assert read(newest_rows([rejected, block([("a", 3)])], ("k",))) == [(None, 1), (None, 2), ("a", 3)]


def test_a_key_that_cannot_be_grouped_by_is_left_to_spark() -> None:
    rows = pa.table({"k": [{"x": 1}, {"x": 1}], OFFSET: [1, 2]})

    assert reduced(rows, ("k",)).num_rows == 2
