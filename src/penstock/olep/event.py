"""Events and their ids.

An id is one of two kinds. A request comes from outside with an id its caller made, and may be
repeated by that caller. Everything an executor emits has a derived id, a function of where its
cause stands in the log:

    =payments:Yq0Zs1h2TKqj3r8vXw5mBA.3.1042.0
     │        │                      │ │    └ index among the events of that decision
     │        │                      │ └ offset of the cause
     │        │                      └ partition of the cause
     │        └ id of the cause's topic, so that a topic created anew begins a new stream
     └ the application that decided, since two of them may read one log

All up to the partition is the stream. An executor emits a stream in ascending order and resends
it from a point that was acknowledged, so a receiver needs one number a stream to know a repeat.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.model.errors.olep import EventIdInvalid, EventUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST_ID_LENGTH_MAX: Final = 200  # characters
EVENTS_PER_DECISION_MAX: Final = 1 << 16  # the index takes 16 bits of a sequence number
DERIVED: Final = "="
RESERVED: Final = "olep."  # types the layer itself emits and understands

REPEATED: Final = "olep.repeated"  # payload: offset of the first occurrence of this request
REJECTED: Final = "olep.rejected"  # payload: reason, detail, offset
RETRY: Final = "olep.retry"  # payload: offset of a rejected event of the same partition

_INDEX_BITS: Final = 16
_ESCAPED: Final = re.compile(r'[^ -~]|["\\/]')  # what JSON may write in more than one way
_REQUEST_ID: Final = re.compile(rf"[^\x00-\x1f\x7f=][^\x00-\x1f\x7f]{{0,{REQUEST_ID_LENGTH_MAX - 1}}}")


class Event(NamedTuple):
    """One event as an application sees it. The last three fields say where it stands in its log."""

    id: str
    type: str
    payload: Mapping[str, Any]
    version: int = 1
    cause: str | None = None  # id of the event that led to this one; none for a request
    request: str = ""  # id of the request that began the chain
    time: int = 0  # milliseconds since 1970, of the request; handed on to all it causes
    key: str = ""  # the logical log
    partition: int = -1
    offset: int = -1


class Record(NamedTuple):
    """What a partition holds: bytes, and where they stand."""

    offset: int
    key: bytes | None
    value: bytes | None


def request(request_id: str, kind: str, payload: Mapping[str, Any], *, time: int, version: int = 1) -> Event:
    """An event from outside, checked."""
    if request_id[:1] == DERIVED:
        raise EventIdInvalid(value=request_id, reason="it begins with `=`, which marks derived ids")
    if not _REQUEST_ID.fullmatch(request_id):
        raise EventIdInvalid(value=request_id, reason="wrong length or characters")
    try:
        request_id.encode()
    except UnicodeEncodeError as error:
        raise EventIdInvalid(value=request_id, reason="it is not Unicode text") from error
    return Event(request_id, kind, payload, version, request=request_id, time=time)


def stream_of(application: str, topic_id: str, partition: int) -> str:
    return f"{DERIVED}{application}:{topic_id}.{partition}"


def derived_id(stream: str, offset: int, index: int) -> str:
    return f"{stream}.{offset}.{index}"


def sequence_of(offset: int, index: int) -> int:
    """One number that orders the events of a stream."""
    return offset << _INDEX_BITS | index


def split_derived(event_id: str) -> tuple[str, int]:
    """The stream and the sequence number of a derived id."""
    try:
        stream, offset, index = event_id.rsplit(".", 2)
    except ValueError:
        stream = offset = index = ""
    if not (offset.isdecimal() and index.isdecimal() and event_id.isascii()):
        raise EventUnreadable(reason=f"the derived id {event_id!r} has no offset and index")
    number = int(index)
    if len(offset) > 14 or number >= EVENTS_PER_DECISION_MAX:
        raise EventUnreadable(reason=f"the derived id {event_id!r} is out of range")
    return stream, int(offset) << _INDEX_BITS | number


def needle_of(request_id: str) -> bytes:
    """Bytes that every JSON event of this request holds: what a scan may look for before it decodes."""
    return b"" if _ESCAPED.search(request_id) else request_id.encode()
