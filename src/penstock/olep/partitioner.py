"""The partition of a key: Kafka's default partitioner.

The hash is that of Kafka's Java producer (murmur2), so a program in any language with the default
partitioner chooses the same partition. The number of partitions of a log must never change: adding one
would move keys away from their history.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_HASHES_MAX: Final = 1 << 17
_hashes: dict[bytes, int] = {}  # of recent keys; a dictionary costs half of what `lru_cache` does


def murmur2(data: bytes) -> int:
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length - length % 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    value = _hashes.get(key)
    if value is None:
        if len(_hashes) >= _HASHES_MAX:
            _hashes.clear()
        value = _hashes[key] = murmur2(key) & 0x7FFFFFFF
    return value % partitions
