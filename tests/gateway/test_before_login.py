"""What clients can do to a gateway before they log in, as processes and sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from penstock.gateway.config import NetworkRules
from penstock.gateway.limits.admission import Denial
from penstock.gateway.settings import Bounds
from penstock.kafka.connection import Connection
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.wire import LoginRefused
from penstock.wire.frames import Request, decode_response, encode_request
from tests.gateway.test_server import certificate, place
from tests.harness.fleet import wait_for
from tests.harness.gateway import RunningGateway, new_access, read_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.gateway_process import GatewayFile


__all__ = ["certificate"]  # a fixture
pytestmark = pytest.mark.kafka
SECONDS = 30.0
DESCRIPTORS = 120


def test_metrics_are_not_served_on_the_tenants_address(file: GatewayFile) -> None:
    file.settings["listen"] = "127.0.0.2"
    file.write(new_access())

    (process,) = file.start().processes

    address = urlsplit(process.metrics)
    assert address.hostname == "127.0.0.1"
    with urlopen(process.metrics, timeout=SECONDS) as response:
        assert b"penstock_gateway_denials" in response.read()
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.2:{address.port}/metrics", timeout=SECONDS)


async def test_a_client_with_a_wrong_secret_does_not_lock_out_others_at_its_address(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = await asyncio.to_thread(make_gateway, new_access(), new_access())
    ada, bob = running.accesses
    secret = "w" * 64
    wrong = Security(Login(ada.key, secret, Mechanism.PLAIN))

    with capture_logs() as lines:
        outcomes = await asyncio.gather(
            *(Connection.open(*place(ada), wrong) for _ in range(40)), return_exceptions=True
        )
        for access in (ada, bob):
            async with await Connection.open(*place(access), access.security()) as connection:
                await connection.call("DescribeCluster", {})

    assert {type(outcome) for outcome in outcomes} == {LoginRefused}
    denied = [line for line in lines if line["event"] == "denied"]
    assert {(line["reason"], line["tenant"], line["key"]) for line in denied} == {
        (Denial.BAD_CREDENTIALS, ada.tenant.id, ada.key)
    }
    assert secret not in str(lines)


@pytest.mark.parametrize("attackers", [1, 3])
async def test_silent_connections_do_not_take_the_places_of_logins(
    make_gateway: Callable[..., RunningGateway], attackers: int
) -> None:
    bounds = Bounds(half_open_max=60, half_open_per_address_max=5, attempts_per_address_per_second=1000.0)
    running = await asyncio.to_thread(make_gateway, new_access(), bounds=bounds)
    (access,) = running.accesses
    with ExitStack() as open_sockets:
        for n in range(300):
            silent = open_sockets.enter_context(socket.socket())
            silent.bind((f"127.0.0.{2 + n % attackers}", 0))
            silent.connect(place(access))
        await asyncio.to_thread(
            wait_for, lambda: running.gateway.denials[Denial.ADDRESS_HALF_OPEN] >= 200, what="denials"
        )

        for _ in range(20):  # an honest client
            async with await Connection.open(*place(access), access.security()) as connection:
                await connection.call("DescribeCluster", {})

    assert running.gateway.denials[Denial.HALF_OPEN] == 0


def test_a_gateway_with_few_descriptors_serves_beside_silent_connections(file: GatewayFile) -> None:
    (access,) = file.write(new_access())
    file.start(descriptors=DESCRIPTORS)

    async def attack() -> None:
        with ExitStack() as open_sockets:
            for _ in range(200):
                silent = open_sockets.enter_context(socket.socket())
                silent.bind(("127.0.0.2", 0))
                silent.connect(place(access))
            async with await Connection.open(*place(access), access.security()) as connection:
                await connection.call("DescribeCluster", {})

    asyncio.run(attack())

    lines = file.path.with_suffix(".log").read_text()
    assert "fewer connections than configured" in lines
    assert "accepting paused" not in lines


async def test_tls_begins_after_the_proxy_header(
    make_gateway: Callable[..., RunningGateway], certificate: Path
) -> None:
    trusted = NetworkRules((ipaddress.ip_network("127.0.0.0/8"),))
    settings = {"certificate": certificate, "proxy_protocol": trusted}
    running = await asyncio.to_thread(make_gateway, new_access(), settings=settings)
    context = ssl.create_default_context(cafile=str(certificate.parent / "ca.pem"))
    reader, writer = await asyncio.open_connection(*place(running.accesses[0]))

    writer.write(b"PROXY TCP4 192.0.2.7 198.51.100.2 1 2\r\n")
    await writer.start_tls(context, server_hostname="127.0.0.1")
    writer.write(encode_request(Request("ApiVersions", 0, 7, "c", {})))

    assert decode_response("ApiVersions", 0, await read_frame(reader)).correlation_id == 7
    sessions = running.do(lambda: list(running.gateway.sessions.values()))
    assert [session.connection.life.address for session in sessions] == ["192.0.2.7"]
    writer.close()
