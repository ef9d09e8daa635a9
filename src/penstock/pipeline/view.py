"""A job's table as a view of its log: where it stands, and its rows as of a position.

Each commit stores the range of offsets that it holds, so a table's position is atomic with its rows, as
that of any view (`penstock.olep.view`). A position read here is compared and joined with those of other
views, and its token honoured by them: what a cache shows now can be asked of the lake as of the same cut.

An appended table has a row for each record, with its partition and offset: it can be read as of every
position it has passed. An upserted one has its past only in Iceberg's snapshots: it is read where it stands.
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.model.errors.views import SnapshotGone, ViewMissing
from penstock.olep.position import Position
from penstock.pipeline.columns import OFFSET, PARTITION
from penstock.pipeline.job import Mode
from penstock.pipeline.ledger import Commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake import Tables


@dataclass(frozen=True, slots=True)
class LakeReader:
    """Rows as of one position, as a frame: for SQL, or to be collected. Later commits do not show."""

    position: Position
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class LakeView:
    """The table that a job writes. Nothing is written here."""

    tables: Tables
    job: Job

    def position(self) -> Position:
        return _position(self._newest()[1])

    @contextmanager
    def reading(self, cut: Position | None = None) -> Iterator[LakeReader]:
        """Rows as they are, or as they were at `cut`. Raises SnapshotGone, ViewMissing, TokenForeign."""
        snapshot, commit = self._newest()
        table = self.job.sink.table
        reader = self.tables.session.read.option("versionAsOf", snapshot)
        frame = reader.table(self.tables.full(table))
        stands = _position(commit)
        if cut is None or cut == stands:
            yield LakeReader(stands, frame)
            return
        asked = cut.of_topic(self.job.source.topic, _topic_id(commit))
        whole = {partition: asked.get(partition, 0) for partition in commit.end}
        if self.job.sink.mode is not Mode.APPEND or any(at > commit.end[p] for p, at in whole.items()):
            raise SnapshotGone(view=table, kept=f"what it holds at {stands.token()}")
        below = [(F.col(PARTITION) == p) & (F.col(OFFSET) < at) for p, at in whole.items()]
        yield LakeReader(Position({_topic_id(commit): whole}), frame.where(reduce(or_, below)))

    def _newest(self) -> tuple[int, Commit]:
        """The current snapshot, and the job's newest commit: what came between changed no row of it."""
        current: int | None = None
        if self.tables.exists(self.job.sink.table):
            for snapshot, summary in self.tables.snapshots(self.job.sink.table):
                current = snapshot if current is None else current
                commit = Commit.of(summary)
                if commit is not None and commit.job == self.job.name:
                    return current, commit
        raise ViewMissing(view=self.job.sink.table, generation="any")


def _position(commit: Commit) -> Position:
    return Position({_topic_id(commit): dict(commit.end)})


def _topic_id(commit: Commit) -> str:
    """As positions write it; commits have it in hexadecimal digits."""
    return base64.urlsafe_b64encode(bytes.fromhex(commit.topic_id)).decode().rstrip("=")
