"""A session between two transports that only remember: order, pauses, and what is never passed on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from bench.gateway_load import produce_frame
from penstock.gateway.admission import Denial
from penstock.gateway.dialogue import CORRELATION_ID, LOOK_UP_VERSION
from penstock.gateway.session import Session
from penstock.gateway.states import CLIENT_FULL, IN_FLIGHT, State
from penstock.model.errors.gateway import BrokersUnknown
from penstock.wire.codes import Code
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.gateway.wires import BOUNDS, BROKER, Wire, quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.server import Gateway


@pytest.fixture
async def gateway() -> Gateway:
    return quiet_gateway()


@pytest.fixture
async def serving(gateway: Gateway) -> tuple[Session, Wire, Wire]:
    return serving_session(gateway)


def request(api: str, version: int, number: int, **body: Any) -> bytes:
    return encode_request(Request(api, version, number, "c", body))


def versions_request(number: int) -> bytes:
    return request("ApiVersions", 0, number)


def heartbeat(number: int) -> bytes:
    return request("Heartbeat", 0, number, GroupId="g", GenerationId=1, MemberId="m")


def beat(number: int) -> bytes:
    return encode_response("Heartbeat", 0, Response(number, {"ErrorCode": 0}))


async def test_a_request_is_renamed_and_its_answer_comes_back(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.data_received(heartbeat(7))
    session.from_broker(beat(7))

    (sent,) = broker.frames()
    assert decode_request(sent).body["GroupId"] == "lkc-7hq2mz_g"
    assert client.frames() == [beat(7)[4:]]
    assert session.usage.requests == 1


async def test_a_topic_that_was_deleted_is_forgotten(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    assert session.realm is not None
    session.realm.topics.learn(b"lkc-7hq2mz_orders", bytes(15) + b"1")
    told = {"Responses": [{"Name": "lkc-7hq2mz_orders", "ErrorCode": 0}]}

    session.data_received(request("DeleteTopics", 1, 3, TopicNames=["orders"], TimeoutMs=1))
    session.from_broker(encode_response("DeleteTopics", 1, Response(3, told)))

    assert len(client.frames()) == 1
    assert b"lkc-7hq2mz_orders" not in session.realm.topics.by_name


async def test_our_own_answers_wait_for_those_before_them(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving

    session.data_received(heartbeat(1) + versions_request(2) + heartbeat(3))
    early = client.frames()
    session.from_broker(beat(1) + beat(3))

    assert early == []
    assert [int.from_bytes(frame[:4]) for frame in client.frames()] == [1, 2, 3]


async def test_a_flood_of_requests_answered_here_is_bounded(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.data_received(heartbeat(1) + b"".join(versions_request(n) for n in range(2, 50)))

    assert session.pauses == IN_FLIGHT
    assert not client.reading
    assert len(session.waiting) == BOUNDS.in_flight_max
    session.from_broker(beat(1))
    assert client.reading
    assert len(client.frames()) == 49
    assert len(broker.frames()) == 1


async def test_a_client_that_does_not_read_is_not_read(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.pause_writing()
    session.data_received(versions_request(1) + heartbeat(2))

    assert session.pauses == CLIENT_FULL
    assert not client.reading
    assert not broker.reading
    assert client.frames() == broker.frames() == []
    session.resume_writing()
    assert len(client.frames()) == len(broker.frames()) == 1
    assert client.reading
    assert broker.reading


async def test_a_broker_that_does_not_keep_up_stops_the_client(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    assert session.upstream is not None

    session.upstream.pause_writing()
    paused = client.reading
    session.upstream.resume_writing()

    assert not paused
    assert client.reading


async def test_draining_holds_what_is_new_and_closes_when_all_is_answered(
    serving: tuple[Session, Wire, Wire],
) -> None:
    session, client, broker = serving
    session.data_received(heartbeat(1))
    broker.frames()

    session.drain()
    session.data_received(heartbeat(2))
    open_meanwhile = not client.closed
    session.from_broker(beat(1))

    assert open_meanwhile
    assert broker.frames() == []
    assert client.frames() == [beat(1)[4:]]
    assert client.closed


@pytest.mark.parametrize(
    "frame",
    [
        encode_request(Request("Metadata", 9, 1, "c", {"Topics": None})),
        encode_request(Request("Vote", 2, 1, "c", {})),
        b"\0\0\0\x0a" + b"\x7f" * 10,
    ],
)
async def test_nothing_but_a_login_is_heard_before_one(gateway: Gateway, frame: bytes) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)

    session.data_received(frame)

    assert client.closed
    assert client.frames() == []
    assert session.life.state is State.CLOSED
    assert gateway.denials[Denial.API_REFUSED] == 1


async def test_a_login_outside_of_frames_is_refused(gateway: Gateway) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)

    session.data_received(request("SaslHandshake", 0, 3, Mechanism="PLAIN"))

    (answer,) = client.frames()
    assert decode_response("SaslHandshake", 0, answer).body["ErrorCode"] == Code.UNSUPPORTED_VERSION


async def test_a_session_given_up_during_tls_does_not_come_back(gateway: Gateway) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.abort("too late")

    session.connection_made(client)

    assert client.closed


def metadata_answer(version: int, number: int, *brokers: int) -> bytes:
    listed = [{"NodeId": one, "Host": "h", "Port": 1, "Rack": None} for one in brokers]
    body = {"Brokers": listed, "ClusterId": "c", "ControllerId": 1, "Topics": []}
    return encode_response("Metadata", version, Response(number, body))


@pytest.mark.parametrize("version", [2, 9, 13])
async def test_metadata_without_brokers_is_taken_for_a_broker_that_is_away(
    gateway: Gateway, serving: tuple[Session, Wire, Wire], version: int
) -> None:
    """As one may give it that has just started: librdkafka would have nobody left to ask."""
    session, client, broker = serving
    session.data_received(heartbeat(1))
    session.data_received(request("Metadata", version, 2, Topics=None))
    assert len(broker.frames()) == 2

    session.from_broker(beat(1) + metadata_answer(version, 2))

    assert client.frames() == [beat(1)[4:]]
    assert client.closed
    assert gateway.denials[Denial.UPSTREAM] == 1


async def test_metadata_of_one_broker_is_passed_on(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    session.data_received(request("Metadata", 12, 1, Topics=None))

    session.from_broker(metadata_answer(12, 1, 1))

    (answer,) = client.frames()
    (listed,) = decode_response("Metadata", 12, answer).body["Brokers"]
    assert (listed["Host"], listed["Port"]) == ("gateway", 9001)


async def test_what_is_asked_for_a_tenant_is_not_taken_from_a_broker_that_knows_none(
    serving: tuple[Session, Wire, Wire],
) -> None:
    session, _, broker = serving
    asked = asyncio.create_task(session.dialogue.ask_metadata(None, LOOK_UP_VERSION))
    await asyncio.sleep(0)
    assert len(broker.frames()) == 1

    session.from_broker(metadata_answer(LOOK_UP_VERSION, CORRELATION_ID))

    with pytest.raises(BrokersUnknown):
        await asked


async def test_draining_in_the_middle_of_a_frame_keeps_back_pressure(
    serving: tuple[Session, Wire, Wire],
) -> None:
    session, client, broker = serving
    frame = produce_frame("orders", 5_000_000, 1)
    middle = len(frame) // 2
    session.data_received(frame[:middle])
    session.drain()
    read = [client.reading]  # the rest of it is wanted

    session.broker_stalls(True)
    read.append(client.reading)
    session.broker_stalls(False)
    read.append(client.reading)
    session.data_received(frame[middle:] + heartbeat(2))
    read.append(client.reading)  # the next one is not

    assert read == [True, False, True, False]
    assert len(broker.frames()) == 1
    assert not client.closed


async def test_whoever_comes_too_often_is_let_go_sooner_while_the_door_is_crowded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = quiet_gateway(replace(BOUNDS, half_open_max=4))
    session = Session(gateway, 1, "127.0.0.1", BROKER)
    session.connection_made(Wire())
    login = Request("SaslAuthenticate", 2, 1, "c", {"AuthBytes": b""})
    waits: list[float] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda wait, *_: waits.append(wait))

    session.dialogue.turn_away(login, Denial.TENANT_RATE)
    for n in range(3):
        assert gateway.doorkeeper.knock(f"10.0.0.{n}", 0.0) is None
    session.dialogue.turn_away(login, Denial.TENANT_RATE)

    assert waits[0] >= 1 > waits[1]


@pytest.mark.parametrize("known", [False, True])
async def test_a_request_beyond_its_bound_ends_the_connection_whether_or_not_its_like_is_known(
    known: bool,
) -> None:
    session, client, broker = serving_session(quiet_gateway(replace(BOUNDS, frame_bytes_max=2048)))
    if known:
        session.data_received(produce_frame("orders", 100, 1))
    session.data_received(produce_frame("orders", 20_000, 1))

    assert len(broker.frames()) == known
    assert client.closed
