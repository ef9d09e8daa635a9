"""The HTTP API serves a renewed certificate without a restart, and keeps the old one until it is usable."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, cast

import pytest
import trustme
from structlog.testing import capture_logs

from penstock.certificate_reload import ServerCertificate, ServerTls
from penstock.control.process import Server
from penstock.model.errors.control import ServerCertificateInvalid
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.control.service import ControlPlane


class IdlePlane:
    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()


async def served(port: int) -> list[str]:
    """The certificate that a new connection gets; empty if the API is not up yet."""
    try:
        return (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))).split()
    except OSError:
        return []


async def test_a_renewed_certificate_is_served_and_half_of_one_is_not(tmp_path: Path) -> None:
    ca, path = trustme.CA(), tmp_path / "control.pem"
    ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)
    server = Server.bind("127.0.0.1:0", ServerTls(path))
    port = int(server.url.rpartition(":")[2])
    stop = asyncio.Event()
    plane = cast("ControlPlane", IdlePlane())
    running = asyncio.create_task(server.serve(plane, stop, report=lambda _: None))
    before = await eventually(lambda: served(port))

    with capture_logs() as logged:
        path.write_bytes(path.read_bytes()[:500])
        await eventually(lambda: logs(logged, "certificate not reloaded"))
        assert await served(port) == before
    renewed = ca.issue_cert("127.0.0.1")
    renewed.private_key_and_cert_chain_pem.write_to_path(path)
    expected = renewed.cert_chain_pems[0].bytes().decode().split()

    async def serves_the_new_one() -> bool:
        return await served(port) == expected

    await eventually(serves_the_new_one)
    assert server.url == f"https://127.0.0.1:{port}"
    stop.set()
    await running
    server.close()


async def logs(logged: Sequence[Mapping[str, Any]], event: str) -> bool:
    return any(entry["event"] == event for entry in logged)


def test_an_unusable_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    path, key = tmp_path / "control.pem", tmp_path / "other.key"
    trustme.CA().issue_cert("one").private_key_and_cert_chain_pem.write_to_path(path)
    trustme.CA().issue_cert("two").private_key_pem.write_to_path(key)

    with pytest.raises(ServerCertificateInvalid, match=r"control\.pem"):
        ServerCertificate(ServerTls(path, key))
