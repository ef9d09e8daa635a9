"""Varints, tags and UUIDs, which generated codecs call at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec_runtime import Malformed, read_tags, read_uvarint, uuid_of, uvarint, write_tags

if TYPE_CHECKING:
    from uuid import UUID

EDGES = [0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 268435455, 268435456, 2**31 - 1]


@given(st.one_of(st.sampled_from(EDGES), st.integers(0, 2**31 - 1)))
def test_a_varint_round_trips_in_as_few_bytes_as_possible(value: int) -> None:
    written = uvarint(value)

    assert read_uvarint(b"#" + written + b"#", 1) == (value, 1 + len(written))
    assert len(written) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize("value", [-1, 2**31])
def test_a_value_beyond_31_bits_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="31 bits"):
        uvarint(value)


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=300), max_size=200))
def test_tags_round_trip_in_order(tags: dict[int, bytes]) -> None:
    out: list[bytes] = []
    write_tags(out, tags.items())
    data = b"".join(out)

    read, end = read_tags(data, 1, data[0])

    assert (read, end) == (tags, len(data))
    assert list(read) == sorted(tags)


def test_a_truncated_tag_is_refused() -> None:
    with pytest.raises(Malformed, match="truncated"):
        read_tags(b"\x01\x05\x09abc", 1, 1)


@given(st.uuids())
def test_a_uuid_equals_one_made_by_the_standard_library(value: UUID) -> None:
    created = uuid_of(value.bytes)

    assert created == value
    assert (hash(created), str(created), created.bytes) == (hash(value), str(value), value.bytes)
