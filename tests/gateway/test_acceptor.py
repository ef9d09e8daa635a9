"""Accepting clients: without descriptors to spare, and behind a load balancer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.gateway.config import NetworkRules
from penstock.gateway.limits.admission import Denial
from penstock.gateway.process.acceptor import DESCRIPTORS_RESERVED, fitted
from penstock.gateway.settings import Bounds, parse_gateway
from penstock.model.errors.settings import SettingInvalid
from penstock.wire.frames import Request, decode_response, encode_request
from tests.gateway.test_proxy_header import v2
from tests.gateway.test_settings import DOCUMENT
from tests.gateway.wires import quiet_gateway
from tests.harness.gateway import read_frame
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.gateway.process.server import Gateway

LOCAL = "127.0.0.1"
BALANCERS = NetworkRules((ipaddress.ip_network("127.0.0.1/32"),))
VERSIONS = encode_request(Request("ApiVersions", 0, 7, "c", {}))

# A gateway without room for one more descriptor; it prints how often it logged, then that it served.
EXHAUSTED = """
import asyncio, os, resource, socket, sys
from structlog.testing import capture_logs
from penstock.gateway.process import acceptor
from tests.gateway.test_acceptor import VERSIONS, listening
from tests.gateway.wires import quiet_gateway

async def main():
    acceptor.ACCEPT_AGAIN_SECONDS = 0.01
    gateway = quiet_gateway()
    port = listening(gateway)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    with capture_logs() as lines:
        while gateway.acceptor.failures < 20:
            await asyncio.sleep(0.01)
        print("lines", len(lines), "sessions", len(gateway.sessions))
        for descriptor in held:
            os.close(descriptor)
        while len(gateway.sessions) < 3:
            await asyncio.sleep(0.01)
    clients[0].sendall(VERSIONS)
    await asyncio.get_running_loop().run_in_executor(None, clients[0].recv, 4)
    print("served")
    await gateway.close()

asyncio.run(main())
"""


def listening(gateway: Gateway) -> int:
    """Accept for a gateway that was never started; returns the port."""
    port = gateway.acceptor.listen(LOCAL, 0, gateway.config.brokers[0])
    gateway.acceptor.accept()
    return port


def test_a_gateway_without_descriptors_pauses_and_logs_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXHAUSTED], capture_output=True, text=True, check=False, timeout=100
    )

    assert ended.stdout.split("\n")[:2] == ["lines 1 sessions 0", "served"], ended.stdout + ended.stderr


def test_connections_are_limited_by_descriptors() -> None:
    bounds = Bounds()

    assert fitted(bounds, 1 << 20) is bounds
    few = fitted(bounds, DESCRIPTORS_RESERVED + 200)
    assert (few.connections_max, few.half_open_max, few.half_open_per_address_max) == (100, 50, 5)
    assert fitted(bounds, 1).connections_max == 1


async def exchange(port: int, data: bytes) -> bytes:
    """What a client that sends this gets, up to the first frame; empty if it is closed."""
    reader, writer = await asyncio.open_connection(LOCAL, port)
    try:
        for at in range(0, len(data), 5):  # in pieces
            writer.write(data[at : at + 5])
            await writer.drain()
        return await read_frame(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.2 1 2\r\n", "192.0.2.7"),
        (v2(0x21, 0x11, bytes([192, 0, 2, 8, 1, 1, 1, 1, 0, 1, 0, 2]) + bytes(100)), "192.0.2.8"),
        (v2(0x20, 0x00), LOCAL),
    ],
)
async def test_behind_a_trusted_load_balancer_the_header_has_the_address(header: bytes, address: str) -> None:
    gateway = quiet_gateway(proxy_protocol=BALANCERS)
    port = listening(gateway)
    reader, writer = await asyncio.open_connection(LOCAL, port)

    writer.write(header + VERSIONS)  # at once: nothing behind the header is lost
    response = decode_response("ApiVersions", 0, await read_frame(reader))

    assert response.correlation_id == 7
    assert [session.connection.life.address for session in gateway.sessions.values()] == [address]
    assert gateway.admission.connections_from(address) == 1
    assert decode_response("ApiVersions", 0, await exchange(port, header + VERSIONS)).correlation_id == 7
    writer.close()
    await gateway.close()
    assert gateway.admission.open == 0


async def test_limits_by_address_use_the_header() -> None:
    gateway = quiet_gateway(Bounds(attempts_per_address_per_second=0.1), proxy_protocol=BALANCERS)
    port = listening(gateway)
    headers = [f"PROXY TCP4 192.0.2.{n} 198.51.100.2 1 2\r\n".encode() for n in (1, 1, 2)]

    served = [bool(await exchange(port, header + VERSIONS)) for header in headers]

    assert served == [True, False, True]
    assert gateway.denials[Denial.ADDRESS_RATE] == 1
    await gateway.close()


async def test_a_missing_or_invalid_header_closes_the_connection() -> None:
    gateway = quiet_gateway(proxy_protocol=BALANCERS)
    port = listening(gateway)

    received = [await exchange(port, data) for data in (VERSIONS, b"PROXY TCP4 x y 1 2\r\n", b"\x16\x03\x01")]

    assert received == [b""] * 3
    assert gateway.denials[Denial.PROXY_HEADER] == 3
    assert gateway.admission.open == 0
    await gateway.close()


async def test_a_header_from_elsewhere_is_no_header() -> None:
    elsewhere = NetworkRules((ipaddress.ip_network("10.0.0.0/8"),))
    gateway = quiet_gateway(proxy_protocol=elsewhere)
    port = listening(gateway)

    received = await exchange(port, b"PROXY TCP4 192.0.2.7 198.51.100.2 1 2\r\n" + VERSIONS)

    assert received == b""
    assert gateway.admission.connections_from("192.0.2.7") == 0
    assert await exchange(port, VERSIONS)
    await gateway.close()


def test_trusted_load_balancers_are_networks() -> None:
    settings, _ = parse_gateway(DOCUMENT | {"proxy_protocol": ["10.0.0.0/8", "::1/128"]})

    assert settings.proxy_protocol is not None
    assert settings.proxy_protocol.admit("10.1.2.3")
    assert not settings.proxy_protocol.admit("192.0.2.1")
    assert parse_gateway(DOCUMENT)[0].proxy_protocol is None
    with pytest.raises(SettingInvalid):
        parse_gateway(DOCUMENT | {"proxy_protocol": ["everywhere"]})


async def test_responses_to_apiversions_are_made_once() -> None:
    gateway = quiet_gateway()
    (broker,) = gateway.config.brokers

    responses = [
        gateway._api_versions_response(broker, version, number)
        for number, version in enumerate((0, 3, 0, 99, 30_000, -5))
    ]

    assert [int.from_bytes(response[4:8]) for response in responses] == list(range(6))
    assert responses[0][8:] == responses[2][8:] != responses[1][8:]
    assert len(gateway._versions_responses) == 3  # two versions, and any unknown one


@pytest.mark.parametrize(("sent", "denials"), [(b"", 0), (b"GET / HTTP/1.1\r\n", 1)])
async def test_a_check_whether_the_tls_port_is_open_is_no_denial(sent: bytes, denials: int) -> None:
    gateway = quiet_gateway()
    gateway.acceptor.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = socket.create_connection((LOCAL, listening(gateway)))

    async def connected() -> bool:
        return bool(gateway.sessions)

    async def gone() -> bool:
        return not gateway.sessions

    await eventually(connected)
    client.sendall(sent)
    client.close()
    await eventually(gone)
    await gateway.acceptor.close()
    assert gateway.denials[Denial.MALFORMED] == denials
