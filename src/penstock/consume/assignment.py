"""One partition for as long as this member holds it.

An Assignment is the epoch of everything received from it: every record points at the assignment
it came by, and when the partition goes, that assignment is dead for good. A result that comes in
late finds a dead assignment and changes nothing, even if the partition has come back meanwhile
under a new one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.model import offsetmap

if TYPE_CHECKING:
    from penstock.consume.record import Record


class Assignment:
    """The state of one partition: what was received, what is unfinished, what waits for whom."""

    __slots__ = (
        "booked",
        "bytes_booked",
        "bytes_unfinished",
        "closing",
        "committed",
        "committed_metadata",
        "covered",
        "crowded_since",
        "epoch",
        "finished",
        "handed",
        "held",
        "lanes",
        "live",
        "partition",
        "paused",
        "position",
        "ready",
        "received",
        "resumed",
        "started",
        "top",
        "topic",
        "unfinished",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        epoch: int,
        committed: int | None = None,
        metadata: str | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.epoch = epoch
        self.live = True
        self.closing = False  # about to go: what runs may finish, nothing more is started
        # Offsets. Insertion order is offset order, so the first key is the first unfinished offset.
        self.unfinished: dict[int, Record] = {}
        self.position = -1 if committed is None else committed  # everything below was received or is done
        self.top = -1  # highest offset finished
        self.committed = self.position  # what Kafka has
        self.committed_metadata = metadata or ""
        self.resumed = None if committed is None else offsetmap.decode(committed, metadata)
        self.finished = 0  # records finished, and how many of them a commit has covered
        self.covered = 0
        # Scheduling. A lane that is absent is free; None: taken, nobody waits; else those who wait.
        self.lanes: dict[Any, deque[Record] | None] = {}
        self.ready: deque[Record] = deque()
        self.held: deque[Record] = deque()  # received, but the offset map has no room for them yet
        self.started = 0  # records in runners' hands, or being written
        self.bytes_unfinished = 0
        self.booked = 0  # how much of `finished` and of `bytes_unfinished` the totals know of
        self.bytes_booked = 0
        # Intake, steered by the client proxy.
        self.paused: str | None = None  # the reason, when fetching is paused
        self.crowded_since: float | None = None
        self.handed = 0  # records that the proxy sent, and that the orchestrator took in
        self.received = 0

    @property
    def key(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}] epoch {self.epoch}{'' if self.live else ' (gone)'}"
