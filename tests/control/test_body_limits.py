"""Bodies of API requests: refused by their headers, before they are read."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import uvicorn

from penstock.control.api.app import make_api
from penstock.control.api.body_limits import BODY_BYTES_MAX
from tests.control.in_memory_plane import ROOT, InMemoryPlane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MANY = 200 << 20  # declared, and never sent
SECONDS = 30.0


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The API, served as the control plane serves it."""
    server = uvicorn.Server(
        uvicorn.Config(make_api(InMemoryPlane()), port=0, lifespan="off", log_level="error")
    )
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def response(port: int, path: str, token: str, sent: bytes, *headers: str) -> tuple[int, str]:
    """Status and error code; the server must respond to this much, and close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers, "", ""]
    writer.write("\r\n".join(head).encode() + sent)
    async with asyncio.timeout(SECONDS):
        received = await reader.read()
    writer.close()
    start, _, body = received.partition(b"\r\n\r\n")
    return int(start.split()[1]), json.loads(body)["code"]


@pytest.mark.parametrize(
    ("path", "token", "expected"),
    [
        ("/v1/clusters", "wrong", (401, "PEN-5010")),
        ("/v1/import", "wrong", (401, "PEN-5010")),
        ("/v1/clusters", ROOT, (413, "PEN-5028")),
        ("/v1/nothing", ROOT, (413, "PEN-5028")),
    ],
)
async def test_a_large_body_is_refused_by_its_headers(
    port: int, path: str, token: str, expected: tuple[int, str]
) -> None:
    assert await response(port, path, token, b"", f"Content-Length: {MANY}") == expected


async def test_a_body_without_a_length_is_refused_when_it_grows_too_large(port: int) -> None:
    chunk = b"x" * (BODY_BYTES_MAX + 1)
    sent = f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"

    assert await response(port, "/v1/clusters", ROOT, sent, "Transfer-Encoding: chunked") == (413, "PEN-5028")
