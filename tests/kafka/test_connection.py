"""One connection: pipelining, time-outs, cancellation, and a broker that misbehaves."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model.errors.wire import (
    ApiUnsupported,
    BrokerUnreachable,
    BrokerUntrusted,
    CallTimedOut,
    ConnectionLost,
    FrameTooLarge,
    LoginRefused,
    ResponseMalformed,
    ValueUnfit,
)
from penstock.wire.frames import Request, Response, encode_response
from tests.kafka.broker import FakeBroker, all_versions, fake_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with fake_broker() as one:
        one.answers["DescribeCluster"] = lambda request: {"ClusterId": "c"}
        one.answers["ListGroups"] = lambda request: {"Groups": [{"GroupId": request.body["StatesFilter"][0]}]}
        yield one


async def opened(broker: FakeBroker, **keys: Any) -> Connection:
    return await Connection.open(broker.host, broker.port, **keys)


async def test_many_calls_at_once_each_get_their_own_answer(broker: FakeBroker) -> None:
    async with await opened(broker, in_flight_max=4) as connection:
        answers = await asyncio.gather(
            *(connection.call("ListGroups", {"StatesFilter": [str(i)]}) for i in range(50))
        )

    assert [a["Groups"][0]["GroupId"] for a in answers] == [str(i) for i in range(50)]
    assert broker.connections == 1


async def test_no_more_requests_are_out_than_the_bound(broker: FakeBroker) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "c"}

    broker.answers["DescribeCluster"] = slow
    async with await opened(broker, in_flight_max=3) as connection:
        calls = [asyncio.create_task(connection.call("DescribeCluster")) for _ in range(10)]
        await asyncio.sleep(0)
        while len(broker.asked) < 2:  # ApiVersions, and the first of the three
            await asyncio.sleep(0.001)
        waiting = len(connection._waiting)
        release.set()
        await asyncio.gather(*calls)

    assert waiting == 3
    assert len(broker.asked) == 11


async def test_a_cancelled_call_leaves_the_connection_in_order(broker: FakeBroker) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "late"}

    broker.answers["DescribeCluster"] = slow
    async with await opened(broker, in_flight_max=1) as connection:
        call = asyncio.create_task(connection.call("DescribeCluster"))
        while len(broker.asked) < 2:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
        answer = await connection.call("ListGroups", {"StatesFilter": ["x"]})

    assert answer["Groups"][0]["GroupId"] == "x"
    assert broker.connections == 1


async def test_a_call_without_answer_ends_in_time_and_closes_the_connection(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.answers["DescribeCluster"] = never
    async with await opened(broker) as connection:
        with pytest.raises(CallTimedOut, match=r"DescribeCluster: no answer from .* within 0\.05 s"):
            await connection.call("DescribeCluster", timeout=0.05)

        assert connection.closed
        with pytest.raises(ConnectionLost, match="not answered in time"):
            await connection.call("ListGroups")


async def test_calls_that_wait_learn_that_the_connection_is_lost(broker: FakeBroker) -> None:
    broker.answers["DescribeCluster"] = lambda request: None
    async with await opened(broker) as connection:
        outcomes = await asyncio.gather(
            *(connection.call("DescribeCluster") for _ in range(3)), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {ConnectionLost}


async def test_closing_ends_the_calls_that_wait(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.answers["DescribeCluster"] = never
    connection = await opened(broker)
    call = asyncio.create_task(connection.call("DescribeCluster"))
    while len(broker.asked) < 2:
        await asyncio.sleep(0.001)

    await connection.close()
    await connection.close()

    with pytest.raises(ConnectionLost, match="closed on this side"):
        await call


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (struct.pack(">i", 2**31 - 1), FrameTooLarge),
        (struct.pack(">i", -5), FrameTooLarge),
        (struct.pack(">ii", 4, 999), ResponseMalformed),  # of another request
        (struct.pack(">iiB", 5, 2, 0), ResponseMalformed),  # header alone
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameTooLarge),
    ],
)
async def test_an_answer_that_is_none_is_refused(
    broker: FakeBroker, raw: bytes, error: type[Exception]
) -> None:
    broker.answers["DescribeCluster"] = lambda request: raw
    async with await opened(broker) as connection:
        with pytest.raises(error):
            await connection.call("DescribeCluster")


async def test_a_request_that_cannot_be_encoded_costs_nothing(broker: FakeBroker) -> None:
    async with await opened(broker, in_flight_max=1) as connection:
        with pytest.raises(ValueUnfit):
            await connection.call("DescribeCluster", {"EndpointType": "brokers"})
        answer = await connection.call("DescribeCluster")

    assert answer["ClusterId"] == "c"


async def test_a_write_that_wants_no_answer_gets_none(broker: FakeBroker) -> None:
    broker.answers["Produce"] = lambda request: b""
    async with await opened(broker, in_flight_max=1) as connection:
        answers = [await connection.call("Produce", {"Acks": 0}) for _ in range(3)]
        await connection.call("DescribeCluster")

    assert answers == [{}, {}, {}]


async def test_an_older_broker_is_asked_again_in_its_own_version(broker: FakeBroker) -> None:
    def old(request: Request) -> Any:
        if request.version > 0:
            versions = {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": 0}]}
            return encode_response("ApiVersions", 0, Response(request.correlation_id, versions))
        return {"ErrorCode": 0, "ApiKeys": [{"ApiKey": 60, "MinVersion": 0, "MaxVersion": 1}]}

    broker.answers["ApiVersions"] = old
    async with await opened(broker) as connection:
        version = connection.version_of("DescribeCluster")
        with pytest.raises(ApiUnsupported, match="Metadata is not spoken there"):
            connection.version_of("Metadata")
        with pytest.raises(ApiUnsupported):
            connection.version_of("DescribeCluster", newest=-1)

    assert version == 1


async def test_a_port_without_a_listener_is_unreachable(broker: FakeBroker) -> None:
    await broker.stop()

    with pytest.raises(BrokerUnreachable, match="cannot connect"):
        await opened(broker)


async def test_a_broker_that_says_nothing_is_unreachable_in_time(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.answers["ApiVersions"] = never

    with pytest.raises(BrokerUnreachable, match=r"no answer within 0\.05 s"):
        await opened(broker, timeout=0.05)


async def test_an_impostor_without_the_password_is_not_trusted(broker: FakeBroker) -> None:
    """It repeats what a real server would say, but cannot sign it."""

    def answer(request: Request) -> dict[str, Any]:
        said: bytes = request.body["AuthBytes"]
        if said.startswith(b"n,,"):
            nonce = said.rpartition(b"r=")[2]
            return {"AuthBytes": b"r=" + nonce + b"more,s=c2FsdA==,i=4096"}
        return {"AuthBytes": b"v=AAAA"}

    broker.answers["SaslHandshake"] = lambda request: {"Mechanisms": ["SCRAM-SHA-512"]}
    broker.answers["SaslAuthenticate"] = answer

    with pytest.raises(BrokerUntrusted, match="does not know the password"):
        await opened(broker, security=Security(Login("ada", "secret")))


@pytest.mark.parametrize("mechanism", Mechanism)
async def test_a_refused_login_says_why_and_what_is_offered(broker: FakeBroker, mechanism: Mechanism) -> None:
    broker.answers["SaslHandshake"] = lambda request: {"Mechanisms": ["GSSAPI"]}
    broker.answers["SaslAuthenticate"] = lambda request: {"ErrorCode": 58, "ErrorMessage": "no such user"}

    with pytest.raises(LoginRefused, match="no such user") as refused:
        await opened(broker, security=Security(Login("ada", "secret", mechanism)))

    assert "GSSAPI" in refused.value.advice
    assert "secret" not in repr(refused.value) + str(refused.value.facts)


async def test_plain_sends_user_and_password(broker: FakeBroker) -> None:
    broker.answers["SaslHandshake"] = lambda request: {"Mechanisms": ["PLAIN"]}
    broker.answers["SaslAuthenticate"] = lambda request: {"SessionLifetimeMs": 60_000}

    async with await opened(broker, security=Security(Login("ada", "secret", Mechanism.PLAIN))) as connection:
        expires = connection.expires_at

    assert broker.asked[-1].body["AuthBytes"] == b"\0ada\0secret"
    assert expires is not None
    assert [request.api for request in broker.asked] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certified(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_is_spoken_with_a_broker_that_can_be_trusted(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    security = Security(tls=tls_trusting(tmp_path / "ca.pem"), server_name="b1.example.com")

    async with fake_broker(certified(authority, "b1.example.com")) as broker:
        broker.answers["DescribeCluster"] = lambda request: {"ClusterId": "c"}
        async with await opened(broker, security=security) as connection:
            answer = await connection.call("DescribeCluster")

    assert answer["ClusterId"] == "c"
    assert security.protocol == "SSL"


@pytest.mark.parametrize(
    ("name", "ours", "said"),
    [
        ("b2.example.com", True, "Hostname mismatch"),
        ("b1.example.com", False, "unable to get local issuer certificate"),
    ],
)
async def test_a_broker_without_the_right_certificate_is_not_trusted(
    authority: trustme.CA, name: str, ours: bool, said: str
) -> None:
    trusting = ssl.create_default_context()
    (authority if ours else trustme.CA()).configure_trust(trusting)
    security = Security(tls=trusting, server_name="b1.example.com")

    async with fake_broker(certified(authority, name)) as broker:
        with pytest.raises(BrokerUntrusted, match=said):
            await opened(broker, security=security)


async def test_tls_at_a_plain_listener_is_unreachable(broker: FakeBroker) -> None:
    with pytest.raises(BrokerUnreachable):
        await opened(broker, security=Security(tls=ssl.create_default_context()), timeout=0.2)


def test_the_security_protocol_has_kafkas_name() -> None:
    assert Security().protocol == "PLAINTEXT"
    assert Security(Login("a", "b")).protocol == "SASL_PLAINTEXT"
    assert "secret" not in repr(Security(Login("a", "secret")))
    assert all_versions()["ApiKeys"]
