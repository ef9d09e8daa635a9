"""Produce by heart: the shape of a request that producers send over and over, and of its answer.

A producer's requests differ in their number and their records, and often in nothing else: librdkafka
sends one partition a request. So the bytes around the holes can be compared with those of a request
that was walked before, which costs a fraction of walking them again. This module finds the holes. It
knows one shape only: a flexible version, one topic, one partition, no tagged fields; everything else
is for the walk.

    request:  size · API, version · number | client id … partition index | records | three empty tag sections
    answer:   size · number                | topic … error code 0        | base offset | times … tags

Equal bytes are walked equally. The head of a request ends where the length of the records begins, as
the walk below has read it field by field; if another frame begins with the same head, its records
have the length it says, and exactly three zero bytes follow them, then a walk of it would read the
same fields in the same places.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.wire.primitives import Malformed, read_uvarint

FLEXIBLE_FIRST: Final = 9  # of Produce
IDS_FIRST: Final = 13
HEAD_AT: Final = 12  # behind size, API, version and correlation id
ANSWER_AT: Final = 8  # behind size and correlation id
TAGS_EMPTY: Final = bytes(3)  # of the partition, the topic and the request
ONE: Final = 2  # the compact count of an array of one
ID_BYTES: Final = 16

_client_id = struct.Struct(">h").unpack_from
_acks_and_timeout = struct.Struct(">hi").unpack_from
_index = struct.Struct(">i").unpack_from
_partition = struct.Struct(
    ">ihqqqBBBBiB"
).unpack_from  # index, error, offset, time, start, errors, text, tags
_PARTITION_BYTES: Final = struct.calcsize(">ihqqqBBBBiB")
_BASE_OFFSET_AT: Final = 6  # in it


@dataclass(frozen=True, slots=True)
class RequestShape:
    records_at: int  # from the start of the frame: where the length of the records stands
    acks: int
    topic: bytes  # its name, or its id
    index: int


@dataclass(frozen=True, slots=True)
class AnswerShape:
    offset_at: int  # from the start of the frame: the base offset, eight bytes
    topic: bytes
    index: int
    log_start: int


def request_shape(data: bytes, position: int, end: int, version: int) -> RequestShape | None:
    """The shape of the Produce request at `data[position:end]`; None if it is any other than this one."""
    if version < FLEXIBLE_FIRST:
        return None
    try:
        at = position + HEAD_AT
        (length,) = _client_id(data, at)
        at += 2 + max(length, 0)
        if data[at]:
            return None
        length, at = read_uvarint(data, at + 1)
        at += max(length - 1, 0)
        acks, _ = _acks_and_timeout(data, at)
        at += 6
        topic, at = _only_topic(data, at, version)
        if topic is None or data[at] != ONE:
            return None
        (index,) = _index(data, at + 1)
        at += 5
        length, behind = read_uvarint(data, at)
    except (IndexError, struct.error, Malformed):
        return None
    if length < 1 or behind + length - 1 + len(TAGS_EMPTY) != end or not data.startswith(TAGS_EMPTY, end - 3):
        return None
    return RequestShape(at - position, acks, topic, index)


def answer_shape(data: bytes, position: int, end: int, version: int) -> AnswerShape | None:
    """The shape of the answer at `data[position:end]`; None unless all went well, with nothing to tell."""
    if version < FLEXIBLE_FIRST:
        return None
    try:
        at = position + ANSWER_AT
        if data[at]:
            return None
        topic, at = _only_topic(data, at + 1, version)
        if topic is None or data[at] != ONE:
            return None
        at += 1
        index, error, _, _, log_start, errors, text, *tags, _, last = _partition(data, at)
    except (IndexError, struct.error, Malformed):
        return None
    # An empty list of errors is 1, a text that is null is 0.
    if error or errors != 1 or text or any(tags) or last or at + _PARTITION_BYTES != end:
        return None
    return AnswerShape(at + _BASE_OFFSET_AT - position, topic, index, log_start)


def _only_topic(data: bytes, at: int, version: int) -> tuple[bytes | None, int]:
    """The name or id of the one topic in the array at `at`, and what is behind it."""
    if data[at] != ONE:
        return None, at
    at += 1
    if version >= IDS_FIRST:
        return data[at : at + ID_BYTES], at + ID_BYTES
    length, at = read_uvarint(data, at)
    return (data[at : at + length - 1], at + length - 1) if length > 0 else (None, at)
