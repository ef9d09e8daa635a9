"""Compress and decompress record batches, in the framings of Kafka's Java client.

Decompression never produces more than the given limit. Snappy is read in xerial's framing (Java) and without
it (some clients), and written in xerial's. LZ4 frames are written with independent blocks, since Java cannot
read linked ones.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors.settings import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Callable

GZIP_WINDOW: Final = 31  # makes zlib use a gzip header and trailer
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES: Final = 32 << 10
LZ4_HEADER: Final = bytes.fromhex("04224d18604082")  # version 1, independent blocks of 64 KiB, no checksums
LZ4_BLOCK_BYTES: Final = 64 << 10
LZ4_STORED: Final = 0x80000000  # flag of an uncompressed block
EXPECTED_RATIO: Final = 8  # most batches compress less
BUFFER_BYTES_MIN: Final = 64 << 10

_block_size = struct.Struct(">i")


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Undecodable(ValueError):
    """The input is not valid for its compression."""


class TooLarge(ValueError):
    """The output would exceed the limit."""


@cache
def _cramjam() -> Any:
    """Imported on first use: most gateways never decompress a batch."""
    try:
        import cramjam
    except ImportError as missing:
        raise ExtraMissing(
            what="reading compressed record batches", module="cramjam", extra="platform"
        ) from missing
    return cramjam


def compress(data: bytes, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        packer = zlib.compressobj(wbits=GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if compression is Compression.SNAPPY:
        return _snappy(data)
    if compression is Compression.LZ4:
        return _lz4(data)
    if compression is Compression.ZSTD:
        return bytes(_cramjam().zstd.compress(data))
    return data


def decompress(data: bytes | memoryview, compression: Compression, *, size_max: int) -> bytes:
    if compression is Compression.GZIP:
        return _gunzip(data, size_max)
    if compression is Compression.SNAPPY:
        return _unsnappy(bytes(data), size_max)
    if compression is Compression.LZ4:
        return _grown(_cramjam().lz4.decompress_into, data, size_max)
    if compression is Compression.ZSTD:
        return _grown(_cramjam().zstd.decompress_into, data, size_max)
    return bytes(data)


def _gunzip(data: bytes | memoryview, size_max: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=GZIP_WINDOW)
    try:
        unpacked = unpacker.decompress(data, size_max + 1)
    except zlib.error as broken:
        raise Undecodable(str(broken)) from broken
    if len(unpacked) > size_max:
        raise TooLarge
    if not unpacker.eof:
        raise Undecodable("it is truncated")
    return unpacked


def _grown(into: Callable[[Any, Any], int], data: bytes | memoryview, size_max: int) -> bytes:
    """Decompress into a buffer that grows up to the limit."""
    size = min(size_max, max(BUFFER_BYTES_MIN, EXPECTED_RATIO * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            written = into(data, buffer)
        except _cramjam().DecompressionError as failure:
            if "whole buffer" not in str(failure):
                raise Undecodable(str(failure)) from failure
            if size == size_max:
                raise TooLarge from failure
            size = min(size_max, size * EXPECTED_RATIO)
            continue
        return bytes(memoryview(buffer)[:written])


def _snappy(data: bytes) -> bytes:
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(_cramjam().snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_block_size.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: bytes, size_max: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, size_max)
    parts = []
    position, left = len(XERIAL_HEADER), size_max
    while position < len(data):
        if position + _block_size.size > len(data):
            raise Undecodable("it is truncated")
        size = _block_size.unpack_from(data, position)[0]
        position += _block_size.size
        if not 0 < size <= len(data) - position:
            raise Undecodable(f"a block claims {size} of {len(data) - position} bytes")
        parts.append(_snappy_block(data[position : position + size], left))
        left -= len(parts[-1])
        position += size
    return b"".join(parts)


def _snappy_block(data: bytes, size_max: int) -> bytes:
    try:
        if _cramjam().snappy.decompress_raw_len(data) > size_max:
            raise TooLarge
        return bytes(_cramjam().snappy.decompress_raw(data))
    except _cramjam().DecompressionError as broken:
        raise Undecodable(str(broken)) from broken


def _lz4(data: bytes) -> bytes:
    parts = [LZ4_HEADER]
    for start in range(0, len(data), LZ4_BLOCK_BYTES):
        plain = data[start : start + LZ4_BLOCK_BYTES]
        block = bytes(_cramjam().lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | LZ4_STORED), plain)
    parts.append(struct.pack("<I", 0))
    return b"".join(parts)
