"""The outgoing events of a batch as one value, so that a batch adds one row to the outbox.

Format: for each event, two bytes for the length of its log's name, four each for the lengths of key and
value, then the three. Only the executor that wrote it reads it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from penstock.olep.fold import Outgoing
from penstock.olep.partitioner import partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_HEAD = struct.Struct(">HII")


def pack(outgoing: Iterable[Outgoing]) -> bytes:
    parts: list[bytes] = []
    for log, key, value in outgoing:
        name = log.encode()
        parts += (_HEAD.pack(len(name), len(key), len(value)), name, key, value)
    return b"".join(parts)


def unpack(data: bytes) -> list[Outgoing]:
    outgoing, at = [], 0
    while at < len(data):
        name, key, value = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        log_end, key_end, end = at + name, at + name + key, at + name + key + value
        outgoing.append(Outgoing(data[at:log_end].decode(), data[log_end:key_end], data[key_end:end]))
        at = end
    return outgoing


def addressed(
    outgoing: Iterable[Outgoing], targets: Mapping[str, tuple[str, int]]
) -> tuple[list[tuple[Any, ...]], list[int]]:
    """(topic, value, key, partition) of each event, and the number of the last one for each partition."""
    messages: list[tuple[Any, ...]] = []
    last_of: dict[tuple[str, int], int] = {}
    for log, key, value in outgoing:
        topic, partitions = targets[log]
        partition = partition_of(key, partitions)
        last_of[topic, partition] = len(messages)
        messages.append((topic, value, key, partition))
    return messages, list(last_of.values())
