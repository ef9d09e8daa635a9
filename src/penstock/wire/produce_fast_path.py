"""Find the parts in which the repeated Produce frames of one producer differ.

Successive Produce requests often differ only in correlation id and records, for example librdkafka's, which
have one partition each. The gateway compares the other bytes with those of an earlier request, which is far
cheaper than splicing the frame again. This module locates the parts that differ. It supports one shape: a
flexible version, one topic, one partition, no tagged fields. All other frames are spliced.

    request:   size, API, version, correlation id | client id … partition index | records | three zero bytes
    response:  size, correlation id               | topic … error code 0        | base offset | times … tags

Equal bytes are read equally. The head of a request ends where the length of the records starts. If another
frame has the same head, records of the length it states, and exactly three zero bytes behind them, a splicer
would read the same fields in the same places.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.wire.codec_runtime import Malformed, read_uvarint

FLEXIBLE_FIRST: Final = 9  # of Produce
IDS_FIRST: Final = 13
HEAD_AT: Final = 12  # after size, API, version and correlation id
RESPONSE_AT: Final = 8  # after size and correlation id
TAGS_EMPTY: Final = bytes(3)  # of the partition, the topic and the request
ONE: Final = 2  # the compact count of an array of one
ID_BYTES: Final = 16

_client_id = struct.Struct(">h").unpack_from
_acks_and_timeout = struct.Struct(">hi").unpack_from
_index = struct.Struct(">i").unpack_from
# index, error, base offset, append time, log start, record errors, error message, tags
_partition = struct.Struct(">ihqqqBBBBiB").unpack_from
_PARTITION_BYTES: Final = struct.calcsize(">ihqqqBBBBiB")
_BASE_OFFSET_AT: Final = 6  # within the partition


@dataclass(frozen=True, slots=True)
class RequestShape:
    records_at: int  # from the start of the frame: the length of the records
    acks: int
    topic: bytes  # its name, or its id
    index: int


@dataclass(frozen=True, slots=True)
class ResponseShape:
    offset_at: int  # from the start of the frame: the base offset, eight bytes
    topic: bytes
    index: int
    log_start: int


def request_shape(data: bytes, position: int, end: int, version: int) -> RequestShape | None:
    """The shape of the Produce request at `data[position:end]`; None if it is not supported."""
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
        length, records = read_uvarint(data, at)
    except (IndexError, struct.error, Malformed):
        return None
    tags = records + length - 1
    if length < 1 or tags + len(TAGS_EMPTY) != end or not data.startswith(TAGS_EMPTY, tags):
        return None
    return RequestShape(at - position, acks, topic, index)


def response_shape(data: bytes, position: int, end: int, version: int) -> ResponseShape | None:
    """The shape of the response at `data[position:end]`; None unless it is a plain success."""
    if version < FLEXIBLE_FIRST:
        return None
    try:
        at = position + RESPONSE_AT
        if data[at]:
            return None
        topic, at = _only_topic(data, at + 1, version)
        if topic is None or data[at] != ONE:
            return None
        at += 1
        index, error, _, append_time, log_start, errors, text, *tags, _, last = _partition(data, at)
    except (IndexError, struct.error, Malformed):
        return None
    if append_time >= 0:  # it differs each time
        return None
    # The empty list of record errors is encoded as 1, the null error message as 0.
    if error or errors != 1 or text or any(tags) or last or at + _PARTITION_BYTES != end:
        return None
    return ResponseShape(at + _BASE_OFFSET_AT - position, topic, index, log_start)


def _only_topic(data: bytes, at: int, version: int) -> tuple[bytes | None, int]:
    """The name or id of the only topic in the array at `at`, and where it ends."""
    if data[at] != ONE:
        return None, at
    at += 1
    if version >= IDS_FIRST:
        return data[at : at + ID_BYTES], at + ID_BYTES
    length, at = read_uvarint(data, at)
    return (data[at : at + length - 1], at + length - 1) if length > 0 else (None, at)
