"""Views: what a log says, kept in a store that answers questions well.

What it is: a projection (a pure function from events to rows) applied to a database, a full-text
index, a cache or a warehouse by one runner each, and reads of known consistency: one's own
writes, bounded staleness, linearizable, and snapshots over several views at one position.

What it is not: a second place of truth. A view can be dropped and rebuilt from the log at any
time; nothing is decided on it.

What it promises:
- the events of a partition are applied in log order, each once, and the position is stored with
  the rows in one atomic step: what a reader sees is what the log says at the position it is told;
- rows of one partition depend on that partition alone, so a view at a position is a function of
  the log, equal in every store and after every rebuild (`digest`);
- old versions of rows are kept for some seconds, so that several views answer as of one position.

This module is the contract between runner, readers and stores. `testing` has its tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.model import faults
from penstock.model.errors.olep import DecisionInvalid
from penstock.model.errors.views import SnapshotGone, ViewChanged, ViewReplaced
from penstock.olep.repeats import MARKS, SEEN
from penstock.olep.store import RowsRefused
from penstock.olep.table import Table, check_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from penstock.model.errors import PenstockError
    from penstock.olep.position import Position
    from penstock.olep.table import Key
    from penstock.olep.view.projection import Projection

KEEP_SECONDS: Final = 30.0  # how long a view keeps versions of rows that were replaced
FOREVER: Final = (1 << 63) - 1  # the end of a version that was not replaced

COMMIT_BEFORE = faults.declare("view.commit.before", "a batch is projected, nothing of it is stored")
COMMIT_INSIDE = faults.declare("view.commit.inside", "rows are written, the position is not, no commit")
COMMIT_AFTER = faults.declare("view.commit.after", "a batch is stored with its position, nobody was told")


class SkippedEvent(NamedTuple):
    """An event that the projection could not apply, and went past by its rule."""

    at: int  # its offset
    reason: str
    detail: str


SKIPPED: Final = Table("olep_skipped", SkippedEvent)
LAYER_TABLES: Final[tuple[Table[Any], ...]] = (MARKS, SEEN, SKIPPED)


class Version(NamedTuple):
    """A row from the event at `offset` on, until a later version; none: the key has no row."""

    offset: int
    key: Key
    row: tuple[Any, ...] | None


@dataclass(slots=True)
class Stretch:
    """What a stretch of one partition does to a view."""

    partition: int
    position: int  # the next offset to read
    versions: dict[str, list[Version]] = field(default_factory=dict)  # table → in log order
    layer: dict[str, dict[Any, tuple[Any, ...] | None]] = field(default_factory=dict)  # rows without a past
    applied: int = 0
    repeated: int = 0
    skipped: int = 0
    stopped: PenstockError | None = None  # why the stretch ends before its records did


class ViewReader(Protocol):
    """Rows as of one position, which is part of the answer. Valid within its `with` block."""

    position: Position

    def get(self, table: Table[Any], key: Key) -> list[tuple[int, tuple[Any, ...]]]:
        """(partition, row) for each partition that holds the key."""

    def rows(self, table: Table[Any]) -> Iterable[tuple[int, tuple[Any, ...]]]:
        """All of a table, in any order."""


class ViewStore(Protocol):
    """One generation of a view. Written by one process, read by any number."""

    name: str
    generation: int

    def claim(self) -> dict[int, int]:
        """Takes the view over under a new epoch; where each partition stands. Raises ViewFailed."""

    def load(self, partition: int, table: Table[Any], key: Key) -> tuple[Any, ...] | None: ...

    def scan(self, partition: int, table: Table[Any]) -> Iterable[tuple[Any, ...]]: ...

    def commit(self, stretches: Sequence[Stretch]) -> None:
        """Stores rows and positions, all or nothing. Raises ViewTaken, ViewFailed, RowsRefused.

        A stretch that begins below the stored position is refused: it was applied before."""

    def position(self) -> Position:
        """Where the view stands, as committed. Needs no claim; safe from other threads."""

    def reading(self, cut: Position | None = None) -> AbstractContextManager[ViewReader]:
        """Rows as they are, or as they were at `cut`. Raises SnapshotGone. Safe from other threads."""

    def close(self) -> None: ...


class ViewStores(Protocol):
    """Opens views, and knows their generations. The part of a setting that says where views live."""

    def open(
        self, projection: Projection, topic_id: str, partitions: int, *, generation: int
    ) -> ViewStore: ...

    def generations(self, view: str) -> list[int]: ...

    def serving(self, view: str) -> int | None:
        """The generation that readers are sent to; none before the first run."""

    def serve(self, view: str, generation: int) -> None:
        """Sends readers to another generation, atomically."""

    def drop(self, view: str, generation: int) -> None: ...


def fingerprint(projection: Projection) -> str:
    """What a generation was made by; a changed one needs a rebuild."""
    described = [f"version {projection.version}"]
    for table in sorted(projection.tables, key=lambda table: table.name):
        columns = ",".join(
            f"{name} {kind.__name__}{'?' * optional}" for name, kind, optional in table.columns
        )
        text = ",".join(projection.text.get(table.name, ()))
        described.append(f"{table.name}({columns})/{len(table.key)}{'+' * table.append_only}~{text}")
    return " ".join(described)


def check_made_for(
    view: str, found: tuple[str, str], projection: Projection, topic_id: str, topic: str = "the log"
) -> None:
    """`found`: topic id and fingerprint of a generation that exists."""
    expected = fingerprint(projection)
    if found[1] != expected:
        raise ViewChanged(view=view, found=found[1], expected=expected)
    if found[0] != topic_id:
        raise ViewReplaced(view=view, topic_id=found[0], topic=topic, actual=topic_id)


def check_kept(
    view: str, cut: Mapping[int, int], positions: Mapping[int, int], horizons: Mapping[int, int]
) -> None:
    """Raises SnapshotGone unless the view can answer as of `cut`: it came by, and still keeps it."""
    for partition, position in positions.items():
        asked, horizon = cut.get(partition, 0), horizons.get(partition, 0)
        if not horizon <= asked <= position:
            kept = f"{horizon} to {position} of partition {partition}, asked for {asked}"
            raise SnapshotGone(view=view, kept=kept)


class Horizon:
    """Decides how far back versions are kept: at least `keep_seconds`, with marks a second apart.

    A mark is whatever the store needs to find what is older than it."""

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self._keep = keep_seconds
        self._every = min(1.0, keep_seconds / 4)
        self._marks: list[tuple[float, Any]] = []

    def due(self, now: float) -> bool:
        """Whether a mark should be set."""
        return not self._marks or now - self._marks[-1][0] >= self._every

    def mark(self, now: float, what: Any) -> Any | None:
        """Sets a mark; returns the newest one that nobody may ask behind any more, once."""
        self._marks.append((now, what))
        gone = [index for index, (at, _) in enumerate(self._marks) if now - at > self._keep]
        if not gone:
            return None
        found = self._marks[gone[-1]][1]
        del self._marks[: gone[-1] + 1]
        return found


def check_rows(stretches: Iterable[Stretch], tables: Mapping[str, Table[Any]]) -> None:
    """For stores that would take anything: raises RowsRefused for a row that others could not keep."""
    for stretch in stretches:
        for name, versions in stretch.versions.items():
            for version in versions:
                if version.row is not None:
                    try:
                        check_row(tables[name], version.row)
                    except DecisionInvalid as error:
                        raise RowsRefused(error.message) from error


def replaced(
    versions: Iterable[Version],
) -> tuple[dict[Any, int], list[tuple[Version, int]], dict[Any, Version]]:
    """Splits the versions of a table and partition, in log order, into what a store does with them:
    key → the offset that ended the row stored before; versions that ended within the batch, with
    where; and the last version of each key."""
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
    """One value for a view at a position: equal where every row of every table is."""
    sums = sha256()
    for table in sorted(projection.tables, key=lambda table: table.name):
        sums.update(f"{table.name}\n".encode())
        kinds = [column.type for column in table.columns]
        # A store gives back plain values where memory may still hold a subclass, an enum for instance.
        plain = [
            (partition, [None if value is None else kind(value) for kind, value in zip(kinds, row)])
            for partition, row in reader.rows(table)
        ]
        width = len(table.key)
        for partition, row in sorted(plain, key=lambda each: (each[1][:width], each[0])):
            sums.update(f"{partition} {row!r}\n".encode())
    return sums.hexdigest()
