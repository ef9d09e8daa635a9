"""Messages between orchestrator and client proxy: commands to the proxy, events from it.

The queues need no bound. Memory limits the batches, one commit is in flight at a time, the proxy
waits for the reply to a rebalance, and `uncommitted_records_max` limits the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.consume.assignment import Assignment
    from penstock.consume.offset_controller import PartitionCommit
    from penstock.consume.record import Output, Record
    from penstock.model.errors.consume import ConsumeError

PartitionId = tuple[str, int]  # topic, partition


# Events: client proxy → orchestrator


@dataclass(frozen=True, slots=True)
class Assigned:
    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class Received:
    """The records of one poll, grouped by partition, in offset order within each."""

    groups: list[tuple[Assignment, list[Record]]]


@dataclass(frozen=True, slots=True)
class EndReached:
    """The client reached the end of a partition: nothing is unread below `offset`."""

    assignment: Assignment
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Revoking:
    """The proxy waits for the CommitRevoked that replies to this, up to a limit."""

    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class Lost:
    """Other members may own these partitions already, so nothing can be committed."""

    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class Committed:
    done: list[PartitionCommit]
    refused: list[tuple[PartitionCommit, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Delivered:
    """All outputs of these records are durable."""

    records: list[Record]


@dataclass(frozen=True, slots=True)
class Undelivered:
    records: list[Record]
    error: ConsumeError


@dataclass(frozen=True, slots=True)
class Failed:
    """The client proxy ended with an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """The client proxy closed its clients after a Stop."""


# Commands: orchestrator → client proxy


@dataclass(frozen=True, slots=True)
class Commit:
    commits: list[PartitionCommit]


@dataclass(frozen=True, slots=True)
class CommitRevoked:
    """The reply to a rebalance: what to commit before the partitions are given up.

    It is a command among the others, since a transaction must contain the outputs of exactly the
    records whose offsets it commits: those published before this command, none published after.
    """

    revoke: Revoking
    commits: list[PartitionCommit]


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the outputs of `records`; these records finish when the outputs are durable."""

    records: list[Record]
    outputs: list[Output]


@dataclass(frozen=True, slots=True)
class Stop:
    """Commit, leave the group and close the clients."""


Event = (
    Assigned | Received | EndReached | Revoking | Lost | Committed | Delivered | Undelivered | Failed | Ended
)
Command = Commit | CommitRevoked | Publish | Stop
