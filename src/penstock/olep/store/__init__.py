"""Where the state of a partition lives.

One contract: `commit` takes rows, outgoing events and the input position in **one** transaction,
or refuses all of it. There is no call that writes one without the others.

Every take-over of a partition claims a higher epoch. A commit under a lower one is refused, so
that an executor which lost its partition and does not know it yet changes nothing.

`sqlite`: a file for each partition, the default. `postgres`: one database for all of them.
`memory`: for replays and tests.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.model import faults
from penstock.model.errors.olep import LogGrown
from penstock.olep.fold import LAYER_TABLES
from penstock.olep.rows import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.olep.application import Application
    from penstock.olep.fold import Batch, Outgoing
    from penstock.olep.table import Table

COMMIT_BEFORE = faults.declare("olep.commit.before", "a batch is decided, nothing of it is stored")
COMMIT_INSIDE = faults.declare(
    "olep.commit.inside", "rows and outbox are written, the position is not, no commit"
)
COMMIT_AFTER = faults.declare("olep.commit.after", "a batch is stored, nothing of it is sent")


class Claim(NamedTuple):
    """What a store says when an executor takes it over."""

    position: int
    epoch: int


class Unsent(NamedTuple):
    """A batch in the outbox: what the records below `position` caused."""

    position: int
    outgoing: list[Outgoing]


class RowsRefused(Exception):
    """The store cannot keep a row of the batch: a value out of range or of the wrong type."""


class Store(Reader, Protocol):
    name: str

    def claim(self, partitions: int = 0) -> Claim:
        """Takes the partition over under a new epoch. Raises StoreFailed, LogGrown.

        `partitions`: how many the log has, if the caller knows. The first claim that says so is
        remembered, since another number would put keys where their history is not."""

    def commit(self, batch: Batch, *, sent: int) -> None:
        """Stores the batch and drops outbox entries at or below `sent`, all or nothing.

        Raises StoreFenced, StoreFailed, or RowsRefused.
        """

    def position(self) -> int:
        """Where the state stands, as committed. Needs no claim."""

    def unsent(self) -> list[Unsent]: ...

    def close(self) -> None: ...


class Stores(Protocol):
    """Opens the store of a partition. The part of the setting that says where state lives."""

    def open(self, application: Application, topic_id: str, partition: int) -> Store: ...


def log_grown(application: Application, store: str, expected: int, actual: int) -> LogGrown:
    return LogGrown(what=f"the log of {application.name}", store=store, expected=expected, actual=actual)


def all_tables(application: Application) -> tuple[Table[Any], ...]:
    return (*application.tables, *LAYER_TABLES)


def fingerprint(tables: Sequence[Table[Any]]) -> str:
    """What a store was made for; a changed declaration needs a rebuild from the log."""
    described = []
    for table in sorted(tables, key=lambda table: table.name):
        columns = ",".join(
            f"{name} {kind.__name__}{'?' * optional}" for name, kind, optional in table.columns
        )
        described.append(f"{table.name}({columns})/{len(table.key)}")
    return " ".join(described)


def digest(reader: Reader, application: Application) -> str:
    """One value for the whole state: equal where every row of every table is."""
    sums = sha256()
    for table in sorted(all_tables(application), key=lambda table: table.name):
        sums.update(f"{table.name}\n".encode())
        kinds = [column.type for column in table.columns]
        for row in sorted(reader.scan(table), key=table.key_of):
            # A store gives back plain values where memory may still hold a subclass, an enum for instance.
            plain = [None if value is None else kind(value) for kind, value in zip(kinds, row)]
            sums.update(f"{plain!r}\n".encode())
    return sums.hexdigest()
