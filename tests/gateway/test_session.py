"""A session between two recording transports: order, pauses, and what is never passed on."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from bench.gateway_load import produce_frame
from penstock.gateway.config import ApiKey, ServiceAccount
from penstock.gateway.connection.local_requests import CORRELATION_ID, LOOK_UP_VERSION
from penstock.gateway.connection.states import CLIENT_FULL, IN_FLIGHT, State
from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.platform_turns import REQUESTS_AT_ONCE
from penstock.gateway.process.session import Session
from penstock.model.errors.gateway import BrokersUnknown, TooManyEarlyRequests
from penstock.model.ids import LogicalClusterId
from penstock.wire.error_codes import Code
from penstock.wire.frames import (
    Request,
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.gateway.test_slots import EVERY_ACL
from tests.gateway.wires import BOUNDS, BROKER, LOGIN, PRINCIPAL, TENANT, Wire, quiet_gateway, serving_session

if TYPE_CHECKING:
    from penstock.gateway.process.server import Gateway
    from penstock.kafka.admin.acls import Acl

SECONDS = 30.0


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


async def test_a_request_is_renamed_and_its_response_passed_on(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.data_received(heartbeat(7))
    session.from_broker(beat(7))

    (sent,) = broker.frames()
    assert decode_request(sent).body["GroupId"] == "lkc-7hq2mz_g"
    assert client.frames() == [beat(7)[4:]]
    assert session.connection.usage.requests == 1


async def test_a_topic_that_was_deleted_is_forgotten(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    assert session.connection.context is not None
    session.connection.context.topics.learn(b"lkc-7hq2mz_orders", bytes(15) + b"1")
    deleted = {"Responses": [{"Name": "lkc-7hq2mz_orders", "ErrorCode": 0}]}

    session.data_received(request("DeleteTopics", 1, 3, TopicNames=["orders"], TimeoutMs=1))
    session.from_broker(encode_response("DeleteTopics", 1, Response(3, deleted)))

    assert len(client.frames()) == 1
    assert b"lkc-7hq2mz_orders" not in session.connection.context.topics.by_name


async def test_local_responses_wait_for_those_before_them(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving

    session.data_received(heartbeat(1) + versions_request(2) + heartbeat(3))
    early = client.frames()
    session.from_broker(beat(1) + beat(3))

    assert early == []
    assert [int.from_bytes(frame[:4]) for frame in client.frames()] == [1, 2, 3]


async def test_a_flood_of_local_requests_is_bounded(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.data_received(heartbeat(1) + b"".join(versions_request(n) for n in range(2, 50)))

    assert session.connection.pauses == IN_FLIGHT
    assert not client.is_reading()
    assert len(session.connection.in_flight) == BOUNDS.in_flight_max
    session.from_broker(beat(1))
    assert client.is_reading()
    assert len(client.frames()) == 49
    assert len(broker.frames()) == 1


async def test_a_client_that_does_not_read_is_not_read(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, broker = serving

    session.pause_writing()
    session.data_received(versions_request(1) + heartbeat(2))

    assert session.connection.pauses == CLIENT_FULL
    assert not client.is_reading()
    assert not broker.is_reading()
    assert client.frames() == broker.frames() == []
    session.resume_writing()
    assert len(client.frames()) == len(broker.frames()) == 1
    assert client.is_reading()
    assert broker.is_reading()


async def test_a_broker_that_does_not_keep_up_stops_the_client(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    assert session.upstream is not None

    session.upstream.pause_writing()
    paused = client.is_reading()
    session.upstream.resume_writing()

    assert not paused
    assert client.is_reading()


async def test_draining_holds_new_requests_and_closes_when_all_have_a_response(
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
async def test_only_a_login_is_accepted_before_login(gateway: Gateway, frame: bytes) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)

    session.data_received(frame)

    assert client.closed
    assert client.frames() == []
    assert session.connection.life.state is State.CLOSED
    assert gateway.denials[Denial.API_REFUSED] == 1


async def test_too_many_requests_before_login_close_the_connection(gateway: Gateway) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)
    most = gateway.settings.bounds.unauthenticated_requests_max

    for number in range(most + 5):
        session.data_received(versions_request(number))

    assert len(client.frames()) == most
    assert client.closed
    assert session.connection.life.close_reason == str(TooManyEarlyRequests(limit=most))


async def test_a_login_outside_of_kafka_frames_is_refused(gateway: Gateway) -> None:
    assert gateway.admission.admit_connection("127.0.0.1", gateway.now()) is None
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)

    session.data_received(request("SaslHandshake", 0, 3, Mechanism="PLAIN"))

    (response,) = client.frames()
    assert decode_response("SaslHandshake", 0, response).body["ErrorCode"] == Code.UNSUPPORTED_VERSION


async def test_a_session_that_timed_out_during_tls_stays_closed(gateway: Gateway) -> None:
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.abort("too late")

    session.connection_made(client)

    assert client.closed


def metadata_response(version: int, number: int, *brokers: int) -> bytes:
    listed = [{"NodeId": one, "Host": "h", "Port": 1, "Rack": None} for one in brokers]
    body = {"Brokers": listed, "ClusterId": "c", "ControllerId": 1, "Topics": []}
    return encode_response("Metadata", version, Response(number, body))


@pytest.mark.parametrize("version", [2, 9, 13])
async def test_metadata_without_brokers_closes_the_connection(
    gateway: Gateway, serving: tuple[Session, Wire, Wire], version: int
) -> None:
    """As from a broker that has just started: librdkafka could reach no broker any more."""
    session, client, broker = serving
    session.data_received(heartbeat(1))
    session.data_received(request("Metadata", version, 2, Topics=None))
    assert len(broker.frames()) == 2

    session.from_broker(beat(1) + metadata_response(version, 2))

    assert client.frames() == [beat(1)[4:]]
    assert client.closed
    assert gateway.denials[Denial.UPSTREAM] == 1


async def test_metadata_of_one_broker_is_passed_on(serving: tuple[Session, Wire, Wire]) -> None:
    session, client, _ = serving
    session.data_received(request("Metadata", 12, 1, Topics=None))

    session.from_broker(metadata_response(12, 1, 1))

    (response,) = client.frames()
    (listed,) = decode_response("Metadata", 12, response).body["Brokers"]
    assert (listed["Host"], listed["Port"]) == ("gateway", 9001)


async def test_the_gateways_own_metadata_request_fails_without_brokers(
    serving: tuple[Session, Wire, Wire],
) -> None:
    session, client, broker = serving
    created = {"Topics": [{"Name": "t", "Count": 2, "Assignments": None}], "TimeoutMs": 1}
    session.data_received(request("CreatePartitions", 3, 1, **created))
    assert len(broker.frames()) == 1

    session.from_broker(metadata_response(LOOK_UP_VERSION, CORRELATION_ID))

    assert client.closed
    assert BrokersUnknown.code in session.connection.life.close_reason


async def test_draining_in_the_middle_of_a_frame_keeps_back_pressure(
    serving: tuple[Session, Wire, Wire],
) -> None:
    session, client, broker = serving
    frame = produce_frame("orders", 5_000_000, 1)
    middle = len(frame) // 2
    session.data_received(frame[:middle])
    session.drain()
    read = [client.is_reading()]  # the rest of it is read

    session.broker_backpressure(True)
    read.append(client.is_reading())
    session.broker_backpressure(False)
    read.append(client.is_reading())
    session.data_received(frame[middle:] + heartbeat(2))
    read.append(client.is_reading())  # the next one is not

    assert read == [True, False, True, False]
    assert len(broker.frames()) == 1
    assert not client.closed


async def test_rejected_logins_are_closed_sooner_while_many_connections_are_half_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = quiet_gateway(replace(BOUNDS, half_open_max=4))
    session = Session(gateway, 1, "127.0.0.1", BROKER)
    session.connection_made(Wire())
    waits: list[float] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda wait, *_: waits.append(wait))

    session._reject(LOGIN, Denial.TENANT_RATE)
    session._carry_out()
    for n in range(3):
        assert gateway.admission.admit_connection(f"10.0.0.{n}", 0.0) is None
    session._reject(LOGIN, Denial.TENANT_RATE)
    session._carry_out()

    assert waits[0] >= 1 > waits[1]


@pytest.mark.parametrize("known", [False, True])
async def test_a_request_beyond_its_bound_closes_the_connection_on_both_paths(
    known: bool,
) -> None:
    session, client, broker = serving_session(quiet_gateway(replace(BOUNDS, frame_bytes_max=2048)))
    if known:
        session.data_received(produce_frame("orders", 100, 1))
    session.data_received(produce_frame("orders", 20_000, 1))

    assert len(broker.frames()) == known
    assert client.closed


class BrokenPlatform:
    async def acls_of(self, tenant: object, accounts: object) -> list[Acl]:
        raise KeyError(tenant, accounts)


async def closed_and_reported(client: Wire) -> None:
    """Wait until the connection is closed, and check that its defect was reported."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with asyncio.timeout(SECONDS):
        while not client.closed:
            await asyncio.sleep(0)
    assert reported == ["a connection failed"]


async def test_a_defect_in_a_platform_request_closes_its_connection(gateway: Gateway) -> None:
    session, client, _ = serving_session(gateway)
    gateway.services.platform = BrokenPlatform()  # type: ignore[assignment]  # it has what is called

    session.data_received(request("DescribeAcls", 3, 2, **EVERY_ACL))

    await closed_and_reported(client)


class SlowPlatform:
    """Counts the calls at once; each ends when the event is set, and takes some time of the event loop."""

    def __init__(self, work_seconds: float = 0.0) -> None:
        self.calls = self.most = 0
        self.end = asyncio.Event()
        self.work_seconds = work_seconds

    async def acls_of(self, tenant: object, accounts: object) -> list[Acl]:
        del tenant, accounts
        self.calls += 1
        self.most = max(self.most, self.calls)
        await self.end.wait()
        self.calls -= 1
        until = time.monotonic() + self.work_seconds
        while time.monotonic() < until:
            pass
        return []


async def responded(clients: list[Wire]) -> None:
    async with asyncio.timeout(SECONDS):
        while clients:
            clients = [client for client in clients if not client.frames()]
            await asyncio.sleep(0)


async def test_a_tenant_has_a_few_platform_requests_at_once(gateway: Gateway) -> None:
    platform = SlowPlatform()
    gateway.services.platform = platform  # type: ignore[assignment]  # it has what is called
    connections = [serving_session(gateway) for _ in range(3 * REQUESTS_AT_ONCE)]

    for session, _, _ in connections:
        session.data_received(request("DescribeAcls", 3, 2, **EVERY_ACL))
    for _ in range(100):
        await asyncio.sleep(0)

    assert platform.calls == REQUESTS_AT_ONCE
    other = gateway.platform_turns.of(LogicalClusterId("lkc-000002"))
    assert not other.locked()
    platform.end.set()
    await responded([client for _, client, _ in connections])
    assert platform.most == REQUESTS_AT_ONCE


async def test_a_platform_request_is_charged_to_its_tenant(gateway: Gateway) -> None:
    platform = SlowPlatform(work_seconds=0.02)
    gateway.services.platform = platform  # type: ignore[assignment]  # it has what is called
    session, client, _ = serving_session(gateway)
    before = session.connection.usage.processor_seconds

    session.data_received(request("DescribeAcls", 3, 2, **EVERY_ACL))
    platform.end.set()
    await responded([client])

    assert session.connection.usage.processor_seconds - before >= platform.work_seconds


async def test_a_login_whose_tenant_is_deleted_meanwhile_closes_its_connection(gateway: Gateway) -> None:
    account = ServiceAccount(PRINCIPAL.account)
    key = ApiKey("K" * 16, hashlib.sha256(b"secret").digest(), account.id)
    tenant = replace(TENANT, accounts={account.id: account}, keys=(key,))
    gateway.config = replace(gateway.config, tenants=(tenant,))
    assert gateway.admission.admit_connection("127.0.0.1", gateway.now()) is None
    session, client = Session(gateway, 1, "127.0.0.1", BROKER), Wire()
    session.connection_made(client)

    session.data_received(request("SaslHandshake", 1, 1, Mechanism="PLAIN"))
    session.data_received(request("SaslAuthenticate", 2, 2, AuthBytes=b"\0" + b"K" * 16 + b"\0secret"))
    gateway.config = replace(gateway.config, tenants=())

    await closed_and_reported(client)


async def test_a_defect_in_one_connection_does_not_end_the_sweep_of_others(gateway: Gateway) -> None:
    sessions = [serving_session(gateway)[0] for _ in range(2)]
    gateway.sessions = dict(enumerate(sessions))
    sessions[0].connection.renew_at = 0.0
    gateway.config = replace(gateway.config, tenants=())  # so that its Kafka user is unknown
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    gateway.sweep(gateway.now() + 1)

    assert [session.connection.closed for session in sessions] == [True, False]
