"""What a checkpoint directory says, whole, half-made or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.pipeline import CheckpointDamaged
from penstock.pipeline.checkpoint import read_checkpoint
from penstock.pipeline.ledger import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":40,"1":20}}'


def made(directory: Path, *, planned: int = -1, finished: int = -1, query: str | None = "q1") -> Path:
    if query is not None:
        (directory / "metadata").write_text(f'{{"id":"{query}"}}')
    for name, newest in (("offsets", planned), ("commits", finished)):
        (directory / name).mkdir()
        for batch in range(newest + 1):
            (directory / name / str(batch)).write_text(OFFSETS)
    return directory


def test_a_checkpoint_says_whose_it_is_and_how_far_it_got(tmp_path: Path) -> None:
    found = read_checkpoint("orders", made(tmp_path, planned=3, finished=2), "orders")

    assert found == Checkpoint("q1", committed=2, planned=3, end={0: 40, 1: 20})


def test_what_a_crash_left_of_a_first_start_is_no_checkpoint(tmp_path: Path) -> None:
    """Spark makes the directories before it writes who the query is."""
    (tmp_path / ".metadata.1.tmp").write_text("")

    assert read_checkpoint("orders", made(tmp_path, query=None), "orders") is None


@pytest.mark.parametrize(("planned", "finished", "query"), [(0, -1, None), (0, 0, None), (0, 1, "q1")])
def test_a_checkpoint_that_lacks_what_it_must_have_is_damaged(
    tmp_path: Path, planned: int, finished: int, query: str | None
) -> None:
    with pytest.raises(CheckpointDamaged):
        read_checkpoint("orders", made(tmp_path, planned=planned, finished=finished, query=query), "orders")
