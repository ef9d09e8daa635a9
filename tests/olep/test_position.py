"""Position vectors and their tokens."""

from __future__ import annotations

import base64
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors.olep import TokenForeign, TokenUnreadable
from penstock.olep.position import Position

topic_id = st.binary(min_size=16, max_size=16).map(lambda b: base64.urlsafe_b64encode(b).decode().rstrip("="))
vector = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=5)
position = st.dictionaries(topic_id, vector, max_size=3).map(Position)
one_topic = st.dictionaries(st.just("A" * 22), st.dictionaries(st.integers(0, 3), st.integers(0, 5))).map(
    Position
)


@given(position)
def test_a_token_parses_to_its_position(position: Position) -> None:
    assert Position.parse(position.token()) == position


@given(position, st.data())
def test_a_token_with_one_character_changed_is_refused(position: Position, data: st.DataObject) -> None:
    token = position.token()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_"))
    changed = token[:at] + other + token[at + 1 :]
    if base64.urlsafe_b64decode(changed + "==") != base64.urlsafe_b64decode(token + "=="):
        with pytest.raises(TokenUnreadable):
            Position.parse(changed)


@given(st.text(max_size=60) | st.just("A" * 70_000))
def test_text_that_is_not_a_token_is_refused(text: str) -> None:
    with pytest.raises(TokenUnreadable):
        Position.parse(text)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x02\x00", "version 2"),
        (b"\x01\x01", "is truncated"),
        (b"\x01\x00\x00", "extra bytes"),
        (b"\x01" + b"\xff" * 10, "too large"),
    ],
)
def test_a_token_with_a_valid_checksum_and_an_invalid_body_is_refused(body: bytes, reason: str) -> None:
    token = base64.urlsafe_b64encode(body + crc32(body).to_bytes(4, "big")).decode()
    with pytest.raises(TokenUnreadable, match=reason):
        Position.parse(token.rstrip("="))


@pytest.mark.parametrize(
    "bad", [Position.at("short", 0, 1), Position.at("A" * 22, 0, -1), Position.at("A" * 22, 0, 2**63)]
)
def test_an_invalid_position_has_no_token(bad: Position) -> None:
    with pytest.raises(ValueError, match=r"is not a topic id|neither a partition nor an offset"):
        bad.token()


@given(one_topic, one_topic)
def test_a_join_covers_both_and_both_cover_the_meet(a: Position, b: Position) -> None:
    join, meet = a.join(b), a.meet(b)
    assert (join.covers(a), join.covers(b), a.covers(meet), b.covers(meet)) == (True, True, True, True)


@given(one_topic, one_topic, one_topic)
def test_covers_is_a_partial_order(a: Position, b: Position, c: Position) -> None:
    if a.covers(b) and b.covers(c):
        assert a.covers(c)


def test_positions_of_different_partitions_do_not_cover_one_another() -> None:
    a, b = Position.at("A" * 22, 0, 5), Position.at("A" * 22, 1, 5)
    assert (a.covers(b), b.covers(a)) == (False, False)


def test_a_token_of_another_topic_is_foreign() -> None:
    with pytest.raises(TokenForeign):
        Position.at("A" * 22, 0, 5).of_topic("accounts", "B" * 22)
