"""The batch digest depends on the batches alone: not on leader epochs, nor on how the bytes were cut."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.wire import BatchCorrupt
from penstock.wire.digest import BatchDigest, BatchSpan, spans
from penstock.wire.records import Record, write


def batch(base: int, count: int = 1, *, epoch: int = 0) -> bytes:
    rows = [Record(base + n, 1_700_000_000_000, None, f"value {base + n}".encode()) for n in range(count)]
    return write(rows, leader_epoch=epoch)


def digest(data: bytes) -> str:
    return BatchDigest(spans(data)).hexdigest()


def test_spans_are_offsets_and_crc_of_each_complete_batch() -> None:
    data = batch(7, 3) + batch(12)
    first, second = spans(data + batch(13)[:-1])
    assert (first.base_offset, first.last_offset) == (7, 9)
    assert (second.base_offset, second.last_offset) == (12, 12)
    assert first.crc == struct.unpack_from(">I", data, 17)[0]


def test_the_digest_is_sha256_over_big_endian_spans() -> None:
    span = BatchSpan(1, 2, 0xFFFF_FFFF)
    expected = hashlib.sha256(bytes(7) + b"\x01" + bytes(7) + b"\x02" + b"\xff" * 4).hexdigest()
    assert BatchDigest([span]).hexdigest() == expected


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_cutting_at_a_batch_boundary_does_not_change_the_digest(
    counts: list[int], data: st.DataObject
) -> None:
    bases = [sum(counts[:index]) for index in range(len(counts))]
    parts = [batch(base, count) for base, count in zip(bases, counts)]
    cut = data.draw(st.integers(0, len(parts)))
    joined = BatchDigest(spans(b"".join(parts[:cut])))
    for span in spans(b"".join(parts[cut:])):
        joined.add(span)
    assert joined.hexdigest() == digest(b"".join(parts))
    assert joined.count == len(parts)


def test_a_leader_epoch_does_not_change_the_digest_but_a_value_does() -> None:
    assert digest(batch(3, epoch=1)) == digest(batch(3, epoch=9))
    assert digest(batch(3)) != digest(batch(3, 2))


def test_a_damaged_batch_is_an_error_where_batches_are_verified() -> None:
    damaged = bytearray(batch(5))
    damaged[-1] ^= 1
    assert list(spans(bytes(damaged)))
    with pytest.raises(BatchCorrupt):
        list(spans(bytes(damaged), verify=True))
