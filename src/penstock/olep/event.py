"""Events and their ids.

There are two kinds of ids. A request comes from a client, which chooses the id and may repeat it. An
event that an executor emits has a derived id, a function of the log position of its cause:

    =payments:Yq0Zs1h2TKqj3r8vXw5mBA.3.1042.0
     │        │                      │ │    └ index among the events of that decision
     │        │                      │ └ offset of the cause
     │        │                      └ partition of the cause
     │        └ topic id of the cause, so that a recreated topic starts a new stream
     └ the application that decided, since several may read one log

Everything up to the partition is the stream. An executor emits a stream in ascending order and resends it
from an acknowledged position, so a receiver recognises repeats by one number for each stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - Event's fields are resolved at run time
from typing import Annotated, Any, Final, Self

import msgspec

from penstock.model.errors.olep import EventIdInvalid

REQUEST_ID_LENGTH_MAX: Final = 200  # characters
EVENTS_PER_DECISION_MAX: Final = 1 << 16  # the index takes 16 bits of a sequence number
DERIVED: Final = "="
RESERVED: Final = "olep."  # prefix of the types that this package emits and handles

REPEATED: Final = "olep.repeated"  # payload: offset of the first occurrence of this request
REJECTED: Final = "olep.rejected"  # payload: reason, detail, offset
RETRY: Final = "olep.retry"  # payload: offset of a rejected event of the same partition
VERSION: Final = "olep.version"  # payload: application, and its version that decides from here on

_ID_LENGTH_MAX: Final = REQUEST_ID_LENGTH_MAX + 200  # a derived id is longer than a request's
_ESCAPED: Final = re.compile(r'[^ -~]|["\\/]')  # characters that JSON can write in several ways
_REQUEST_ID: Final = re.compile(rf"[^\x00-\x1f\x7f=][^\x00-\x1f\x7f]{{0,{REQUEST_ID_LENGTH_MAX - 1}}}")


class Value(msgspec.Struct, frozen=True):
    """An immutable value. Creating and reading one costs a fraction of a NamedTuple."""

    def _replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)


class Event(Value, frozen=True):
    """One event as an application sees it. The last three fields locate it in its log."""

    id: str
    type: str
    payload: Mapping[str, Any]
    version: int = 1
    cause: str | None = None  # id of the event that caused this one; None for a request
    request: str = ""  # id of the request that started the chain
    time: int = 0  # of the request, in milliseconds since 1970; passed on to all events it causes
    key: str = ""  # the logical log
    partition: int = -1
    offset: int = -1


class Envelope(msgspec.Struct, omit_defaults=True):
    """The JSON form, with its fields in the order they are written."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=_ID_LENGTH_MAX)]
    v: Annotated[int, msgspec.Meta(ge=1)]
    time: int
    payload: dict[str, Any]
    cause: str | None = None
    request: str | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a partition, as bytes."""

    offset: int
    key: bytes | None
    value: bytes | None


def request(request_id: str, kind: str, payload: Mapping[str, Any], *, time: int, version: int = 1) -> Event:
    """A request, with its id checked. Raises EventIdInvalid."""
    if request_id[:1] == DERIVED:
        raise EventIdInvalid(value=request_id, reason="it starts with `=`, which marks derived ids")
    if not _REQUEST_ID.fullmatch(request_id):
        raise EventIdInvalid(value=request_id, reason="wrong length or characters")
    try:
        if not request_id.isascii():
            request_id.encode()
    except UnicodeEncodeError as error:
        raise EventIdInvalid(value=request_id, reason="it is not Unicode text") from error
    return Event(request_id, kind, payload, version, None, request_id, time)


def stream_of(application: str, topic_id: str, partition: int) -> str:
    return f"{DERIVED}{application}:{topic_id}.{partition}"


def derived_id(stream: str, offset: int, index: int) -> str:
    return f"{stream}.{offset}.{index}"


def needle_of(request_id: str) -> bytes:
    """Bytes that every JSON event of this request contains, to search for before decoding; may be empty."""
    return b"" if _ESCAPED.search(request_id) else request_id.encode()
