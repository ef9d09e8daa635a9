"""Knowing an event that was applied before, with bounded memory.

Derived events: one mark a stream. A stream arrives in ascending order, with repeats of a stretch
that was sent before, and never with a gap (see `penstock.olep.sender`), so what is not above the
mark is a repeat. There are as many marks as there are source partitions.

Requests: their ids come from outside in any order, so they are remembered by themselves: the last
`window` of them that this partition accepted, in a ring. A repeat within the window is suppressed
and answered; the window is the documented bound of that promise.

Both are rows of the partition's state and are written in its transaction. A set of ids that is
saved apart from the effects they guard is the classic way to lose money.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.olep.event import split_derived
from penstock.olep.table import Table

if TYPE_CHECKING:
    from penstock.olep.rows import Reader


class Mark(NamedTuple):
    stream: str
    sequence: int


class Seen(NamedTuple):
    slot: int
    id: str
    at: int  # offset of the first occurrence


MARKS: Final = Table("olep_marks", Mark)
SEEN: Final = Table("olep_seen", Seen)


class Marks:
    def __init__(self, reader: Reader) -> None:
        self._sequences = dict(reader.scan(MARKS))
        self._raised: set[str] = set()

    def is_new(self, event_id: str) -> bool:
        """Whether this derived event is above its stream's mark; raises it to there if so."""
        stream, sequence = split_derived(event_id)
        if sequence <= self._sequences.get(stream, -1):
            return False
        self._sequences[stream] = sequence
        self._raised.add(stream)
        return True

    def changes(self) -> dict[str, tuple[str, int]]:
        """Rows to write since the last call."""
        raised = {stream: (stream, self._sequences[stream]) for stream in self._raised}
        self._raised.clear()
        return raised


class Window:
    def __init__(self, reader: Reader, size: int) -> None:
        self._size = size
        self._first: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._changes: dict[int, tuple[int, str, int] | None] = {}
        newest = -1
        self._next = 0
        for slot, request_id, at in reader.scan(SEEN):
            if slot >= size:
                # The window was made smaller: what lies beyond it is forgotten for good.
                self._changes[slot] = None
                continue
            self._first[request_id] = at
            self._ids[slot] = request_id
            if at > newest:
                newest, self._next = at, (slot + 1) % size

    def first(self, request_id: str) -> int | None:
        """The offset at which this request came first, if it is remembered."""
        return self._first.get(request_id)

    def remember(self, request_id: str, at: int) -> None:
        slot = self._next
        if (forgotten := self._ids.get(slot)) is not None:
            del self._first[forgotten]
        self._ids[slot] = request_id
        self._first[request_id] = at
        self._next = (slot + 1) % self._size
        self._changes[slot] = (slot, request_id, at)

    def changes(self) -> dict[int, tuple[int, str, int] | None]:
        """Rows to write since the last call."""
        changes, self._changes = self._changes, {}
        return changes
