"""Ids: requests from outside, derived ones from positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.olep import EventIdInvalid, EventUnreadable
from penstock.olep.codec import JsonCodec
from penstock.olep.deduplication import split_derived
from penstock.olep.event import derived_id, needle_of, request, stream_of

offset = st.integers(0, 10**13)
index = st.integers(0, 65_535)


@given(offset, index)
def test_a_derived_id_splits_into_stream_and_sequence(offset: int, index: int) -> None:
    stream = stream_of("bank", "Yq0Zs1h2TKqj3r8vXw5mBA", 3)
    assert split_derived(derived_id(stream, offset, index)) == (stream, offset << 16 | index)


@given(offset, index, offset, index)
def test_sequences_are_ordered_as_offset_then_index(a: int, i: int, b: int, j: int) -> None:
    first, second = (split_derived(derived_id("=a:t.0", *each))[1] for each in ((a, i), (b, j)))
    assert (first < second) == ((a, i) < (b, j))


def test_two_applications_on_one_partition_have_separate_streams() -> None:
    assert stream_of("bank", "T", 0) != stream_of("check_bank", "T", 0)


@pytest.mark.parametrize(
    "bad", ["=", "=bank:T.0", "=bank:T.0.x.1", "=bank:T.0.1.65536", "=a.²", f"=a.{10**20}.0"]
)
def test_a_malformed_derived_id_is_unreadable(bad: str) -> None:
    with pytest.raises(EventUnreadable):
        split_derived(bad)


@pytest.mark.parametrize("bad", ["", "=bank:T.0.1.0", "a" * 201, "tab\there", "\ud800"])
def test_an_ambiguous_request_id_is_refused(bad: str) -> None:
    with pytest.raises(EventIdInvalid):
        request(bad, "type", {}, time=0)


@given(st.text(min_size=1, max_size=50))
def test_the_search_bytes_are_in_every_event_of_the_request(text: str) -> None:
    try:
        event = request(text, "type", {}, time=0)
    except EventIdInvalid:
        return
    assert needle_of(text) in JsonCodec().encode(event)
