"""The broker's side of a connection: dial, log in as the service account's own user, hand over.

While it dials, an `Upstream` answers to `exchange`, one frame at a time; afterwards every byte goes
to its session. Salting a password costs a millisecond of processor, so the keys that follow from it are kept.
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
from penstock.model.errors.gateway import AnswerUnexpected, UpstreamLoginRefused, UpstreamUnreachable
from penstock.wire.codes import Code, name_of
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
RENEWED_AFTER: Final = 0.8  # of a login's lifetime: a request may be under way when it is time
NEVER: Final = float("inf")
LOGIN_FRAME_BYTES_MAX: Final = 64 * 1024
HELD_BYTES_MAX: Final = 2 * LOGIN_FRAME_BYTES_MAX  # two answers may come at once
KEYS_KEPT_MAX: Final = 20_000  # of users, 192 bytes each

_size = struct.Struct(">i")
_keys = lru_cache(maxsize=KEYS_KEPT_MAX)(keys_of)


class Upstream:
    """One connection to one broker: asyncio's protocol, in which `data_received` is an attribute."""

    __slots__ = (
        "_asked", "_held", "broker", "data_received", "ended", "renew_at", "resume", "stall", "transport",
    )  # fmt: skip

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.renew_at = NEVER  # when it is time to log in again
        self.data_received: Callable[[bytes], None] = self._receive_login
        self.stall: Callable[[bool], None] = _ignore  # the broker does not keep up, or does again
        self._held = b""
        self._asked: asyncio.Future[bytes] | None = None
        self.resume: Callable[[Exception | None], None] | None = None  # told when the connection ends

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass

    def eof_received(self) -> None:
        """The transport closes itself."""

    def pause_writing(self) -> None:
        self.stall(True)

    def resume_writing(self) -> None:
        self.stall(False)

    def connection_lost(self, failure: Exception | None) -> None:
        self.ended = True
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(failure or ConnectionResetError("the broker closed the connection"))
        if self.resume is not None:
            self.resume(failure)

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        """What comes from now on is somebody else's. A transport looks once at where its bytes go."""
        assert self.transport is not None
        self.data_received = receive
        self.transport.set_protocol(cast("asyncio.Protocol", self))

    def logged_in(self, lifetime_ms: int, now: float) -> None:
        """For so long, 0 if for good."""
        self.renew_at = now + lifetime_ms / 1000 * RENEWED_AFTER if lifetime_ms else NEVER

    # Until the login is done

    async def exchange(self, frames: bytes) -> bytes:
        """Send a frame (or none, if it was sent along with one before), wait for the next answer's."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the broker closed the connection")
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked = asked
        if frames:
            transport.write(frames)
        if self._held:
            self._receive_login(b"")
        return await asked

    def _receive_login(self, data: bytes) -> None:
        held = self._held = self._held + data
        if len(held) < _size.size:
            return
        (size,) = _size.unpack_from(held)
        end = _size.size + size
        if not 4 <= size <= LOGIN_FRAME_BYTES_MAX or len(held) > HELD_BYTES_MAX:
            self.close()
            return
        asked = self._asked
        if len(held) >= end and asked is not None and not asked.done():
            self._held = held[end:]
            asked.set_result(held[_size.size : end])

    def close(self) -> None:
        """What was written still goes out."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _ignore(full: bool) -> None:
    del full


async def dial(broker: Broker, user: str, password: str, tls: ssl.SSLContext | None) -> tuple[Upstream, int]:
    """A connection to the broker, logged in as this user, and for how many milliseconds that holds.

    Time limits are the caller's.
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
        address = f"{broker.host}:{broker.port}"
        reason = failure.strerror or failure
        raise UpstreamUnreachable(broker=broker.id, address=address, reason=reason) from failure
    except BaseException:
        upstream.close()
        raise
    return upstream, lifetime_ms


async def log_in(exchange: ExchangeFrames, broker: Broker, user: str, password: str) -> int:
    """Log in by SCRAM; for how many milliseconds that holds, 0 if for good."""

    def answered(frame: bytes, api: str, version: int) -> dict[str, Any]:
        answer = decode_response(api, version, frame)
        if answer.correlation_id != CORRELATION_ID:
            raise AnswerUnexpected(found=f"correlation id {answer.correlation_id}", expected=CORRELATION_ID)
        code = answer.body["ErrorCode"]
        if code != Code.NONE:
            reason = answer.body.get("ErrorMessage") or name_of(code)
            raise UpstreamLoginRefused(broker=broker.id, user=user, reason=reason)
        return answer.body

    nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
    scram = Exchange(HASHES[MECHANISM], user, password, nonce)
    # A broker reads the second frame when it has answered the first: both go at once.
    answered(
        await exchange(_handshake_frame() + _token_frame(first_message(scram))),
        "SaslHandshake",
        HANDSHAKE_VERSION,
    )
    first = answered(await exchange(b""), "SaslAuthenticate", AUTHENTICATE_VERSION)
    try:
        proof = final_message(scram, first["AuthBytes"], _keys)
        last = answered(await exchange(_token_frame(proof.message)), "SaslAuthenticate", AUTHENTICATE_VERSION)
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
