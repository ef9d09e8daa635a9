"""Views: the content of a log, projected into stores that are good at queries.

What it is: a projection (a pure function from events to rows) applied to a database, a full-text index or a
cache, by one runner each. Reads have a known consistency: read-your-writes, bounded
staleness, linearizable, or a snapshot of several views at one position.

What it is not: a source of truth. A view can be dropped and rebuilt from the log at any time, and no
decision is based on it.

What it promises:
- the events of a partition are applied in log order, each once, and the position is stored atomically with
  the rows: a reader sees exactly the log up to the position that the reader reports;
- rows of a partition depend on that partition alone, so a view at a position is a function of the log: the
  same in every store and after every rebuild (`digest`);
- previous versions of rows are retained for some seconds, so several views can be read at one position.

This module is the contract between runner, readers and stores; `testing` has its tests.

Modules:
  consistent_reads   reads of one view: latest, after a token, fresh, linearizable
  fold               turns a range of records into versions of rows
  position_waiters   readers that wait for a view to reach a position
  projection         what a projection declares
  rebuild            rebuilds a view into a new generation while the old one serves
  runner             follows a log and writes one view
  settings           the settings file of a view
  snapshot_position  finds the newest position at which all views are consistent
  snapshot_reads     reads of several views as of one position
  stores             where views are stored
  testing            contract tests that every view store must pass
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.model import fault_points
from penstock.model.errors.olep import DecisionInvalid
from penstock.olep.deduplication import MARKS, SEEN
from penstock.olep.store import RowsRefused
from penstock.olep.table import Table, check_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from penstock.model.errors import PenstockError
    from penstock.olep.position import Position
    from penstock.olep.table import Key
    from penstock.olep.view.projection import Projection

KEEP_SECONDS: Final = 30.0  # how long a view retains replaced versions of rows
FOREVER: Final = (1 << 63) - 1  # end of a version that was not replaced

COMMIT_BEFORE = fault_points.declare("view.commit.before", "a batch is projected and not stored")
COMMIT_INSIDE = fault_points.declare("view.commit.inside", "rows are written; position and commit are not")
COMMIT_AFTER = fault_points.declare(
    "view.commit.after", "a batch is stored with its position, no waiter is notified"
)


class SkippedEvent(NamedTuple):
    """An event that the projection could not apply and skipped by its policy."""

    at: int  # its offset
    reason: str
    detail: str


SKIPPED: Final = Table("olep_skipped", SkippedEvent)
INTERNAL_TABLES: Final[tuple[Table[Any], ...]] = (MARKS, SEEN, SKIPPED)


class Version(NamedTuple):
    """A row, valid from the event at `offset` until the next version. None: the row was removed."""

    offset: int
    key: Key
    row: tuple[Any, ...] | None


@dataclass(slots=True)
class ViewBatch:
    """The changes that a range of records of one partition makes to a view."""

    partition: int
    start: int  # the position that the batch continues from
    position: int  # the next offset to read
    versions: dict[str, list[Version]] = field(default_factory=dict)  # table → versions in log order
    # Rows of internal tables, which have no history.
    internal: dict[str, dict[Any, tuple[Any, ...] | None]] = field(default_factory=dict)
    applied: int = 0
    repeated: int = 0
    skipped: int = 0
    stopped: PenstockError | None = None  # why the batch ends before the last record


class ViewReader(Protocol):
    """Rows as of `position`. Valid within its `with` block."""

    position: Position

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        """(partition, row) for each partition that has the key."""

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        """All rows of a table, in any order."""


class ViewStore(Protocol):
    """One generation of a view. One process writes it; any number read it."""

    name: str
    generation: int

    def claim(self) -> dict[int, int]:
        """Takes over the view under a new epoch; returns partition → position. Raises ViewFailed.

        The epoch is a positive number; that of a retired generation is negative."""

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None: ...

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]: ...

    def commit(self, batches: Sequence[ViewBatch]) -> None:
        """Stores rows and positions atomically, with at most one batch for each partition.

        Compares and sets: unless every batch starts at the stored position, nothing is applied. Raises
        ViewMoved then; ViewFenced if another writer has claimed the view, ViewRetired if it was retired
        since the claim; ViewFailed, RowsRefused."""

    def position(self) -> Position:
        """The committed position. Needs no claim; safe from other threads."""

    def reading(self, as_of: Position | None = None) -> AbstractContextManager[ViewReader]:
        """The rows now, or as of a position. Raises SnapshotUnavailable. Safe from other threads."""

    def close(self) -> None: ...


class ViewStores(Protocol):
    """Opens views and manages their generations."""

    def open(
        self, projection: Projection, topic_id: str, partitions: int, *, generation: int
    ) -> ViewStore: ...

    def generations(self, view: str) -> list[int]: ...

    def serving(self, view: str) -> int | None:
        """The generation that readers use; None before the first run."""

    def serve(self, view: str, generation: int) -> None:
        """Switches readers and writers to another generation, atomically."""

    def retire(self, view: str, generation: int) -> Position:
        """Ends writing to a generation until it is claimed; returns its position. Raises ViewMissing."""

    def drop(self, view: str, generation: int) -> None: ...


def fingerprint(projection: Projection) -> str:
    """Describes the projection that builds a generation; if it changes, the view must be rebuilt."""
    described = [f"version {projection.version}"]
    for table in sorted(projection.tables, key=lambda table: table.name):
        text = ",".join(projection.text.get(table.name, ()))
        described.append(f"{table.described()}{'+' * table.append_only}~{text}")
    return " ".join(described)


class Horizon:
    """Decides how far back versions are retained: at least `keep_seconds`, by marks about a second apart.

    A mark is a value by which the store can find everything older."""

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self._keep = keep_seconds
        self._every = min(1.0, keep_seconds / 4)
        self._marks: list[tuple[float, Any]] = []

    def due(self, now: float) -> bool:
        """Whether it is time to set a mark."""
        return not self._marks or now - self._marks[-1][0] >= self._every

    def mark(self, now: float, mark: Any) -> Any | None:
        """Sets a mark. Returns the newest expired mark, once: anything older may be deleted."""
        self._marks.append((now, mark))
        expired = [index for index, (at, _) in enumerate(self._marks) if now - at > self._keep]
        if not expired:
            return None
        horizon = self._marks[expired[-1]][1]
        del self._marks[: expired[-1] + 1]
        return horizon


def check_rows(batches: Iterable[ViewBatch], tables: Mapping[str, Table[Any]]) -> None:
    """For stores that accept any value: raises RowsRefused for a row that other stores refuse."""
    for batch in batches:
        for name, versions in batch.versions.items():
            for version in versions:
                if version.row is not None:
                    try:
                        check_row(tables[name], version.row)
                    except DecisionInvalid as error:
                        raise RowsRefused(error.message) from error


def split_versions(
    versions: Iterable[Version],
) -> tuple[dict[Any, int], list[tuple[Version, int]], dict[Any, Version]]:
    """Splits the versions of a table and partition by what a store does with them:

    key → the offset that ends the stored row; versions that end within the batch, with that offset; and
    the last version of each key."""
    first: dict[Any, int] = {}
    ended: list[tuple[Version, int]] = []
    last: dict[Any, Version] = {}
    for version in versions:
        offset, key, _ = version
        before = last.get(key)
        if before is None:
            first[key] = offset
        elif before.row is not None and before.offset < offset:
            ended.append((before, offset))
        last[key] = version
    return first, ended, last


def digest(reader: ViewReader, projection: Projection) -> str:
    """A hash of a view at a position: equal if every row of every table is."""
    sums = sha256()
    for table in sorted(projection.tables, key=lambda table: table.name):
        sums.update(f"{table.name}\n".encode())
        plain = [(partition, table.plain(row)) for partition, row in reader.rows(table)]
        width = len(table.key)
        for partition, row in sorted(plain, key=lambda each: (each[1][:width], each[0])):
            sums.update(f"{partition} {row!r}\n".encode())
    return sums.hexdigest()
