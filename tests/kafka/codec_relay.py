"""A relay in front of every broker that decodes and re-encodes all requests and responses.

It replaces broker addresses in responses with its own, so that clients keep using it. Frames that the
codec does not reproduce byte for byte are recorded in `changed`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.wire.frames import (
    Response,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Address = tuple[str, int]


@dataclass
class Relay:
    ports: dict[Address, int] = field(default_factory=dict)  # broker → where its relay listens
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by API and version
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    changed: list[tuple[str, str, int, bytes, bytes]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def apis(self) -> set[str]:
        return {api for api, _ in self.responses}

    async def serve(
        self, broker: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            upstream = await asyncio.open_connection(*broker)
        except BaseException:
            writer.transport.abort()
            raise
        waiting: deque[tuple[str, int]] = deque()
        pumps = [
            asyncio.create_task(self._pump_requests(reader, upstream[1], waiting)),
            asyncio.create_task(self._pump_responses(upstream[0], writer, waiting)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ended = await asyncio.gather(*pumps, return_exceptions=True)
            expected = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
            self.failures += [
                e for e in ended if isinstance(e, BaseException) and not isinstance(e, expected)
            ]
            for end in (writer, upstream[1]):
                end.transport.abort()

    async def _pump_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: deque[tuple[str, int]]
    ) -> None:
        while True:
            frame = await _frame(reader)
            request = decode_request(frame[4:])
            self.requests[request.api, request.version] += 1
            self._compare("request", request.api, request.version, frame, encode_request(request))
            if not (request.api == "Produce" and request.body["Acks"] == 0):
                waiting.append((request.api, request.version))
            writer.write(frame)
            await writer.drain()

    async def _pump_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: deque[tuple[str, int]]
    ) -> None:
        while True:
            frame = await _frame(reader)
            api, version = waiting.popleft()
            if api == "ApiVersions" and frame[8:10] == b"\x00\x23":
                version = 0  # UNSUPPORTED_VERSION is always in version 0 (KIP-511)
            response = decode_response(api, version, frame[4:])
            encoded = encode_response(api, version, response)
            self._compare("response", api, version, frame, encoded)
            self.responses[api, version] += 1
            self._readdress(response.body)
            moved = Response(response.correlation_id, response.body, response.header_tags)
            writer.write(encode_response(api, version, moved))
            await writer.drain()

    def _compare(self, kind: str, api: str, version: int, before: bytes, after: bytes) -> None:
        if before != after:
            self.changed.append((kind, api, version, before, after))

    def _readdress(self, values: Any) -> None:
        if isinstance(values, list):
            for value in values:
                self._readdress(value)
        elif isinstance(values, dict):
            if (port := self.ports.get((values.get("Host", ""), values.get("Port", 0)))) is not None:
                values["Host"], values["Port"] = "127.0.0.1", port
            for value in values.values():
                if isinstance(value, list | dict):
                    self._readdress(value)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


@asynccontextmanager
async def relaying(brokers: list[Address]) -> AsyncIterator[Relay]:
    relay = Relay()
    tasks: set[asyncio.Task[Any]] = set()

    def accept(broker: Address) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await relay.serve(broker, reader, writer)
            finally:
                tasks.discard(task)

        return serve

    async with AsyncExitStack() as stack:
        for broker in brokers:
            server = await stack.enter_async_context(
                await asyncio.start_server(accept(broker), "127.0.0.1", 0)
            )
            relay.ports[broker] = server.sockets[0].getsockname()[1]
        try:
            yield relay
        finally:
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
