"""The broker's side of a connection: connect, log in as the service account's user, hand over to the session.

During login an `Upstream` exchanges one frame at a time; afterwards every byte goes to its session.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final, cast

from penstock.gateway.connection.scram_login import scram_login
from penstock.model.errors.gateway import UpstreamUnreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from penstock.gateway.config import Broker

LOGIN_FRAME_BYTES_MAX: Final = 64 * 1024
BUFFERED_BYTES_MAX: Final = 2 * LOGIN_FRAME_BYTES_MAX  # two responses may arrive at once

_size = struct.Struct(">i")


class Upstream:
    """One connection to one broker: an asyncio protocol whose `data_received` is an attribute."""

    __slots__ = (
        "_buffered", "_pending", "broker", "data_received", "ended", "on_backpressure", "on_close",
        "transport",
    )  # fmt: skip

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport | None = None
        self.ended = False
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


async def dial(
    broker: Broker,
    user: str,
    password: str,
    tls: ssl.SSLContext | None,
    server_name: str | None = None,
) -> tuple[Upstream, int]:
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
            server_hostname=(server_name or broker.host) if tls else None,
        )
        lifetime_ms = await _log_in(upstream, user, password)
    except OSError as failure:
        upstream.close()
        reason = failure.strerror or failure
        raise UpstreamUnreachable(broker=broker.id, address=broker.address, reason=reason) from failure
    except BaseException:
        upstream.close()
        raise
    return upstream, lifetime_ms


async def _log_in(upstream: Upstream, user: str, password: str) -> int:
    steps = scram_login(upstream.broker, user, password)
    frames = next(steps)
    while True:
        response = await upstream.exchange(frames)
        try:
            frames = steps.send(response)
        except StopIteration as done:
            lifetime_ms: int = done.value
            return lifetime_ms
