"""What the roles say to each other. Commands go to the client proxy, events come from it.

Mailboxes are bounded by what they carry: batches by the room the proxy was given, commits by one
under way at a time, rebalances by the proxy waiting for the answer, outputs by the exposure.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.consume.assignment import Assignment
    from penstock.consume.offsets import Mark
    from penstock.consume.record import Output, Record
    from penstock.model.errors.consume import ConsumeError

Place = tuple[str, int]  # topic, partition


# Events: client proxy → orchestrator


@dataclass(frozen=True, slots=True)
class Assigned:
    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class Received:
    """One poll's worth, grouped by partition, in offset order within each."""

    groups: list[tuple[Assignment, list[Record]]]


@dataclass(frozen=True, slots=True)
class Reached:
    """The end of a partition, for now: nothing unread below `offset`."""

    assignment: Assignment
    offset: int


class Answer:
    """What the orchestrator wants committed before partitions go; the proxy waits for it, up to a limit."""

    def __init__(self) -> None:
        self.given = threading.Event()
        self.marks: list[Mark] = []

    def give(self, marks: list[Mark]) -> None:
        self.marks = marks
        self.given.set()


@dataclass(frozen=True, slots=True)
class Revoking:
    assignments: list[Assignment]
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, slots=True)
class Lost:
    """Gone without warning: others may own them already, so nothing can be committed."""

    assignments: list[Assignment]


@dataclass(frozen=True, slots=True)
class Committed:
    done: list[Mark]
    refused: list[tuple[Mark, str]] = field(default_factory=list)


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
    """The client proxy has ended."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Ended:
    """The client proxy has closed its clients, as told."""


# Commands: orchestrator → client proxy


@dataclass(frozen=True, slots=True)
class Commit:
    marks: list[Mark]


@dataclass(frozen=True, slots=True)
class Publish:
    """Write these outputs; they belong to `records`, which are not finished before they are durable."""

    records: list[Record]
    outputs: list[Output]


@dataclass(frozen=True, slots=True)
class Stop:
    flush: bool = True


Event = Assigned | Received | Reached | Revoking | Lost | Committed | Delivered | Undelivered | Failed | Ended
Command = Commit | Publish | Stop
