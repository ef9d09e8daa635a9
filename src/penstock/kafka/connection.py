"""One connection to one broker or controller: open, log in, call, close.

    async with await Connection.open("localhost", 9092, security) as broker:
        response = await broker.call("DescribeCluster", {})

Requests are pipelined: any number of tasks may call at once, and up to `in_flight_max` requests are in
flight. A cancelled call leaves the connection usable; its response is dropped on arrival. A call that
times out closes the connection, because a broker answers requests in order: no later one would be
answered either.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.kafka.login import log_in
from penstock.kafka.security import PLAINTEXT, Security
from penstock.kafka.tls_errors import tls_error
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import (
    ApiUnsupported,
    BrokerUnreachable,
    CallTimedOut,
    ConnectionLost,
    ResponseMalformed,
    ResponseTooLarge,
)
from penstock.wire.definitions import NONE, Versions, load
from penstock.wire.error_codes import Code
from penstock.wire.frames import API_VERSIONS, Request, decode_response, encode_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLIENT_ID: Final = "penstock"
CLIENT_SOFTWARE: Final = {"ClientSoftwareName": "penstock", "ClientSoftwareVersion": "0.1.0"}
OPEN_SECONDS: Final = 10.0
CALL_SECONDS: Final = 30.0
IN_FLIGHT_MAX: Final = 64
FRAME_BYTES_MAX: Final = 128 << 20
CLOSE_SECONDS: Final = 2.0
CORRELATION_ID_MAX: Final = 2**31 - 1

SOFTWARE_VERSION_FIRST: Final = 3  # of ApiVersions; before, it has no fields

_size = struct.Struct(">i")
_error_code = struct.Struct(">h")


@dataclass(slots=True)
class _Waiting:
    correlation_id: int
    response: asyncio.Future[bytes]


class Connection:
    """Created by `open`. See the module docstring for its guarantees."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: str,
        *,
        client_id: str = CLIENT_ID,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self.address = address
        self.versions: dict[str, Versions] = {}  # by API name, as the broker offers them
        self.api_versions: dict[str, Any] = {}  # the whole ApiVersions response, with features
        self.expires_at: float | None = None  # monotonic; when the login expires (KIP-368)
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._waiting: deque[_Waiting] = deque()
        self._slots = asyncio.Semaphore(in_flight_max)
        self._correlation_id = 0
        self._ended: Callable[[], PenstockError] | None = None  # creates the error that later calls raise
        self._receiver = asyncio.create_task(self._receive(), name=f"kafka connection to {address}")

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        security: Security = PLAINTEXT,
        *,
        client_id: str = CLIENT_ID,
        timeout: float = OPEN_SECONDS,
        in_flight_max: int = IN_FLIGHT_MAX,
        stage: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Connect, negotiate versions and log in, all within `timeout` seconds.

        `stage` is called when a stage has ended: `dns`, `connect`, `tls`, `login`."""
        address = f"{host}:{port}"
        server_name = (security.server_name or host) if security.tls else None
        connection: Self | None = None
        try:
            async with asyncio.timeout(timeout):
                raw = await _connected(host, port, stage)
                try:
                    reader, writer = await asyncio.open_connection(
                        sock=raw, ssl=security.tls, server_hostname=server_name
                    )
                except BaseException:
                    raw.close()
                    raise
                stage("tls")
                connection = cls(reader, writer, address, client_id=client_id, in_flight_max=in_flight_max)
                await connection._negotiate()
                if security.login is not None:
                    lifetime_ms = await log_in(connection, security.login)
                    if lifetime_ms > 0:
                        connection.expires_at = time.monotonic() + lifetime_ms / 1000
                stage("login")
                return connection
        except BaseException as failure:
            if connection is not None:
                await connection.close()
            if isinstance(failure, TimeoutError):
                reason = f"no response within {timeout:g} s"
                raise BrokerUnreachable(address=address, reason=reason) from failure
            if isinstance(failure, ssl.SSLError) and (tls_failure := tls_error(failure, address)):
                raise tls_failure from failure
            if isinstance(failure, OSError):
                raise BrokerUnreachable(address=address, reason=_reason(failure)) from failure
            raise

    async def call(
        self,
        api: str,
        body: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        timeout: float = CALL_SECONDS,
    ) -> dict[str, Any]:
        """Send a request and return its response; in the newest common version unless one is given.

        A Produce with `Acks` 0 returns an empty response, because brokers send none."""
        chosen = self.version_of(api) if version is None else version
        values = body or {}
        try:
            async with asyncio.timeout(timeout):
                frame = await self._exchange(api, chosen, values)
        except TimeoutError:
            late = CallTimedOut(api=api, address=self.address, seconds=timeout)
            self._end(lambda: ConnectionLost(address=self.address, reason=f"{api} timed out"))
            raise late from None
        return decode_response(api, chosen, frame).body if frame else {}

    def version_of(self, api: str, version_max: int | None = None) -> int:
        """The newest version of `api` that both sides know, at most `version_max`."""
        known = load().request(api).valid_versions
        offered = self.versions.get(api, NONE)
        last = min(known.last, offered.last)
        if version_max is not None:
            last = min(last, version_max)
        if last < max(known.first, offered.first):
            version, address = load().kafka_version, self.address
            raise ApiUnsupported(
                address=address, api=api, offered=offered, known=known, kafka_version=version
            )
        return last

    @property
    def closed(self) -> bool:
        return self._ended is not None

    @property
    def idle(self) -> bool:
        """No request is in flight."""
        return not self._waiting

    async def close(self) -> None:
        """Close at once; pending calls raise ConnectionLost."""
        reason = "it was closed by this client"
        self._end(lambda: ConnectionLost(address=self.address, reason=reason), flush=True)
        self._receiver.cancel()
        try:
            await asyncio.wait((self._receiver,))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._writer.wait_closed()
        finally:  # a broker that does not respond, or a caller that was cancelled
            self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _negotiate(self) -> None:
        version = load().request(API_VERSIONS).valid_versions.last
        frame = await self._exchange(API_VERSIONS, version, CLIENT_SOFTWARE)
        code = _error_code.unpack_from(frame, _size.size)[0] if len(frame) >= _size.size + 2 else 0
        if code == Code.UNSUPPORTED_VERSION:  # KIP-511: this response is always in version 0
            offered = _offered(decode_response(API_VERSIONS, 0, frame).body)
            version = min(version, offered.get(API_VERSIONS, Versions(0, 0)).last)
            software = CLIENT_SOFTWARE if version >= SOFTWARE_VERSION_FIRST else {}
            frame = await self._exchange(API_VERSIONS, version, software)
        self.api_versions = decode_response(API_VERSIONS, version, frame).body
        self.versions = _offered(self.api_versions)

    async def _exchange(self, api: str, version: int, body: Mapping[str, Any]) -> bytes:
        """Send a request and wait for the frame of its response; empty if none will come."""
        await self._slots.acquire()
        if self._ended is not None:
            self._slots.release()
            raise self._ended()
        self._correlation_id = self._correlation_id % CORRELATION_ID_MAX + 1
        try:
            data = encode_request(Request(api, version, self._correlation_id, self._client_id, body))
        except PenstockError:
            self._slots.release()
            raise
        if api == "Produce" and body.get("Acks") == 0:
            self._slots.release()
            await self._send(data)
            return b""
        # From here on the receiver frees the slot, whether or not the caller still waits.
        waiting = _Waiting(self._correlation_id, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        await self._send(data)
        return await waiting.response

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as failure:
            reason = _reason(failure)
            self._end(lambda: ConnectionLost(address=self.address, reason=reason))

    async def _receive(self) -> None:
        try:
            while True:
                self._complete(await self._frame())
        except asyncio.IncompleteReadError:
            self._end(lambda: ConnectionLost(address=self.address, reason="the broker closed it"))
        except OSError as failure:
            self._end(_ending(failure, self.address))
        except PenstockError as failure:
            kind, facts = type(failure), failure.facts
            self._end(lambda: kind(**facts))
        finally:  # nothing is received any more, so no pending call can complete
            self._end(lambda: ConnectionLost(address=self.address, reason="its receiver stopped"))

    async def _frame(self) -> bytes:
        size: int = _size.unpack(await self._reader.readexactly(_size.size))[0]
        if not _size.size <= size <= FRAME_BYTES_MAX:
            raise ResponseTooLarge(address=self.address, size=size, size_max=FRAME_BYTES_MAX)
        return await self._reader.readexactly(size)

    def _complete(self, frame: bytes) -> None:
        expected = self._waiting[0].correlation_id if self._waiting else None
        actual = _size.unpack_from(frame)[0]
        if actual != expected:
            reason = f"its correlation id is {actual}, {expected} was expected"
            raise ResponseMalformed(message="ResponseHeader", version="?", reason=reason)
        waiting = self._waiting.popleft()
        self._slots.release()
        if not waiting.response.done():  # done: its caller was cancelled
            waiting.response.set_result(frame)

    def _end(self, error: Callable[[], PenstockError], *, flush: bool = False) -> None:
        if self._ended is not None:
            return
        self._ended = error
        while self._waiting:
            waiting = self._waiting.popleft()
            self._slots.release()
            if not waiting.response.done():
                waiting.response.set_exception(error())
        if flush:
            self._writer.close()
        else:  # nothing waits for a broker that failed, as TLS would for half a minute
            self._writer.transport.abort()


async def _connected(host: str, port: int, stage: Callable[[str], None]) -> socket.socket:
    """A socket to the first of the host's addresses that accepts a connection."""
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    stage("dns")
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in resolved:
        raw = socket.socket(family, kind, protocol)
        try:
            raw.setblocking(False)
            await loop.sock_connect(raw, address)
        except OSError as refused:
            raw.close()
            failure = refused
        except BaseException:
            raw.close()
            raise
        else:
            stage("connect")
            return raw
    raise failure


def _offered(response: Mapping[str, Any]) -> dict[str, Versions]:
    names = load().apis()
    return {
        names[api["ApiKey"]]: Versions(api["MinVersion"], api["MaxVersion"])
        for api in response["ApiKeys"]
        if api["ApiKey"] in names
    }


def _ending(failure: OSError, address: str) -> Callable[[], PenstockError]:
    """Creates the error that calls raise after this failure of the connection."""
    reason = _reason(failure)
    refused = tls_error(failure, address) if isinstance(failure, ssl.SSLError) else None
    if refused is not None:
        kind, facts = type(refused), refused.facts
        return lambda: kind(**facts)
    return lambda: ConnectionLost(address=address, reason=reason)


def _reason(failure: OSError) -> str:
    return failure.strerror or str(failure) or type(failure).__name__
