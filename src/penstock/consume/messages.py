"""Messages between orchestrator and client proxy: commands to the proxy, events from it.

The queues need no bound. Memory limits the batches, one commit is in flight at a time, the proxy
waits for the reply to a rebalance, and `uncommitted_records_max` limits the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.consume.assignment import Assignment
    from penstock.consume.offset_controller import PartitionCommit
    from penstock.consume.record import Output, Record
    from penstock.model.errors.consume import ConsumeError

PartitionId = tuple[str, int]  # topic, partition


# Events: client proxy → orchestrator


class Assigned(NamedTuple):
    assignments: list[Assignment]


class Received(NamedTuple):
    """The records of one poll, grouped by partition, in offset order within each."""

    groups: list[tuple[Assignment, list[Record]]]


class EndReached(NamedTuple):
    """The client reached the end of a partition: nothing is unread below `offset`."""

    assignment: Assignment
    offset: int


class Revoking(NamedTuple):
    """The proxy waits for the CommitRevoked that replies to this, up to a limit."""

    assignments: list[Assignment]


class Lost(NamedTuple):
    """Other members may own these partitions already, so nothing can be committed."""

    assignments: list[Assignment]


class Committed(NamedTuple):
    done: list[PartitionCommit]
    refused: Sequence[tuple[PartitionCommit, str]] = ()


class Delivered(NamedTuple):
    """All outputs of these records are durable."""

    records: list[Record]


class Undelivered(NamedTuple):
    records: list[Record]
    error: ConsumeError


class Failed(NamedTuple):
    """The client proxy ended with an error."""

    error: BaseException


class Ended(NamedTuple):
    """The client proxy closed its clients after a Stop."""


# Commands: orchestrator → client proxy


class Commit(NamedTuple):
    commits: list[PartitionCommit]


class CommitRevoked(NamedTuple):
    """The reply to a rebalance: what to commit before the partitions are given up.

    It is a command among the others, since a transaction must contain the outputs of exactly the
    records whose offsets it commits: those published before this command, none published after.
    """

    revoke: Revoking
    commits: list[PartitionCommit]


class Publish(NamedTuple):
    """Write the outputs of `records`; these records finish when the outputs are durable."""

    records: list[Record]
    outputs: list[Output]


class Stop(NamedTuple):
    """Commit, leave the group and close the clients."""


Event = (
    Assigned | Received | EndReached | Revoking | Lost | Committed | Delivered | Undelivered | Failed | Ended
)
Command = Commit | CommitRevoked | Publish | Stop
