"""A fetch that passes as it is: a walk would have read the same, and left every byte where it was."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.wire.definitions import load
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.names import Names
from penstock.wire.passing import VERSION_FIRST, VERSION_LAST, answer_passes, request_passes
from penstock.wire.plans import Direction
from penstock.wire.rules import Kind
from penstock.wire.splice import program, spliced

FETCH = 1
VERSIONS = [v for v in load().request("Fetch").valid_versions if v >= VERSION_FIRST]
OURS, FOREIGN = (UUID(int=7), UUID(int=8)), UUID(int=9)
KNOWN = OrderedDict((one.bytes, b"") for one in OURS)


class Watching(Names):
    """Changes whatever it is asked about but for what a gateway would leave as it is."""

    kinds = frozenset((Kind.TOPIC_ID, Kind.SESSION, Kind.SESSION_EPOCH, Kind.REPLICA_ID, Kind.ENDPOINT))

    def __init__(self) -> None:
        self.sessions: list[int] = []

    def topic_id(self, topic_id: bytes) -> bytes:
        return topic_id if topic_id in KNOWN else topic_id[::-1]

    def replica_id(self, replica_id: int) -> int:
        return min(replica_id, -1)

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int]:
        return broker_id, b"gateway", port

    def session(self, session_id: int) -> int:
        self.sessions.append(session_id)
        return session_id


def walked(frame: bytes, version: int, direction: Direction) -> tuple[bytes | None, list[int]]:
    names = Watching()
    try:
        return spliced(program(FETCH, version, direction, Watching.kinds), names, frame), names.sessions
    except PenstockError:
        return None, names.sessions


def request(version: int, topics: Any, client: str | None = "c", **more: Any) -> bytes:
    rows = [
        {"TopicId": one, "Partitions": [{"Partition": n, "FetchOffset": n, **tags} for n, tags in partitions]}
        for one, partitions in topics
    ]
    body = {"MaxWaitMs": 5, "MinBytes": 1, "SessionId": 77, "SessionEpoch": 3, "Topics": rows, **more}
    return encode_request(Request("Fetch", version, 1, client, body))


def answer(version: int, topics: Any, **more: Any) -> bytes:
    rows = [
        {
            "TopicId": one,
            "Partitions": [{"PartitionIndex": 0, "Records": r, **tags} for r, tags in partitions],
        }
        for one, partitions in topics
    ]
    body = {"ThrottleTimeMs": 0, "ErrorCode": 0, "SessionId": 77, "Responses": rows, **more}
    return encode_response("Fetch", version, Response(1, body))


ids = st.sampled_from([*OURS, OURS[0], FOREIGN])
asked = st.lists(st.tuples(ids, st.lists(st.tuples(st.integers(0, 9), st.just({})), max_size=3)), max_size=3)
rows = st.tuples(
    st.sampled_from([None, b"", b"r" * 90, b"r" * 300, b"r" * 20_000]),
    st.sampled_from(
        [
            {},
            {},
            {"ErrorCode": 6},
            {"AbortedTransactions": None},
            {"AbortedTransactions": [{"ProducerId": 1, "FirstOffset": 2}]},
            {"CurrentLeader": {"LeaderId": 2, "LeaderEpoch": 3}},
        ]
    ),
)
answered = st.lists(st.tuples(ids, st.lists(rows, max_size=3)), max_size=3)
change = st.none() | st.tuples(st.integers(0, 2_000), st.integers(0, 255))


def changed(frame: bytes, how: tuple[int, int] | None) -> bytes:
    """With one byte behind the head of it changed."""
    if how is None:
        return frame
    place = 14 + how[0] % (len(frame) - 14)
    return frame[:place] + bytes([how[1]]) + frame[place + 1 :]


@settings(max_examples=300)
@given(version=st.sampled_from(VERSIONS), topics=asked, client=st.none() | st.just("client"), how=change)
def test_a_request_that_passes_is_one_that_a_walk_leaves_alone(
    version: int, topics: Any, client: str | None, how: tuple[int, int] | None
) -> None:
    frame = changed(request(version, topics, client), how)
    data = b"before" + frame + b"behind"

    at = request_passes(data, 6, 6 + len(frame), version, KNOWN)

    made, sessions = walked(frame, version, Direction.REQUEST)
    if at:
        assert (made, sessions) == (frame, [int.from_bytes(data[at : at + 4], signed=True)])
    else:
        assert how is not None or any(topic == FOREIGN for topic, _ in topics)


@settings(max_examples=300)
@given(version=st.sampled_from(VERSIONS), topics=answered, how=change)
def test_an_answer_that_passes_is_one_that_a_walk_leaves_alone(
    version: int, topics: Any, how: tuple[int, int] | None
) -> None:
    frame = changed(answer(version, topics), how)
    data = b"before" + frame + b"behind"

    at = answer_passes(data, 6, 6 + len(frame), KNOWN)

    made, sessions = walked(frame, version, Direction.RESPONSE)
    if at:
        assert (made, sessions) == (frame, [int.from_bytes(data[at : at + 4], signed=True)])
    else:
        special = [tags for _, partitions in topics for _, tags in partitions]
        rare = any("CurrentLeader" in tags or tags.get("AbortedTransactions") for tags in special)
        assert how is not None or rare or any(topic == FOREIGN for topic, _ in topics)


TOPICS = [(OURS[0], [(0, {})])]


@pytest.mark.parametrize(
    "frame",
    [
        request(13, [(FOREIGN, [(0, {})])]),
        request(13, TOPICS, ReplicaId=2),
        request(16, TOPICS, ReplicaState={"ReplicaId": 2, "ReplicaEpoch": 1}),
        request(16, TOPICS, ClusterId="c"),
        request(17, [(OURS[0], [(0, {"ReplicaDirectoryId": UUID(int=3)})])]),
        request(16, TOPICS, ForgottenTopicsData=[{"TopicId": FOREIGN, "Partitions": [1]}]),
        request(16, TOPICS) + b"\0",
        request(16, TOPICS)[:-1],
        request(16, TOPICS)[:16],
    ],
)
def test_what_has_something_to_be_looked_at_is_walked(frame: bytes) -> None:
    version = int.from_bytes(frame[6:8])

    assert not request_passes(frame, 0, len(frame), version, KNOWN)


def test_every_version_that_has_ids_and_no_other_is_known_here() -> None:
    assert [*range(VERSION_FIRST, VERSION_LAST + 1)] == VERSIONS
    assert not request_passes(request(16, TOPICS), 0, 1_000, VERSION_FIRST - 1, KNOWN)
    assert not request_passes(request(16, TOPICS), 0, 1_000, VERSION_LAST + 1, KNOWN)


def test_addresses_of_leaders_are_for_the_walk() -> None:
    frame = answer(16, [], NodeEndpoints=[{"NodeId": 1, "Host": "h", "Port": 1, "Rack": None}])

    assert not answer_passes(frame, 0, len(frame), KNOWN)
