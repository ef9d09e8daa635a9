"""The envelope as JSON: round trips, and everything that is not one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors.olep import EventUnreadable
from penstock.olep.codec import Codec, JsonCodec
from penstock.olep.encoding import payload_problem
from penstock.olep.event import Event, Record

CODEC = JsonCodec()
leaf = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
payload = st.dictionaries(
    st.text(),
    st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8),
)
name = st.text(min_size=1, max_size=30)


@settings(max_examples=60)
@given(
    st.builds(
        Event, id=name.filter(lambda n: n[0] != "="), type=name, payload=payload, version=st.integers(1, 9),
        cause=st.none() | name, request=name, time=st.integers(0, 2**53),
    )
)  # fmt: skip
def test_an_event_survives_encoding_and_decoding(event: Event) -> None:
    expected = event if event.cause is not None else event._replace(request=event.id)
    assert CODEC.decode(CODEC.encode(event), "", -1, -1) == expected


@settings(max_examples=50)
@given(st.builds(Event, id=name, type=st.from_regex(r"[a-z.]{1,30}", fullmatch=True), payload=payload))
def test_the_type_is_known_without_decoding(event: Event) -> None:
    assert CODEC.type_of(CODEC.encode(event)) == event.type.encode()


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["paid", "paid.back", "offered", "refused"]), max_size=20),
    st.sets(st.sampled_from(["paid", "offered"]), min_size=1),
)
def test_a_type_filter_drops_only_events_of_other_types(kinds: list[str], types: set[str]) -> None:
    unknown = [Record(90, None, None), Record(91, None, b' {"type":"refused"}'), Record(92, None, b"?")]
    events = [
        Record(at, None, CODEC.encode(Event(f"e{at}", kind, {}, time=1))) for at, kind in enumerate(kinds)
    ]
    expected = [event for event, kind in zip(events, kinds) if kind in types] + unknown
    assert CODEC.type_filter(types)([*events, *unknown]) == expected
    assert Codec.type_filter(CODEC, types)([*events, *unknown]) == expected


def test_an_event_with_other_field_order_and_spaces_is_read() -> None:
    value = b' {"payload": {"a": 1}, "id": "x", "time": 5, "type": "t", "v": 2}\n'
    assert (CODEC.type_of(value), CODEC.decode(value, "k", 1, 2)) == (
        None,
        Event("x", "t", {"a": 1}, 2, None, "x", 5, "k", 1, 2),
    )


GOOD: dict[str, object] = {"type": "t", "id": "x", "v": 1, "time": 0, "payload": {}}
INVALID: tuple[dict[str, object], ...] = (
    {"id": ""}, {"id": 5}, {"id": "x" * 500}, {"id": "=app:t.0.1.0"}, {"type": None}, {"type": ""},
    {"payload": []}, {"v": 0}, {"v": True}, {"v": "1"}, {"time": 1.5}, {"request": 7}, {"cause": 7},
)  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"17",
        b'{"type":"t"}',
        b'{"type":"t","id":"x","v":1,"time":0,"payload":{"a":NaN}}',
        b"[" * 100_000,
        json.dumps(GOOD).encode() + b"x",
        *(
            json.dumps(GOOD | change).encode()
            for change in INVALID
        ),
    ],
    ids=lambda value: value[:60].decode(errors="replace"),
)  # fmt: skip
def test_bytes_that_are_not_an_event_are_unreadable(value: bytes) -> None:
    with pytest.raises(EventUnreadable):
        CODEC.decode(value, "", 0, 0)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1, 2}, object(), b"bytes"],
    ids=["nan", "infinity", "set", "object", "bytes"],
)
def test_a_payload_that_json_cannot_represent_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        CODEC.encode(Event("x", "t", {"a": value}))


@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        ({"to": "b", "amount": 5}, None),
        ({"to": "b"}, "`amount` is None, expected int"),
        ({"to": "b", "amount": True}, "`amount` is True, expected int"),
        ({"to": "b", "amount": 5, "x": 1}, "unknown field `x`"),
    ],
)
def test_a_payload_is_checked_field_by_field(payload: dict[str, object], wrong: str | None) -> None:
    assert payload_problem(Event("x", "t", payload), {"to": str, "amount": int}) == wrong
