"""The state of one partition while this member owns it.

Every record refers to the assignment it was received under. Once the partition is revoked or lost,
that assignment stays dead. A late result then changes nothing, even if the partition has meanwhile
come back under a new assignment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.model import offset_map

if TYPE_CHECKING:
    from penstock.consume.record import Record
    from penstock.model.offset_map import OffsetMap


@dataclass(slots=True, eq=False, repr=False)
class Assignment:
    """One partition: its offsets, the queue of each key, and its counters."""

    topic: str
    partition: int
    epoch: int
    stored: InitVar[int | None] = None  # the offset and metadata that Kafka stored before
    metadata: InitVar[str | None] = None
    delay_seconds: float = 0.0  # of a delayed-retry topic: a record waits this long after it was written

    live: bool = True
    closing: bool = False  # being revoked: running handlers may finish, no record is started
    # Insertion order is offset order, so the first key is the first unfinished offset.
    unfinished: dict[int, Record] = field(default_factory=dict)
    position: int = -1  # every offset below was received or is done
    highest_finished: int = -1  # the highest offset that is done
    committed: int = -1  # the offset Kafka stores
    committed_metadata: str = ""
    restored_map: OffsetMap | None = None
    finished: int = 0  # records; and how many of them a commit covers
    finished_committed: int = 0
    # By queue key. Absent: no record runs. None: one runs, none waits. Else: the records that wait.
    queues: dict[Any, deque[Record] | None] = field(default_factory=dict)
    ready: deque[Record] = field(default_factory=deque)
    # Received, but not yet startable: the offset map is full, or their delay has not passed.
    waiting_for_map: deque[Record] = field(default_factory=deque)
    in_flight: int = 0  # records being handled, or whose outputs are being written
    bytes_unfinished: int = 0
    finished_counted: int = 0  # parts of `finished` and `bytes_unfinished` already in the totals
    bytes_counted: int = 0
    # Fetching, controlled by the client proxy.
    paused: str | None = None  # the reason, when fetching is paused
    over_share_since: float | None = None
    polled: int = 0  # records the proxy sent, and records the orchestrator received
    received: int = 0
    polled_end: int = -1  # the proxy has read up to this offset

    def __post_init__(self, stored: int | None, metadata: str | None) -> None:
        self.committed_metadata = metadata or ""
        if stored is not None:
            self.position = self.committed = stored
            self.restored_map = offset_map.decode(stored, metadata)

    @property
    def key(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}] epoch {self.epoch}{'' if self.live else ' (revoked)'}"
