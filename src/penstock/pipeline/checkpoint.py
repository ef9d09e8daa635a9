"""Reading Spark's checkpoint directory: which query it is of, and how far it got.

The form (one JSON file for the query, a text file for each planned and each finished batch) is
Spark's, unchanged since 2.0; only what is needed is read, and nothing is written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.model.errors.pipeline import CheckpointDamaged
from penstock.pipeline.ledger import Checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def read_checkpoint(job: str, directory: Path, topic: str) -> Checkpoint | None:
    """None if there is none yet. Raises CheckpointDamaged.

    Spark writes who the query is before it plans a batch: a directory without either is what a crash
    (or a full disk) left of a first start, and as good as none.
    """
    if not directory.exists() or not any(directory.iterdir()):
        return None
    try:
        finished, planned = _newest(directory / "commits"), _newest(directory / "offsets")
        if not (directory / "metadata").exists() and finished < 0 and planned < 0:
            return None
        query = str(json.loads((directory / "metadata").read_text())["id"])
        end = planned_offsets(directory, finished, topic) if finished >= 0 else {}
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointDamaged(job=job, checkpoint=directory, reason=reason) from error
    if finished > planned:
        raise CheckpointDamaged(
            job=job, checkpoint=directory, reason=f"batch {finished} is finished and was never planned"
        )
    return Checkpoint(query, finished, planned, end)


def planned_offsets(directory: Path, batch: int, topic: str) -> dict[int, int]:
    """Where a batch ends, partition by partition; before the first one nothing is planned."""
    if batch < 0:
        return {}
    # Version, metadata of the batch, then one line for each source.
    line = (directory / "offsets" / str(batch)).read_text().splitlines()[2]
    return {int(partition): int(offset) for partition, offset in json.loads(line)[topic].items()}


def _newest(directory: Path) -> int:
    if not directory.is_dir():
        return -1
    return max((int(file.name) for file in directory.iterdir() if file.name.isdecimal()), default=-1)
