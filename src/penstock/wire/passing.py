"""Fetch as it is: whether a request or an answer goes on without a change, seen without a plan's walk.

From version 13 on topics go by their ids, so there is nothing in most fetches to be rewritten: their ids
are known, they carry no tagged fields, and what remains of interest is the session. These functions read
such a frame and say where its session id stands. Every other one gets 0, and is for the walk: older
versions, topics to be forgotten, unknown ids, tagged fields (a replica's state, addresses of leaders),
counts of two bytes, lengths longer than need be, bytes left over.

A frame that passes here is one that a walk would have read the same way and left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections import OrderedDict

VERSION_FIRST: Final = 13  # topics have ids
VERSION_LAST: Final = 18
STATE_FIRST: Final = 15  # who plays replica says so in a tagged field
ID_BYTES: Final = 16
NULL: Final = 0xFFFF  # the length of a client id that is none
EMPTY: Final = 1  # the compact count of an array of none
LENGTH_FIRST: Final = 128  # of what takes more than one byte
CONSUMER: Final = 0xFF  # the first byte of a replica id below 0

_SIZE_TO_CLIENT: Final = 12  # size, API, version, correlation id
_LIMITS_BYTES: Final = 13  # longest wait, fewest and most bytes, isolation level
_SESSION_BYTES: Final = 8  # its id, its epoch
_ASKED_BYTES: Final = 33  # partition, leader epoch, offset, fetched epoch, log start, most bytes, no tags
_SIZE_TO_TAGS: Final = 8  # size, correlation id
_THROTTLE_AND_ERROR: Final = 6
_ID_OF_SESSION: Final = 4
_ANSWERED_BYTES: Final = 30  # partition, error, high watermark, last stable offset, log start
_REPLICA_BYTES: Final = 4  # to be preferred


def request_passes(
    data: bytes, position: int, end: int, version: int, known: OrderedDict[bytes, bytes]
) -> int:
    """Where the session id stands in the Fetch request at `data[position:end]`, 0 if it has to be walked."""
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
        if data[at] != CONSUMER:
            return 0
        at += _REPLICA_BYTES
    session_at = at + _LIMITS_BYTES
    try:
        at = _behind_asked(data, session_at + _SESSION_BYTES, known)
        length = data[at + 1]  # of the rack's name
        if not at or data[at] != EMPTY or not EMPTY <= length < LENGTH_FIRST:
            return 0
        at += 1 + length
        return session_at if data[at] == 0 and at + 1 == end else 0
    except IndexError:
        return 0


def _behind_asked(data: bytes, at: int, known: OrderedDict[bytes, bytes]) -> int:
    """What follows the topics of a request, 0 if there is anything to be looked at in them."""
    count = data[at]
    at += 1
    if not EMPTY <= count < LENGTH_FIRST:
        return 0
    for _ in range(count - 1):
        partitions = data[at + ID_BYTES]
        if data[at : at + ID_BYTES] not in known or not EMPTY <= partitions < LENGTH_FIRST:
            return 0
        at += ID_BYTES + 1
        for _ in range(partitions - 1):
            at += _ASKED_BYTES
            if data[at - 1]:
                return 0
        if data[at]:
            return 0
        at += 1
    return at


def answer_passes(data: bytes, position: int, end: int, known: OrderedDict[bytes, bytes]) -> int:
    """Likewise in an answer to a request of such a version."""
    at = position + _SIZE_TO_TAGS
    session_at = at + 1 + _THROTTLE_AND_ERROR
    try:
        if data[at]:
            return 0
        at = _behind_answered(data, session_at + _ID_OF_SESSION, known)
        return session_at if at and data[at] == 0 and at + 1 == end else 0
    except IndexError:
        return 0


def _behind_answered(data: bytes, at: int, known: OrderedDict[bytes, bytes]) -> int:
    """What follows the topics of an answer, 0 if there is anything to be looked at in them."""
    count = data[at]
    at += 1
    if not EMPTY <= count < LENGTH_FIRST:
        return 0
    for _ in range(count - 1):
        partitions = data[at + ID_BYTES]
        if data[at : at + ID_BYTES] not in known or not EMPTY <= partitions < LENGTH_FIRST:
            return 0
        at += ID_BYTES + 1
        for _ in range(partitions - 1):
            at += _ANSWERED_BYTES
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
    """The compact length of records, and where it ends; -1 if it takes more bytes than three, or than it
    should. 0 is null."""
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
