"""Recognize Fetch requests and responses that need no rewriting, without running a splicer.

From version 13 on, topics are identified by ids, so most fetches contain nothing to rewrite: their ids are
known and they carry no tagged fields. The gateway only needs the session id of such a frame, and these
functions return its position. They return 0 for every other frame, which is then spliced: older versions,
forgotten topics, unknown ids, tagged fields (replica state, addresses of leaders), counts of two bytes,
non-canonical lengths, trailing bytes.

A splicer would read such a frame in the same way and leave it unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections import OrderedDict

VERSION_FIRST: Final = 13  # topics have ids
VERSION_LAST: Final = 18
STATE_FIRST: Final = 15  # replicas identify themselves in a tagged field
ID_BYTES: Final = 16
NULL: Final = 0xFFFF  # the length of a null client id
EMPTY: Final = 1  # the compact count of an empty array
LENGTH_FIRST: Final = 128  # that takes more than one byte
CONSUMER: Final = b"\xff\xff\xff\xff"  # the replica id −1

_SIZE_TO_CLIENT: Final = 12  # size, API, version, correlation id
_LIMITS_BYTES: Final = 13  # max wait, min and max bytes, isolation level
_SESSION_BYTES: Final = 8  # id and epoch
# index, leader epoch, offset, fetched epoch, log start, max bytes, no tags
_REQUEST_PARTITION_BYTES: Final = 33
_SIZE_TO_TAGS: Final = 8  # size, correlation id
_THROTTLE_AND_ERROR: Final = 6
_SESSION_ID_BYTES: Final = 4
_RESPONSE_PARTITION_BYTES: Final = 30  # index, error, high watermark, last stable offset, log start
_REPLICA_BYTES: Final = 4


def request_session_at(
    data: bytes, position: int, end: int, version: int, known_ids: OrderedDict[bytes, bytes]
) -> int:
    """The position of the session id in the Fetch request `data[position:end]`, 0 if it must be spliced."""
    if not VERSION_FIRST <= version <= VERSION_LAST:
        return 0
    at = position + _SIZE_TO_CLIENT
    length = data[at] << 8 | data[at + 1]
    at += 2
    if length != NULL:
        at += length
    if at + _LIMITS_BYTES + _SESSION_BYTES >= end or data[at]:
        return 0
    at += 1
    if version < STATE_FIRST:
        if data[at : at + _REPLICA_BYTES] != CONSUMER:
            return 0
        at += _REPLICA_BYTES
    session_at = at + _LIMITS_BYTES
    try:
        at = _request_topics_end(data, session_at + _SESSION_BYTES, known_ids)
        length = data[at + 1]  # of the rack's name
        if not at or data[at] != EMPTY or not EMPTY <= length < LENGTH_FIRST:
            return 0
        at += 1 + length
        return session_at if data[at] == 0 and at + 1 == end else 0
    except IndexError:
        return 0


def request_rack(data: bytes, session_at: int, known_ids: OrderedDict[bytes, bytes]) -> str:
    """The rack that the consumer named (KIP-392), in a request whose session id is there; empty for none."""
    at = _request_topics_end(data, session_at + _SESSION_BYTES, known_ids)
    at += 1  # no forgotten topics
    return data[at + 1 : at + data[at]].decode(errors="replace")


def _request_topics_end(data: bytes, at: int, known_ids: OrderedDict[bytes, bytes]) -> int:
    """Where the topics of a request end, 0 if the request must be spliced."""
    count = data[at]
    at += 1
    if not EMPTY <= count < LENGTH_FIRST:
        return 0
    for _ in range(count - 1):
        partitions = data[at + ID_BYTES]
        if data[at : at + ID_BYTES] not in known_ids or not EMPTY <= partitions < LENGTH_FIRST:
            return 0
        at += ID_BYTES + 1
        for _ in range(partitions - 1):
            at += _REQUEST_PARTITION_BYTES
            if data[at - 1]:
                return 0
        if data[at]:
            return 0
        at += 1
    return at


def response_session_at(data: bytes, position: int, end: int, known_ids: OrderedDict[bytes, bytes]) -> int:
    """The same for the response to a request of such a version."""
    at = position + _SIZE_TO_TAGS
    session_at = at + 1 + _THROTTLE_AND_ERROR
    try:
        if data[at]:
            return 0
        at = _response_topics_end(data, session_at + _SESSION_ID_BYTES, known_ids)
        return session_at if at and data[at] == 0 and at + 1 == end else 0
    except IndexError:
        return 0


def _response_topics_end(data: bytes, at: int, known_ids: OrderedDict[bytes, bytes]) -> int:
    """Where the topics of a response end, 0 if the response must be spliced."""
    count = data[at]
    at += 1
    if not EMPTY <= count < LENGTH_FIRST:
        return 0
    for _ in range(count - 1):
        partitions = data[at + ID_BYTES]
        if data[at : at + ID_BYTES] not in known_ids or not EMPTY <= partitions < LENGTH_FIRST:
            return 0
        at += ID_BYTES + 1
        for _ in range(partitions - 1):
            at += _RESPONSE_PARTITION_BYTES
            if data[at] > EMPTY:  # aborted transactions
                return 0
            length, at = records_length(data, at + 1 + _REPLICA_BYTES)
            if length < 0:
                return 0
            if length:
                at += length - 1
            if data[at]:
                return 0
            at += 1
        if data[at]:
            return 0
        at += 1
    return at


def records_length(data: bytes, at: int) -> tuple[int, int]:
    """The compact length of records and where it ends. 0 is null; -1 if it has more than three bytes, or
    more than necessary."""
    length = data[at]
    at += 1
    if length >= LENGTH_FIRST:
        more = data[at]
        at += 1
        length += (more << 7) - 128
        if more >= LENGTH_FIRST:
            more = data[at]
            at += 1
            length += (more << 14) - 16384
        if not 0 < more < LENGTH_FIRST:
            return -1, at
    return length, at
