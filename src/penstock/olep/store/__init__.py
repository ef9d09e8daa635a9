"""Where the state of a partition is stored.

What it is: stores with one contract. `commit` writes rows, outgoing events and the input position in
**one** transaction, or refuses all of it. No call writes one without the others.

What it is not: a cache, or a view. Only the executor that owns the partition writes it.

What it promises: every take-over of a partition claims a higher epoch, and a commit under a lower epoch is
refused. An executor that lost its partition without knowing it changes nothing.

Modules:
  memory    in dictionaries, for replays and tests
  postgres  one PostgreSQL database for all partitions
  sqlite    one SQLite file for each partition; the default
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.model import fault_points
from penstock.model.errors.olep import LogGrown, LogReplaced, StoreFenced
from penstock.olep.fold import INTERNAL_TABLES
from penstock.olep.rows import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch, Outgoing
    from penstock.olep.table import Table

COMMIT_BEFORE = fault_points.declare("olep.commit.before", "a batch is decided and not stored")
COMMIT_INSIDE = fault_points.declare(
    "olep.commit.inside", "rows and outbox are written; position and commit are not"
)
COMMIT_AFTER = fault_points.declare("olep.commit.after", "a batch is stored, none of its events is sent")


class Claim(NamedTuple):
    """The result of taking over a store."""

    position: int
    epoch: int


class Unsent(NamedTuple):
    """A batch in the outbox: events caused by records below `position`."""

    position: int
    outgoing: list[Outgoing]


class RowsRefused(Exception):
    """The store cannot store a row of the batch: a value is out of range or of the wrong type."""


class Store(Reader, Protocol):
    name: str
    partition: int

    def claim(self, partitions: int = 0) -> Claim:
        """Takes over the partition under a new epoch. Raises StoreFailed, LogGrown.

        `partitions` is the log's number of partitions, 0 if unknown. The first number is stored, and any
        other is refused later: it would separate keys from their history."""

    def commit(self, batch: Batch, *, sent: int) -> None:
        """Stores the batch and deletes outbox entries at or below `sent`, atomically.

        Only if the store is at the batch's start, under this owner's epoch: a store that was rolled back
        would otherwise skip what is between. Raises StoreFenced, StoreFailed, or RowsRefused."""

    def position(self) -> int:
        """The committed position. Needs no claim."""

    def unsent(self) -> list[Unsent]: ...

    def close(self) -> None: ...


class Stores(Protocol):
    """Opens the store of a partition."""

    def open(self, application: Application, topic_id: str, partition: int) -> Store: ...


def log_grown(application: Application, store: str, expected: int, actual: int) -> LogGrown:
    return LogGrown(what=f"the log of {application.name}", store=store, expected=expected, actual=actual)


def log_replaced(application: Application, store: str, topic_id: str, actual: str) -> LogReplaced:
    topic = f"the log of {application.name}"
    return LogReplaced(store=store, topic_id=topic_id, topic=topic, actual=actual)


def fenced(store: Store, expected: tuple[int, int], actual: tuple[int, int] | None) -> StoreFenced:
    """The error of a store whose epoch and position are not those of its owner."""
    described = ["epoch {} at position {}".format(*each) if each else "none" for each in (expected, actual)]
    return StoreFenced(
        partition=store.partition, store=store.name, expected=described[0], actual=described[1]
    )


def all_tables(application: Application) -> tuple[Table[Any], ...]:
    return (*application.tables, *INTERNAL_TABLES)


def fingerprint(tables: Sequence[Table[Any]]) -> str:
    """Describes the tables of a store; if they change, it must be rebuilt from the log."""
    return " ".join(table.described() for table in sorted(tables, key=lambda table: table.name))


def digest(reader: Reader, application: Application) -> str:
    """A hash of the whole state: equal if every row of every table is."""
    sums = sha256()
    for table in sorted(all_tables(application), key=lambda table: table.name):
        sums.update(f"{table.name}\n".encode())
        for row in sorted(reader.scan(table), key=table.key_of):
            sums.update(f"{table.plain(row)!r}\n".encode())
    return sums.hexdigest()
