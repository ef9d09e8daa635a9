"""Reading checkpoint directories: complete, incomplete and damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.pipeline import CheckpointDamaged
from penstock.pipeline.lake.ledger import Checkpoint
from penstock.pipeline.spark.checkpoint import LocalDirectory, planned_offsets, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":40,"1":20}}'


def checkpoint(
    directory: Path, *, planned: int = -1, finished: int = -1, query: str | None = "q1"
) -> LocalDirectory:
    if query is not None:
        (directory / "metadata").write_text(f'{{"id":"{query}"}}')
    for name, newest in (("offsets", planned), ("commits", finished)):
        (directory / name).mkdir()
        for batch in range(newest + 1):
            (directory / name / str(batch)).write_text(OFFSETS)
    return LocalDirectory(directory)


def test_a_checkpoint_has_its_query_and_its_progress(tmp_path: Path) -> None:
    actual = read_checkpoint("orders", checkpoint(tmp_path, planned=3, finished=2), "orders")

    assert actual == Checkpoint("q1", committed=2, planned=3, end={0: 40, 1: 20})


def test_the_remains_of_a_crashed_first_start_are_no_checkpoint(tmp_path: Path) -> None:
    """Spark creates the directories before it stores the query's id."""
    (tmp_path / ".metadata.1.tmp").write_text("")

    assert read_checkpoint("orders", checkpoint(tmp_path, query=None), "orders") is None


@pytest.mark.parametrize(("planned", "finished", "query"), [(0, -1, None), (0, 0, None), (0, 1, "q1")])
def test_an_incomplete_checkpoint_is_damaged(
    tmp_path: Path, planned: int, finished: int, query: str | None
) -> None:
    with pytest.raises(CheckpointDamaged):
        read_checkpoint(
            "orders", checkpoint(tmp_path, planned=planned, finished=finished, query=query), "orders"
        )


def test_a_first_batch_starts_where_the_source_did(tmp_path: Path) -> None:
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"orders":{"0":7,"1":9}}')

    assert planned_offsets(LocalDirectory(tmp_path), -1, "orders") == {0: 7, 1: 9}
