"""Reads a job's table as a view of its log: its position, and its rows as of a position.

Each commit stores its offset range, so a table's position is atomic with its rows, as in any view
(`penstock.olep.view`). Its positions compare and combine with those of other views, and they accept its
tokens: you can read the lake as of the same position that a cache shows.

An appended table keeps partition and offset of every record, so it can be read as of any past position.
An upserted table keeps its history only in Iceberg snapshots, so it is read at its current position.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from penstock.model.errors.views import SnapshotUnavailable, ViewMissing
from penstock.olep.position import Position
from penstock.pipeline.job import Mode
from penstock.pipeline.lake.columns import OFFSET, PARTITION
from penstock.pipeline.lake.ledger import Commit, kafka_topic_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from penstock.pipeline.job import Job
    from penstock.pipeline.lake.tables import Tables


@dataclass(frozen=True, slots=True)
class LakeReader:
    """A frame with the rows as of one position. Later commits do not show."""

    position: Position
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class LakeView:
    """The table that a job writes, read-only."""

    tables: Tables
    job: Job

    def position(self) -> Position:
        return _position(self._newest()[1])

    @contextmanager
    def reading(self, as_of: Position | None = None) -> Iterator[LakeReader]:
        """The current rows, or those as of `as_of`. Raises SnapshotUnavailable, ViewMissing, TokenForeign."""
        snapshot, commit = self._newest()
        table = self.job.sink.table
        reader = self.tables.session.read.option("versionAsOf", snapshot)
        frame = reader.table(self.tables.qualified(table))
        current = _position(commit)
        if as_of is None or as_of == current:
            yield LakeReader(current, frame)
            return
        topic_id = kafka_topic_id(commit.topic_id)
        requested = as_of.of_topic(self.job.source.topic, topic_id)
        offsets = {partition: requested.get(partition, 0) for partition in commit.end}
        if self.job.sink.mode is not Mode.APPEND or any(at > commit.end[p] for p, at in offsets.items()):
            raise SnapshotUnavailable(view=table, retained=f"what it holds at {current.token()}")
        below = [(F.col(PARTITION) == p) & (F.col(OFFSET) < at) for p, at in offsets.items()]
        yield LakeReader(Position({topic_id: offsets}), frame.where(reduce(or_, below)))

    def _newest(self) -> tuple[int, Commit]:
        """The current snapshot and the job's newest commit; commits in between change none of its rows."""
        current: int | None = None
        if self.tables.exists(self.job.sink.table):
            for snapshot, summary in self.tables.snapshots(self.job.sink.table):
                current = snapshot if current is None else current
                commit = Commit.of(summary)
                if commit is not None and commit.job == self.job.name:
                    return current, commit
        raise ViewMissing(view=self.job.sink.table, generation="any")


def _position(commit: Commit) -> Position:
    return Position({kafka_topic_id(commit.topic_id): dict(commit.end)})
