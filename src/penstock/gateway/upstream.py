"""The broker's side of a connection: connect, log in as the service account's user, hand over to the session.

During login an `Upstream` exchanges one frame at a time; afterwards every byte goes to its session. Salting a
password costs a millisecond of processor time, so the derived keys are cached.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.kafka.scram import (
    HASHES,
    NONCE_BYTES,
    Exchange,
    ScramRefused,
    ScramUntrusted,
    check_final,
    final_message,
    first_message,
    keys_of,
)
from penstock.model.errors.gateway import ResponseUnexpected, UpstreamLoginRefused, UpstreamUnreachable
from penstock.wire.error_codes import Code, name_of
from penstock.wire.frames import Request, decode_response, encode_request

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from penstock.gateway.config import Broker

    ExchangeFrames = Callable[[bytes], Awaitable[bytes]]

MECHANISM: Final = "SCRAM-SHA-512"
CLIENT_ID: Final = "penstock-gateway"
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
CORRELATION_ID: Final = 0
RENEWED_AFTER: Final = 0.8  # of a login's lifetime: a request may be in flight when it ends
NEVER: Final = float("inf")
LOGIN_FRAME_BYTES_MAX: Final = 64 * 1024
BUFFERED_BYTES_MAX: Final = 2 * LOGIN_FRAME_BYTES_MAX  # two responses may arrive at once
KEYS_KEPT_MAX: Final = 20_000  # of users, 192 bytes each

_size = struct.Struct(">i")
_keys = lru_cache(maxsize=KEYS_KEPT_MAX)(keys_of)


class Upstream:
    """One connection to one broker: an asyncio protocol whose `data_received` is an attribute."""

    __slots__ = (
        "_buffered", "_pending", "broker", "data_received", "ended", "on_backpressure", "on_close",
        "renew_at", "transport",
    )  # fmt: skip

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.renew_at = NEVER  # when to log in again
        self.data_received: Callable[[bytes], None] = self._receive_login
        self.on_backpressure: Callable[[bool], None] = (
            _ignore  # called with True when the broker does not keep up, and False after
        )
        self._buffered = b""
        self._pending: asyncio.Future[bytes] | None = None
        self.on_close: Callable[[Exception | None], None] | None = None  # called when the connection ends

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self.on_backpressure(True)

    def resume_writing(self) -> None:
        self.on_backpressure(False)

    def connection_lost(self, failure: Exception | None) -> None:
        self.ended = True
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(failure or ConnectionResetError("the broker closed the connection"))
        if self.on_close is not None:
            self.on_close(failure)

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        """Send all further bytes to `receive`; the transport reads it when its protocol is set."""
        assert self.transport is not None
        self.data_received = receive
        self.transport.set_protocol(cast("asyncio.Protocol", self))

    def logged_in(self, lifetime_ms: int, now: float) -> None:
        """Note how long the login is valid; 0 means forever."""
        self.renew_at = now + lifetime_ms / 1000 * RENEWED_AFTER if lifetime_ms else NEVER

    # During login

    async def exchange(self, frames: bytes) -> bytes:
        """Send frames (or none, if they were sent before), and wait for the next response."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the broker closed the connection")
        pending: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending = pending
        if frames:
            transport.write(frames)
        if self._buffered:
            self._receive_login(b"")
        return await pending

    def _receive_login(self, data: bytes) -> None:
        buffered = self._buffered = self._buffered + data
        if len(buffered) < _size.size:
            return
        (size,) = _size.unpack_from(buffered)
        end = _size.size + size
        if not 4 <= size <= LOGIN_FRAME_BYTES_MAX or len(buffered) > BUFFERED_BYTES_MAX:
            self.close()
            return
        pending = self._pending
        if len(buffered) >= end and pending is not None and not pending.done():
            self._buffered = buffered[end:]
            pending.set_result(buffered[_size.size : end])

    def close(self) -> None:
        """Close after flushing what was written."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _ignore(full: bool) -> None:
    del full


async def dial(broker: Broker, user: str, password: str, tls: ssl.SSLContext | None) -> tuple[Upstream, int]:
    """Connect to the broker and log in as this user; returns for how many milliseconds the login is valid.

    The caller limits the time.
    """
    loop = asyncio.get_running_loop()
    upstream = Upstream(broker)
    try:
        await loop.create_connection(
            lambda: cast("asyncio.Protocol", upstream),
            broker.host,
            broker.port,
            ssl=tls,
            server_hostname=broker.host if tls else None,
        )
        lifetime_ms = await log_in(upstream.exchange, broker, user, password)
    except OSError as failure:
        upstream.close()
        reason = failure.strerror or failure
        raise UpstreamUnreachable(broker=broker.id, address=broker.address, reason=reason) from failure
    except BaseException:
        upstream.close()
        raise
    return upstream, lifetime_ms


async def log_in(exchange: ExchangeFrames, broker: Broker, user: str, password: str) -> int:
    """Log in by SCRAM; returns for how many milliseconds the login is valid, 0 if forever."""

    def decoded(frame: bytes, api: str, version: int) -> dict[str, Any]:
        response = decode_response(api, version, frame)
        if response.correlation_id != CORRELATION_ID:
            raise ResponseUnexpected(
                actual=f"correlation id {response.correlation_id}", expected=CORRELATION_ID
            )
        code = response.body["ErrorCode"]
        if code != Code.NONE:
            reason = response.body.get("ErrorMessage") or name_of(code)
            raise UpstreamLoginRefused(broker=broker.id, user=user, reason=reason)
        return response.body

    nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
    scram = Exchange(HASHES[MECHANISM], user, password, nonce)
    # The broker reads the second frame after responding to the first, so both are sent at once.
    decoded(
        await exchange(_handshake_frame() + _token_frame(first_message(scram))),
        "SaslHandshake",
        HANDSHAKE_VERSION,
    )
    first = decoded(await exchange(b""), "SaslAuthenticate", AUTHENTICATE_VERSION)
    try:
        proof = final_message(scram, first["AuthBytes"], _keys)
        last = decoded(await exchange(_token_frame(proof.message)), "SaslAuthenticate", AUTHENTICATE_VERSION)
        check_final(proof, last["AuthBytes"])
    except (ScramRefused, ScramUntrusted) as failure:
        raise UpstreamLoginRefused(broker=broker.id, user=user, reason=failure) from failure
    lifetime: int = last["SessionLifetimeMs"]
    return lifetime


@cache
def _handshake_frame() -> bytes:
    body = {"Mechanism": MECHANISM}
    return encode_request(Request("SaslHandshake", HANDSHAKE_VERSION, CORRELATION_ID, CLIENT_ID, body))


def _token_frame(token: bytes) -> bytes:
    body = {"AuthBytes": token}
    return encode_request(Request("SaslAuthenticate", AUTHENTICATE_VERSION, CORRELATION_ID, CLIENT_ID, body))
