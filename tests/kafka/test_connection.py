"""One connection: pipelining, time-outs, cancellation, and a broker that misbehaves."""

from __future__ import annotations

import asyncio
import ssl
import struct
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model.errors.wire import (
    ApiUnsupported,
    BrokerUnreachable,
    BrokerUntrusted,
    CallTimedOut,
    ConnectionLost,
    LoginRefused,
    ResponseMalformed,
    ResponseTooLarge,
    ValueUnfit,
)
from penstock.wire.frames import Request, Response, encode_response
from tests.kafka.fake_broker import FakeBroker, all_versions, fake_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with fake_broker() as one:
        one.responses["DescribeCluster"] = lambda request: {"ClusterId": "c"}
        one.responses["ListGroups"] = lambda request: {
            "Groups": [{"GroupId": request.body["StatesFilter"][0]}]
        }
        yield one


async def opened(broker: FakeBroker, **keys: Any) -> Connection:
    return await Connection.open(broker.host, broker.port, **keys)


async def test_concurrent_calls_each_get_their_response(broker: FakeBroker) -> None:
    async with await opened(broker, in_flight_max=4) as connection:
        responses = await asyncio.gather(
            *(connection.call("ListGroups", {"StatesFilter": [str(i)]}) for i in range(50))
        )

    assert [a["Groups"][0]["GroupId"] for a in responses] == [str(i) for i in range(50)]
    assert broker.connections == 1


async def test_requests_in_flight_are_bounded(broker: FakeBroker) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "c"}

    broker.responses["DescribeCluster"] = slow
    async with await opened(broker, in_flight_max=3) as connection:
        calls = [asyncio.create_task(connection.call("DescribeCluster")) for _ in range(10)]
        await asyncio.sleep(0)
        while len(broker.requests) < 2:  # ApiVersions, and the first of the three
            await asyncio.sleep(0.001)
        waiting = len(connection._waiting)
        release.set()
        await asyncio.gather(*calls)

    assert waiting == 3
    assert len(broker.requests) == 11


async def test_a_cancelled_call_leaves_the_connection_usable(broker: FakeBroker) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> dict[str, Any]:
        await release.wait()
        return {"ClusterId": "late"}

    broker.responses["DescribeCluster"] = slow
    async with await opened(broker, in_flight_max=1) as connection:
        call = asyncio.create_task(connection.call("DescribeCluster"))
        while len(broker.requests) < 2:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
        response = await connection.call("ListGroups", {"StatesFilter": ["x"]})

    assert response["Groups"][0]["GroupId"] == "x"
    assert broker.connections == 1


async def test_a_call_that_times_out_closes_the_connection(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.responses["DescribeCluster"] = never
    async with await opened(broker) as connection:
        with pytest.raises(CallTimedOut, match=r"DescribeCluster: no response from .* within 0\.05 s"):
            await connection.call("DescribeCluster", timeout=0.05)

        assert connection.closed
        with pytest.raises(ConnectionLost, match="DescribeCluster timed out"):
            await connection.call("ListGroups")


async def test_pending_calls_fail_when_the_connection_is_lost(broker: FakeBroker) -> None:
    broker.responses["DescribeCluster"] = lambda request: None
    async with await opened(broker) as connection:
        outcomes = await asyncio.gather(
            *(connection.call("DescribeCluster") for _ in range(3)), return_exceptions=True
        )

    assert {type(outcome) for outcome in outcomes} == {ConnectionLost}


async def test_closing_fails_pending_calls(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.responses["DescribeCluster"] = never
    connection = await opened(broker)
    call = asyncio.create_task(connection.call("DescribeCluster"))
    while len(broker.requests) < 2:
        await asyncio.sleep(0.001)

    await connection.close()
    await connection.close()

    with pytest.raises(ConnectionLost, match="closed by this client"):
        await call


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (struct.pack(">i", 2**31 - 1), ResponseTooLarge),
        (struct.pack(">i", -5), ResponseTooLarge),
        (struct.pack(">ii", 4, 999), ResponseMalformed),  # of another request
        (struct.pack(">iiB", 5, 2, 0), ResponseMalformed),  # header alone
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ResponseTooLarge),
    ],
)
async def test_a_malformed_response_is_rejected(
    broker: FakeBroker, raw: bytes, error: type[Exception]
) -> None:
    broker.responses["DescribeCluster"] = lambda request: raw
    async with await opened(broker) as connection:
        with pytest.raises(error):
            await connection.call("DescribeCluster")


async def test_a_request_that_cannot_be_encoded_does_not_use_up_a_slot(broker: FakeBroker) -> None:
    async with await opened(broker, in_flight_max=1) as connection:
        with pytest.raises(ValueUnfit):
            await connection.call("DescribeCluster", {"EndpointType": "brokers"})
        response = await connection.call("DescribeCluster")

    assert response["ClusterId"] == "c"


async def test_a_produce_with_acks_0_returns_an_empty_response(broker: FakeBroker) -> None:
    broker.responses["Produce"] = lambda request: b""
    async with await opened(broker, in_flight_max=1) as connection:
        responses = [await connection.call("Produce", {"Acks": 0}) for _ in range(3)]
        await connection.call("DescribeCluster")

    assert responses == [{}, {}, {}]


async def test_versions_are_negotiated_again_with_an_older_broker(broker: FakeBroker) -> None:
    def old(request: Request) -> Any:
        if request.version > 0:
            versions = {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": 0}]}
            return encode_response("ApiVersions", 0, Response(request.correlation_id, versions))
        return {"ErrorCode": 0, "ApiKeys": [{"ApiKey": 60, "MinVersion": 0, "MaxVersion": 1}]}

    broker.responses["ApiVersions"] = old
    async with await opened(broker) as connection:
        version = connection.version_of("DescribeCluster")
        with pytest.raises(ApiUnsupported, match="no common version of Metadata"):
            connection.version_of("Metadata")
        with pytest.raises(ApiUnsupported):
            connection.version_of("DescribeCluster", version_max=-1)

    assert version == 1


async def test_a_port_without_a_listener_is_unreachable(broker: FakeBroker) -> None:
    await broker.stop()

    with pytest.raises(BrokerUnreachable, match="cannot connect"):
        await opened(broker)


async def test_a_silent_broker_is_unreachable_after_the_timeout(broker: FakeBroker) -> None:
    async def never(request: Request) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    broker.responses["ApiVersions"] = never

    with pytest.raises(BrokerUnreachable, match=r"no response within 0\.05 s"):
        await opened(broker, timeout=0.05)


async def test_an_impostor_without_the_password_is_not_trusted(broker: FakeBroker) -> None:
    """It sends what a real server would send, but cannot sign it."""

    def response(request: Request) -> dict[str, Any]:
        token: bytes = request.body["AuthBytes"]
        if token.startswith(b"n,,"):
            nonce = token.rpartition(b"r=")[2]
            return {"AuthBytes": b"r=" + nonce + b"more,s=c2FsdA==,i=4096"}
        return {"AuthBytes": b"v=AAAA"}

    broker.responses["SaslHandshake"] = lambda request: {"Mechanisms": ["SCRAM-SHA-512"]}
    broker.responses["SaslAuthenticate"] = response

    with pytest.raises(BrokerUntrusted, match="does not know the password"):
        await opened(broker, security=Security(Login("ada", "secret")))


@pytest.mark.parametrize("mechanism", Mechanism)
async def test_a_rejected_login_names_the_reason_and_the_offered_mechanisms(
    broker: FakeBroker, mechanism: Mechanism
) -> None:
    broker.responses["SaslHandshake"] = lambda request: {"Mechanisms": ["GSSAPI"]}
    broker.responses["SaslAuthenticate"] = lambda request: {"ErrorCode": 58, "ErrorMessage": "no such user"}

    with pytest.raises(LoginRefused, match="no such user") as refused:
        await opened(broker, security=Security(Login("ada", "secret", mechanism)))

    assert "GSSAPI" in refused.value.advice
    assert "secret" not in repr(refused.value) + str(refused.value.facts)


async def test_plain_sends_user_and_password(broker: FakeBroker) -> None:
    broker.responses["SaslHandshake"] = lambda request: {"Mechanisms": ["PLAIN"]}
    broker.responses["SaslAuthenticate"] = lambda request: {"SessionLifetimeMs": 60_000}

    async with await opened(broker, security=Security(Login("ada", "secret", Mechanism.PLAIN))) as connection:
        expires = connection.expires_at

    assert broker.requests[-1].body["AuthBytes"] == b"\0ada\0secret"
    assert expires is not None
    assert [request.api for request in broker.requests] == [
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
    ]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certified(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_connects_to_a_trusted_broker(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    security = Security(tls=tls_context(tmp_path / "ca.pem"), server_name="b1.example.com")

    async with fake_broker(certified(authority, "b1.example.com")) as broker:
        broker.responses["DescribeCluster"] = lambda request: {"ClusterId": "c"}
        async with await opened(broker, security=security) as connection:
            response = await connection.call("DescribeCluster")

    assert response["ClusterId"] == "c"
    assert security.protocol == "SSL"


@pytest.mark.parametrize(
    ("name", "trusted", "reason"),
    [
        ("b2.example.com", True, "Hostname mismatch"),
        ("b1.example.com", False, "unable to get local issuer certificate"),
    ],
)
async def test_a_broker_without_the_right_certificate_is_not_trusted(
    authority: trustme.CA, name: str, trusted: bool, reason: str
) -> None:
    trusting = ssl.create_default_context()
    (authority if trusted else trustme.CA()).configure_trust(trusting)
    security = Security(tls=trusting, server_name="b1.example.com")

    async with fake_broker(certified(authority, name)) as broker:
        with pytest.raises(BrokerUntrusted, match=reason):
            await opened(broker, security=security)


async def test_tls_to_a_plaintext_listener_is_unreachable(broker: FakeBroker) -> None:
    with pytest.raises(BrokerUnreachable):
        await opened(broker, security=Security(tls=ssl.create_default_context()), timeout=0.2)


def test_the_security_protocol_has_kafkas_name() -> None:
    assert Security().protocol == "PLAINTEXT"
    assert Security(Login("a", "b")).protocol == "SASL_PLAINTEXT"
    assert "secret" not in repr(Security(Login("a", "secret")))
    assert all_versions()["ApiKeys"]
