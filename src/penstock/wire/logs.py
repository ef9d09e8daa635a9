"""Read and write the records of Kafka's own logs.

A value of the metadata log or of the tier-metadata topic is frame version, type and version as varints, then
the message. On the coordinators' topics, a key is the record's type as an int16 and the message, a value is
its version as an int16 and the message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from penstock.model.errors.wire import ResponseMalformed
from penstock.wire.codec import decode, encode
from penstock.wire.codec_runtime import TRUNCATED, Malformed, read_uvarint, uvarint
from penstock.wire.definitions import load

FRAME_VERSION: Final = 1
METADATA: Final = "kafka-metadata"
TIER: Final = "kafka-storage"
GROUPS: Final = "kafka-group-coordinator"
TRANSACTIONS: Final = "kafka-transaction-coordinator"
SHARES: Final = "kafka-share-coordinator"


@dataclass(frozen=True, slots=True)
class Entry:
    name: str  # of the definition, such as `PartitionRecord`
    version: int
    values: dict[str, Any]


def read_framed(artifact: str, value: bytes) -> Entry:
    """An entry of the metadata log (`METADATA`) or of the tier-metadata topic (`TIER`)."""
    try:
        frame, position = read_uvarint(value, 0)
        number, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except (IndexError, Malformed) as failure:
        raise _unreadable(artifact, TRUNCATED) from failure
    if frame != FRAME_VERSION:
        raise _unreadable(artifact, f"frame version {frame} is not known")
    name = _names(artifact, "metadata").get(number)
    if name is None:
        raise _unreadable(artifact, f"record type {number} is not known")
    return Entry(name, version, decode(name, version, value[position:]))


def write_framed(entry: Entry) -> bytes:
    number = load().message(entry.name).api_key
    assert number is not None, "a framed record has a type"
    start = uvarint(FRAME_VERSION) + uvarint(number) + uvarint(entry.version)
    return start + encode(entry.name, entry.version, entry.values)


def read_coordinated(artifact: str, key: bytes, value: bytes | None) -> tuple[Entry, Entry | None]:
    """Key and value of a record of `__consumer_offsets`, `__transaction_state` or `__share_group_state`."""
    if len(key) < 2 or (value is not None and len(value) < 2):
        raise _unreadable(artifact, TRUNCATED)
    number = struct.unpack_from(">h", key)[0]
    name = _names(artifact, "coordinator-key").get(number)
    if name is None:
        raise _unreadable(artifact, f"record type {number} is not known")
    read_key = Entry(name, 0, decode(name, 0, key[2:]))
    if value is None:
        return read_key, None
    version = struct.unpack_from(">h", value)[0]
    value_name = name.removesuffix("Key") + "Value"
    return read_key, Entry(value_name, version, decode(value_name, version, value[2:]))


@cache
def _names(artifact: str, type_: str) -> dict[int, str]:
    return load().records(artifact, type_)


def _unreadable(artifact: str, reason: str) -> ResponseMalformed:
    return ResponseMalformed(message=f"a record of {artifact}", version="?", reason=reason)
