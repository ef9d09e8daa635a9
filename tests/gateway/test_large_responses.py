"""Responses to large tenants: rewritten in slices, in bounded memory, and passed on whole."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from penstock.gateway.connection.states import SLICED
from penstock.gateway.limits.frame_memory import FrameMemory
from penstock.gateway.limits.metering import Usage
from penstock.gateway.process.scheduler import Scheduler
from penstock.wire.codec_runtime import uvarint
from penstock.wire.frames import Request, Response, decode_response, encode_request, encode_response
from tests.gateway.scenario import Gateway, Player
from tests.gateway.test_ready_queue import passes
from tests.gateway.test_session import heartbeat
from tests.gateway.wires import TENANT, quiet_gateway, serving_session

MEBIBYTE = 1024 * 1024
READ_BYTES = 256 * 1024
VERSION = 12
TOPICS = 120_000
ALL_TOPICS = encode_request(Request("Metadata", VERSION, 1, "c", {"Topics": None}))
NAME, ID = "topic-000000", UUID(int=1)


def metadata(topics: list[bytes]) -> bytes:
    """A response with these topics, each as `topic` encodes it."""
    none = _encoded([])
    start = _start(none)
    body = none[4:start] + uvarint(len(topics) + 1) + b"".join(topics) + none[start + 1 :]
    return len(body).to_bytes(4) + body


def topic(number: int, prefix: bytes = TENANT.prefix) -> bytes:
    name = prefix + b"topic-%06d" % number
    before, _, after = ENCODED.partition(bytes([len(NAME) + 1]) + NAME.encode())
    return before + uvarint(len(name) + 1) + name + after.replace(ID.bytes, (number + 1).to_bytes(16))


def _encoded(names: list[str]) -> bytes:
    partition = {"ErrorCode": 0, "PartitionIndex": 0, "LeaderId": 1, "LeaderEpoch": 0, "ReplicaNodes": [1]}
    partitions = [{**partition, "IsrNodes": [1], "OfflineReplicas": []}]
    topics = [{"Name": name, "TopicId": ID, "ErrorCode": 0, "Partitions": partitions} for name in names]
    brokers = [{"NodeId": 1, "Host": "10.1.2.3", "Port": 9092, "Rack": None}]
    body = {"Brokers": brokers, "ClusterId": "c", "ControllerId": 1, "Topics": topics}
    return encode_response("Metadata", VERSION, Response(1, body))


def _start(none: bytes) -> int:
    """Where the count of topics is."""
    one = _encoded([NAME])
    return next(n for n in range(4, len(none)) if none[n] != one[n])


def _only_topic() -> bytes:
    none, one = _encoded([]), _encoded([NAME])
    start = _start(none) + 1
    return one[start : start + len(one) - len(none)]


ENCODED = _only_topic()


def player(gateway: Gateway) -> Player:
    made = Player(gateway)
    made.begin()
    made.made.from_client(ALL_TOPICS, 1000.0)
    return made


def fed(made: Player, response: bytes) -> tuple[bytes, int]:
    """Feed the broker's bytes as they are read; returns what the client gets, and in how many slices."""
    connection, slices = made.made, 0
    for start in range(0, len(response), READ_BYTES):
        assert connection.reads_broker
        connection.from_broker(response[start : start + READ_BYTES], 1000.0)
        while connection.pauses & SLICED:
            connection.next_slice(1000.0)
            slices += 1
    return b"".join(connection.to_client), slices


def test_metadata_of_more_topics_than_fit_a_request() -> None:
    gateway = Gateway()
    made = player(gateway)
    response = metadata([topic(n) for n in range(TOPICS)] + [topic(n, b"lkc-other0_") for n in range(5)])
    assert len(response) > 8 * MEBIBYTE

    received, slices = fed(made, response)

    assert int.from_bytes(received[:4]) == len(received) - 4
    assert uvarint(TOPICS + 1) + b"".join(topic(n, b"") for n in range(TOPICS)) in received
    assert slices > 500  # others had their turn in between
    assert not made.made.closed
    assert not made.made.in_flight
    assert len(gateway.context.topics.by_id) == TOPICS
    made.made.tick(1000.0)
    assert gateway.services.response_memory.bytes == 0


@pytest.mark.parametrize("foreign", [0, 3])
def test_slices_yield_what_the_whole_does(foreign: int) -> None:
    response = metadata([topic(n) for n in range(2_000)] + [topic(n, b"lkc-other0_") for n in range(foreign)])
    whole, sliced = player(Gateway()), player(Gateway())
    whole.made.responses.limits = replace(whole.made.responses.limits, whole_bytes_max=MEBIBYTE)

    expected, at_once = fed(whole, response)
    received, slices = fed(sliced, response)

    assert at_once == 0
    assert slices > 10
    assert received == expected
    topics = decode_response("Metadata", VERSION, received[4:]).body["Topics"]
    assert [one["Name"] for one in topics] == [f"topic-{n:06}" for n in range(2_000)]


async def test_other_tenants_are_served_between_slices() -> None:
    gateway = quiet_gateway(scheduler=Scheduler())
    (session, client, _), (other, _, broker) = serving_session(gateway), serving_session(gateway)
    other.connection.usage = Usage()
    session.data_received(ALL_TOPICS)

    session.from_broker(metadata([topic(n) for n in range(5_000)]))
    assert client.frames() == []
    other.data_received(heartbeat(1))
    assert len(broker.frames()) == 1

    await passes(gateway)
    assert len(client.frames()) == 1


async def test_a_broker_that_closes_after_a_long_response() -> None:
    gateway = quiet_gateway(scheduler=Scheduler())
    session, client, _ = serving_session(gateway)
    session.data_received(ALL_TOPICS)

    session.from_broker(metadata([topic(n) for n in range(5_000)]))
    session.broker_lost(None)
    assert client.frames() == []
    await passes(gateway)

    assert len(client.frames()) == 1
    assert client.closed


class Holder:
    def __init__(self) -> None:
        self.granted = self.given_up = False

    def hold(self, on: bool) -> None:
        raise NotImplementedError

    def response_reserved(self) -> None:
        self.granted = True

    def request_reserved(self) -> None:
        raise NotImplementedError

    def give_up(self, held: int, limit: int) -> None:
        del held, limit
        self.given_up = True


ADA, BOB = Usage(), Usage()


@pytest.mark.parametrize(
    ("held", "usage", "size", "admitted"),
    [
        ([], ADA, 500, True),  # one is always admitted
        ([(ADA, 10)], BOB, 80, True),
        ([(ADA, 30)], BOB, 80, False),
        ([(ADA, 30)], ADA, 30, False),  # half is for others
        ([(ADA, 30)], ADA, 20, True),
    ],
)
def test_response_memory(held: list[tuple[Usage, int]], usage: Usage, size: int, admitted: bool) -> None:
    memory = FrameMemory(100, 30.0)
    for holding, bytes_held in held:
        assert memory.reserve(Holder(), holding, bytes_held, 0.0)

    assert memory.reserve(Holder(), usage, size, 0.0) is admitted


def test_memory_goes_to_those_that_have_waited_for_longest() -> None:
    memory = FrameMemory(100, 30.0)
    first, ada, bob, last = Holder(), Holder(), Holder(), Holder()
    assert memory.reserve(first, ADA, 50, 0.0)
    assert not memory.reserve(ada, ADA, 20, 0.0)
    assert not memory.reserve(bob, BOB, 90, 0.0)
    assert not memory.reserve(last, BOB, 60, 0.0)

    memory.release(first, 0.0)
    assert [one.granted for one in (ada, bob, last)] == [True, False, False]
    assert memory.reserve(ada, ADA, 20, 0.0)  # what it was called for
    memory.release(ada, 0.0)
    assert [one.granted for one in (bob, last)] == [True, False]
    memory.sweep(29.0)
    assert [bob.given_up, last.granted] == [False, False]
    memory.sweep(30.0)
    assert [bob.given_up, last.granted] == [True, True]
    memory.release(bob, 30.0)
    memory.release(last, 30.0)
    assert memory.bytes == 0
