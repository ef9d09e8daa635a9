"""The inter-broker listener of a shadow: TLS, SCRAM with the cluster's credentials, requests in order.

Only the principals of the cluster itself are admitted (brokers and the platform): requests of others would
reach a real broker with the platform's rights.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from typing import TYPE_CHECKING, Any, Final

import structlog

from penstock.kafka.scram import HASHES
from penstock.model.errors import PenstockError
from penstock.shadow.login import Challenge, LoginRejected, challenge, verify
from penstock.wire.error_codes import Code
from penstock.wire.frames import API_VERSIONS, Request, Response, decode_request, encode_response

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from penstock.kafka.metadata_image import ScramCredential

    Respond = Callable[[Request], Awaitable[dict[str, Any] | None]]

REQUEST_BYTES_MAX: Final = 16 << 20
CONNECTIONS_MAX: Final = 512
LOGIN_SECONDS_MAX: Final = 30.0
NONCE_BYTES: Final = 24
_size = struct.Struct(">i")

log = structlog.get_logger()


class Server:
    def __init__(
        self,
        respond: Respond,
        credentials: Callable[[], Mapping[tuple[str, str], ScramCredential]],
        *,
        admitted: Collection[str],
        tls: ssl.SSLContext | None,
        with_login: bool,
    ) -> None:
        self._respond = respond
        self._credentials = credentials
        self._admitted = frozenset(admitted)
        self._tls = tls
        self._with_login = with_login
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port, ssl=self._tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            if not self._with_login or await self._log_in(reader, writer):
                await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # the peer closed the connection, or we stop
        except PenstockError as error:
            log.warning("shadow connection closed", error=str(error))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await _read(reader)
            body = await self._respond(request)
            if body is None:
                return
            await _write(writer, request, body)

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """SaslHandshake and SaslAuthenticate; true if the principal is admitted."""
        mechanism = ""
        sent: Challenge | None = None
        async with asyncio.timeout(LOGIN_SECONDS_MAX):
            while True:
                request = await _read(reader)
                if request.api == API_VERSIONS:
                    body = await self._respond(request)
                    assert body is not None
                    await _write(writer, request, body)
                elif request.api == "SaslHandshake":
                    mechanism = request.body["Mechanism"]
                    code = Code.NONE if mechanism in HASHES else Code.UNSUPPORTED_SASL_MECHANISM
                    await _write(writer, request, {"ErrorCode": code, "Mechanisms": list(HASHES)})
                elif request.api == "SaslAuthenticate" and mechanism in HASHES:
                    token = bytes(request.body["AuthBytes"])
                    try:
                        if sent is None:
                            nonce = secrets.token_urlsafe(NONCE_BYTES)
                            sent = challenge(mechanism, token, nonce, self._credentials())
                            await _write(writer, request, {"ErrorCode": Code.NONE, "AuthBytes": sent.message})
                            continue
                        final = verify(sent, token)
                        if sent.user not in self._admitted:
                            raise LoginRejected("this listener is for brokers only")
                    except LoginRejected as rejected:
                        await self._reject(writer, request, str(rejected), sent)
                        return False
                    await _write(writer, request, {"ErrorCode": Code.NONE, "AuthBytes": final})
                    return True
                else:
                    log.warning("request before login", api=request.api)
                    return False

    async def _reject(
        self, writer: asyncio.StreamWriter, request: Request, reason: str, sent: Challenge | None
    ) -> None:
        log.warning("login rejected", user=sent.user if sent else "", reason=reason)
        failure = {"ErrorCode": Code.SASL_AUTHENTICATION_FAILED, "ErrorMessage": reason, "AuthBytes": b""}
        await _write(writer, request, failure)


async def _read(reader: asyncio.StreamReader) -> Request:
    (size,) = _size.unpack(await reader.readexactly(_size.size))
    if not 0 < size <= REQUEST_BYTES_MAX:
        raise ConnectionError(f"a frame of {size} bytes")
    return decode_request(await reader.readexactly(size))


async def _write(writer: asyncio.StreamWriter, request: Request, body: Mapping[str, Any]) -> None:
    writer.write(encode_response(request.api, request.version, Response(request.correlation_id, dict(body))))
    await writer.drain()
