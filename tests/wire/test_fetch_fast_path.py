"""The fetch fast path recognizes only frames that a splicer would leave unchanged."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.wire.definitions import load
from penstock.wire.fetch_fast_path import VERSION_FIRST, VERSION_LAST, request_session_at, response_session_at
from penstock.wire.field_rules import Kind
from penstock.wire.frames import Request, Response, encode_request, encode_response
from penstock.wire.names import Names
from penstock.wire.plans import Direction
from penstock.wire.splice import program, spliced

FETCH = 1
VERSIONS = [v for v in load().request("Fetch").valid_versions if v >= VERSION_FIRST]
OWN, FOREIGN = (UUID(int=7), UUID(int=8)), UUID(int=9)
KNOWN = OrderedDict((one.bytes, b"") for one in OWN)


class GatewayNames(Names):
    """Changes every name that a gateway would not leave unchanged."""

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


def splice(frame: bytes, version: int, direction: Direction) -> tuple[bytes | None, list[int]]:
    names = GatewayNames()
    try:
        return spliced(program(FETCH, version, direction, GatewayNames.kinds), names, frame), names.sessions
    except PenstockError:
        return None, names.sessions


def request(version: int, topics: Any, client: str | None = "c", **fields: Any) -> bytes:
    rows = [
        {"TopicId": one, "Partitions": [{"Partition": n, "FetchOffset": n, **tags} for n, tags in partitions]}
        for one, partitions in topics
    ]
    body = {"MaxWaitMs": 5, "MinBytes": 1, "SessionId": 77, "SessionEpoch": 3, "Topics": rows, **fields}
    return encode_request(Request("Fetch", version, 1, client, body))


def response(version: int, topics: Any, **fields: Any) -> bytes:
    rows = [
        {
            "TopicId": one,
            "Partitions": [{"PartitionIndex": 0, "Records": r, **tags} for r, tags in partitions],
        }
        for one, partitions in topics
    ]
    body = {"ThrottleTimeMs": 0, "ErrorCode": 0, "SessionId": 77, "Responses": rows, **fields}
    return encode_response("Fetch", version, Response(1, body))


ids = st.sampled_from([*OWN, OWN[0], FOREIGN])
request_topics: st.SearchStrategy[Any] = st.lists(
    st.tuples(ids, st.lists(st.tuples(st.integers(0, 9), st.just({})), max_size=3)), max_size=3
)
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
response_topics = st.lists(st.tuples(ids, st.lists(rows, max_size=3)), max_size=3)
edits = st.none() | st.tuples(st.integers(0, 2_000), st.integers(0, 255))


def changed(frame: bytes, edit: tuple[int, int] | None) -> bytes:
    """The frame with one byte after its head changed."""
    if edit is None:
        return frame
    at = 14 + edit[0] % (len(frame) - 14)
    return frame[:at] + bytes([edit[1]]) + frame[at + 1 :]


@settings(max_examples=300)
@given(
    version=st.sampled_from(VERSIONS), topics=request_topics, client=st.none() | st.just("client"), edit=edits
)
def test_a_recognized_request_is_one_that_a_splicer_leaves_unchanged(
    version: int, topics: Any, client: str | None, edit: tuple[int, int] | None
) -> None:
    frame = changed(request(version, topics, client), edit)
    data = b"before" + frame + b"behind"

    at = request_session_at(data, 6, 6 + len(frame), version, KNOWN)

    rewritten, sessions = splice(frame, version, Direction.REQUEST)
    if at:
        assert (rewritten, sessions) == (frame, [int.from_bytes(data[at : at + 4], signed=True)])
    else:
        assert edit is not None or any(topic == FOREIGN for topic, _ in topics)


@settings(max_examples=300)
@given(version=st.sampled_from(VERSIONS), topics=response_topics, edit=edits)
def test_a_recognized_response_is_one_that_a_splicer_leaves_unchanged(
    version: int, topics: Any, edit: tuple[int, int] | None
) -> None:
    frame = changed(response(version, topics), edit)
    data = b"before" + frame + b"behind"

    at = response_session_at(data, 6, 6 + len(frame), KNOWN)

    rewritten, sessions = splice(frame, version, Direction.RESPONSE)
    if at:
        assert (rewritten, sessions) == (frame, [int.from_bytes(data[at : at + 4], signed=True)])
    else:
        all_tags = [tags for _, partitions in topics for _, tags in partitions]
        rare = any("CurrentLeader" in tags or tags.get("AbortedTransactions") for tags in all_tags)
        assert edit is not None or rare or any(topic == FOREIGN for topic, _ in topics)


TOPICS: list[Any] = [(OWN[0], [(0, {})])]


@pytest.mark.parametrize(
    "frame",
    [
        request(13, [(FOREIGN, [(0, {})])]),
        request(13, TOPICS, ReplicaId=2),
        request(16, TOPICS, ReplicaState={"ReplicaId": 2, "ReplicaEpoch": 1}),
        request(16, TOPICS, ClusterId="c"),
        request(17, [(OWN[0], [(0, {"ReplicaDirectoryId": UUID(int=3)})])]),
        request(16, TOPICS, ForgottenTopicsData=[{"TopicId": FOREIGN, "Partitions": [1]}]),
        request(16, TOPICS) + b"\0",
        request(16, TOPICS)[:-1],
        request(16, TOPICS)[:16],
    ],
)
def test_a_request_with_anything_unusual_must_be_spliced(frame: bytes) -> None:
    version = int.from_bytes(frame[6:8])

    assert not request_session_at(frame, 0, len(frame), version, KNOWN)


def test_exactly_the_versions_with_topic_ids_are_recognized() -> None:
    assert [*range(VERSION_FIRST, VERSION_LAST + 1)] == VERSIONS
    assert not request_session_at(request(16, TOPICS), 0, 1_000, VERSION_FIRST - 1, KNOWN)
    assert not request_session_at(request(16, TOPICS), 0, 1_000, VERSION_LAST + 1, KNOWN)


def test_a_response_with_addresses_of_leaders_must_be_spliced() -> None:
    frame = response(16, [], NodeEndpoints=[{"NodeId": 1, "Host": "h", "Port": 1, "Rack": None}])

    assert not response_session_at(frame, 0, len(frame), KNOWN)
