"""Recognises events that were applied before, with bounded memory.

Derived events: one high-water mark for each stream. A stream arrives in ascending order, possibly with
repeated ranges and never with a gap (see `penstock.olep.outbox_sender`). An event at or below the mark is
therefore a repeat. There are as many marks as source partitions.

Requests: clients choose their ids, which arrive in any order. The ids of the last `window` requests that
this partition accepted are kept in a ring. A repeat within the window is suppressed and its outcome
reported; a later one is a new request.

Both are rows of the partition's state and are written in its transaction. Storing ids apart from the
effects they guard would lose or double effects in a crash.

Versions of the application: they ascend too, so the version that decides is the mark of the stream
`olep.version`.

Checking an event and recording it are two calls. A fold records an event only once it has been applied,
rejected or skipped. An event at which processing stops leaves no trace, so repaired code applies it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.event import DERIVED, EVENTS_PER_DECISION_MAX, VERSION
from penstock.olep.table import Table

if TYPE_CHECKING:
    from penstock.olep.event import Event
    from penstock.olep.rows import Changes, Reader


class Mark(NamedTuple):
    stream: str
    sequence: int


class Seen(NamedTuple):
    slot: int
    id: str
    at: int  # offset of the first occurrence


_INDEX_BITS: Final = 16  # of a sequence number
_OFFSET_DIGITS_MAX: Final = 14

MARKS: Final = Table("olep_marks", Mark)
SEEN: Final = Table("olep_seen", Seen)


def version_of(reader: Reader) -> int:
    """The version of the application that decides the next event."""
    mark = reader.load(MARKS, VERSION)
    return 1 if mark is None else mark[1]


def split_derived(event_id: str) -> tuple[str, int]:
    """The stream of a derived id, and a number that orders the events of the stream."""
    parts = event_id.rsplit(".", 2)
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal() and event_id.isascii()):
        raise EventUnreadable(reason=f"the derived id {event_id!r} has no offset and index")
    offset, number = parts[1], int(parts[2])
    if len(offset) > _OFFSET_DIGITS_MAX or number >= EVENTS_PER_DECISION_MAX:
        raise EventUnreadable(reason=f"the derived id {event_id!r} is out of range")
    return parts[0], int(offset) << _INDEX_BITS | number


class Deduplication:
    """Which events of one partition are repeats. Used by executors and views alike."""

    def __init__(self, reader: Reader, window: int) -> None:
        self._marks: dict[str, int] = dict(reader.scan(MARKS))
        self._raised: set[str] = set()
        self._checked = ("", "", 0)  # the derived id checked last, with its stream and sequence
        self._slots: dict[int, tuple[int, str, int] | None] = {}
        self._window = window
        seen = [*reader.scan(SEEN)]
        self._first: dict[str, int] = {request_id: at for _, request_id, at in seen}
        self._ids: dict[int, str] = {slot: request_id for slot, request_id, _ in seen}
        self._next = (max(seen, key=lambda row: row[2])[0] + 1) % window if seen else 0
        if self._ids and max(self._ids) >= window:
            self._resize(window)

    def record_version(self, version: int, window: int) -> None:
        """From here on, this version of the application decides, with its window."""
        self._marks[VERSION] = version
        self._raised.add(VERSION)
        if window != self._window:
            self._resize(window)

    def _resize(self, window: int) -> None:
        """Remembers at most `window` requests. If there are more, the newest are kept."""
        kept = sorted(self._first.items(), key=lambda entry: entry[1])[-window:]
        self._slots.update(dict.fromkeys(self._ids))
        self._first, self._ids, self._next, self._window = {}, {}, 0, window
        for request_id, at in kept:
            self._remember(request_id, at)

    def is_repeat(self, event: Event) -> bool:
        """Whether this event was recorded before. Changes nothing. Raises EventUnreadable."""
        event_id = event.id
        if event_id[0] != DERIVED:
            return event_id in self._first
        stream, sequence = split_derived(event_id)
        self._checked = (event_id, stream, sequence)
        return sequence <= self._marks.get(stream, -1)

    def first(self, request_id: str) -> int | None:
        """The offset of the request's first occurrence, or None if its id is not in the window."""
        return self._first.get(request_id)

    def record(self, event: Event) -> None:
        """Marks a new event as applied, rejected or skipped. Never called for one that stops processing."""
        event_id = event.id
        if event_id[0] == DERIVED:
            checked, stream, sequence = self._checked
            if checked is not event_id:
                stream, sequence = split_derived(event_id)
            self._marks[stream] = sequence
            self._raised.add(stream)
        else:
            self._remember(event_id, event.offset)

    def _remember(self, request_id: str, at: int) -> None:
        slot = self._next
        if (forgotten := self._ids.get(slot)) is not None:
            del self._first[forgotten]
        self._ids[slot] = request_id
        self._first[request_id] = at
        self._next = (slot + 1) % self._window
        self._slots[slot] = (slot, request_id, at)

    def changes(self) -> Changes:
        """The rows to write since the last call, by table and key."""
        changes: Changes = {
            MARKS.name: {stream: (stream, self._marks[stream]) for stream in self._raised},
            SEEN.name: dict(self._slots),
        }
        self._raised.clear()
        self._slots.clear()
        return changes
