"""Outgoing events as one value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.olep.fold import Outgoing
from penstock.olep.outbox import pack, unpack

outgoing = st.lists(
    st.builds(Outgoing, log=st.text(max_size=20), key=st.binary(max_size=9), value=st.binary())
)


@given(outgoing)
def test_packed_events_are_unpacked_in_order(outgoing: list[Outgoing]) -> None:
    assert unpack(pack(outgoing)) == outgoing
