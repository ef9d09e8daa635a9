"""Dropping superseded rows of a key in a worker."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.lake.columns import ERROR, OFFSET, PARTITION
from penstock.pipeline.reading.newest_by_key import newest_of_each_key, newest_rows


def block(rows: list[tuple[str | None, int]], error: str | None = None, partition: int = 0) -> pa.RecordBatch:
    schema = pa.schema({"k": pa.string(), OFFSET: pa.int64(), ERROR: pa.string(), PARTITION: pa.int32()})
    named = [{"k": key, OFFSET: offset, ERROR: error, PARTITION: partition} for key, offset in rows]
    return pa.RecordBatch.from_pylist(named, schema=schema)


def read(blocks: Any) -> list[tuple[str | None, int]]:
    return [(row["k"], row[OFFSET]) for each in blocks for row in each.to_pylist()]


@pytest.mark.parametrize("held", [1, 20, 1_000_000])
def test_the_highest_offset_of_each_key_always_remains(held: int) -> None:
    chance = random.Random(3)
    rows: list[tuple[str | None, int]] = [(f"k{chance.randrange(9)}", offset) for offset in range(300)]
    blocks = [block(rows[at : at + 13]) for at in range(0, 300, 13)]

    left = read(newest_rows(blocks, ("k",), held_max=held))

    assert set(dict(rows).items()) <= set(left) <= set(rows)
    assert len(left) < len(rows)


def test_rows_that_are_out_of_order_are_compared_by_offset() -> None:
    rows = pa.Table.from_batches([block([("a", 9), ("b", 1), ("a", 3), ("b", 7)])])

    assert sorted(read([newest_of_each_key(rows, ("k",))])) == [("a", 9), ("b", 7)]


def test_offsets_of_two_partitions_do_not_compare() -> None:
    blocks = [block([("a", 900)]), block([("a", 4), ("a", 5)], partition=1)]

    assert sorted(read(newest_rows(blocks, ("k",)))) == [("a", 5), ("a", 900)]


def test_rejected_records_pass_unchanged() -> None:
    rejected = block([(None, 1), (None, 2)], error="broken")

    assert read(newest_rows([rejected, block([("a", 3)])], ("k",))) == [(None, 1), (None, 2), ("a", 3)]


def test_keys_that_arrow_cannot_group_are_left_to_spark() -> None:
    rows = pa.table({"k": [{"x": 1}, {"x": 1}], OFFSET: [1, 2]})

    assert newest_of_each_key(rows, ("k",)).num_rows == 2
