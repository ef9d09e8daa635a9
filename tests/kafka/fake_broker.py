"""A fake broker for what a real one does not do on demand: respond wrongly, hang, disconnect."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.wire.definitions import load
from penstock.wire.frames import Request, Response, decode_request, encode_response

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable


def all_versions() -> dict[str, Any]:
    keys = [
        {"ApiKey": key, "MinVersion": versions.first, "MaxVersion": versions.last}
        for key, api in load().apis().items()
        if (versions := load().request(api).valid_versions)
    ]
    return {"ErrorCode": 0, "ApiKeys": keys}


class FakeBroker:
    """Responds with `responses[api](request)`: a body, raw bytes to send unchanged, or None to disconnect."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.responses: dict[str, Callable[[Request], Any]] = {"ApiVersions": lambda request: all_versions()}
        self.requests: list[Request] = []
        self.host, self.port = "127.0.0.1", 0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()
            self._server = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = decode_request(await reader.readexactly(size))
                self.requests.append(request)
                response = self.responses[request.api](request)
                if inspect.isawaitable(response):
                    response = await response
                if response is None:
                    return
                if not isinstance(response, bytes):
                    response = Response(request.correlation_id, response)
                    response = encode_response(request.api, request.version, response)
                writer.write(response)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()


@asynccontextmanager
async def fake_broker(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeBroker]:
    broker = FakeBroker(tls)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def metadata(brokers: dict[int, FakeBroker], leaders: dict[tuple[str, int], int]) -> dict[str, Any]:
    """A Metadata response with these brokers and leaders."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), leader in leaders.items():
        topics.setdefault(topic, []).append({"PartitionIndex": partition, "LeaderId": leader})
    return {
        "Brokers": [{"NodeId": i, "Host": b.host, "Port": b.port} for i, b in brokers.items()],
        "ControllerId": min(brokers),
        "Topics": [{"Name": name, "Partitions": partitions} for name, partitions in topics.items()],
    }
