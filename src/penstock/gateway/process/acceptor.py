"""Accepts clients: listeners, admission by address, the PROXY header of load balancers, TLS.

Admission happens on the accepted socket, before TLS and before a byte is read. Behind a trusted load balancer
it happens after the PROXY header, by the client's address. A process that runs out of descriptors pauses
accepting; clients wait in the backlog meanwhile.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from penstock.gateway.connection.proxy_header import HEADER_BYTES_MAX, parse_proxy_header
from penstock.gateway.limits.admission import Denial
from penstock.gateway.process.listener_sockets import bind_port
from penstock.model import key_names
from penstock.model.errors.gateway import ListenFailed, ProxyHeaderInvalid

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.gateway.config import Broker
    from penstock.gateway.process.server import Gateway
    from penstock.gateway.process.session import Session
    from penstock.gateway.settings import Bounds

BACKLOG: Final = 4096
ACCEPTS_AT_ONCE: Final = 8  # before other work runs: each takes a tenth of a millisecond
ACCEPT_AGAIN_SECONDS: Final = 1.0  # after accepting has failed
DESCRIPTORS_RESERVED: Final = 64  # listeners, platform connections, metrics, files
DESCRIPTORS_PER_CONNECTION: Final = 2  # the client's side and the broker's

log = structlog.get_logger("penstock.gateway")


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def fitted(bounds: Bounds, descriptors: int) -> Bounds:
    """Bounds for which the descriptors suffice, with half of the connections left to clients that log in."""
    most = (descriptors - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_CONNECTION
    if descriptors == resource.RLIM_INFINITY or bounds.connections_max <= most:
        return bounds
    most = max(1, most)
    log.warning("fewer connections than configured", connections_max=most, descriptors=descriptors)
    half_open = min(bounds.half_open_max, max(1, most // 2))
    share = min(bounds.half_open_per_address_max, max(1, half_open // 10))
    return replace(bounds, connections_max=most, half_open_max=half_open, half_open_per_address_max=share)


class Acceptor:
    """The listening side of a gateway."""

    def __init__(self, server: Gateway) -> None:
        self.server = server
        self.tls: ssl.SSLContext | None = None
        self.failures = 0  # of accepting, for lack of descriptors or memory
        self._listeners: list[tuple[socket.socket, Broker | None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaiting_header = 0
        self._paused = False

    def listen(self, host: str, port: int, broker: Broker | None) -> int:
        """Bind and listen, without accepting yet; returns the port."""
        listener = _listener(host, port)
        self._listeners.append((listener, broker))
        return int(listener.getsockname()[1])

    def accept(self) -> None:
        """Begin or continue to accept."""
        self._paused = False
        for listener, broker in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener, broker)

    def leave(self, broker: int) -> None:
        """Stop listening for one broker, with routing by port."""
        for listener, served in self._listeners:
            if served is not None and served.id == broker:
                asyncio.get_running_loop().remove_reader(listener.fileno())
                listener.close()
        self._listeners = [each for each in self._listeners if each[1] is None or each[1].id != broker]

    def stop(self) -> None:
        loop = asyncio.get_running_loop()
        for listener, _ in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    async def close(self) -> None:
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket, broker: Broker | None) -> None:
        trusted = self.server.settings.proxy_protocol
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as failure:
                self._pause(failure)
                return
            self.failures = 0
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if trusted and trusted.admit(peer[0]):
                if self._awaiting_header >= self.server.settings.bounds.half_open_max:
                    self.server.denied_address(Denial.HALF_OPEN, peer[0])
                    client.close()
                    continue
                self._awaiting_header += 1
                self._run(self._start_behind_proxy(client, peer[0], broker))
                continue
            session = self._admitted(client, peer[0], broker)
            if session is not None:
                self._run(self._start(client, session))

    def _pause(self, failure: OSError) -> None:
        """Out of descriptors or memory: the listeners would stay readable, and this would spin."""
        loop = asyncio.get_running_loop()
        for listener, _ in self._listeners:
            loop.remove_reader(listener.fileno())
        if not self._paused:
            self._paused = True
            loop.call_later(ACCEPT_AGAIN_SECONDS, self.accept)
        self.failures += 1
        if self.failures == 1:  # in a row
            log.error(
                "accepting paused", **{key_names.ERROR: str(failure)}, again_in_seconds=ACCEPT_AGAIN_SECONDS
            )

    def _admitted(self, client: socket.socket, address: str, broker: Broker | None) -> Session | None:
        server = self.server
        denial = server.admission.admit_connection(address, server.now())
        if denial is None:
            return server.new_session(address, broker)
        server.denied_address(denial, address)  # counted before the client sees the connection close
        client.close()
        return None

    async def _start_behind_proxy(self, client: socket.socket, proxy: str, broker: Broker | None) -> None:
        """Read the PROXY header, admit the client by its address in it, and continue as without."""
        try:
            async with asyncio.timeout(self.server.settings.bounds.handshake_seconds):
                address = await _address_from_proxy(client) or proxy
        except (ProxyHeaderInvalid, OSError, TimeoutError) as failure:
            self.server.denied_address(Denial.PROXY_HEADER, proxy, str(failure) or "it came too late")
            client.close()
            return
        except asyncio.CancelledError:
            client.close()
            raise
        finally:
            self._awaiting_header -= 1
        session = self._admitted(client, address, broker)
        if session is not None:
            await self._start(client, session)

    async def _start(self, client: socket.socket, session: Session) -> None:
        """Run the TLS handshake, if any. A session that never gets a transport is closed here."""
        server = self.server
        protocol = cast("asyncio.Protocol", session)
        seconds = server.settings.bounds.handshake_seconds if self.tls is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, client, ssl=self.tls, ssl_handshake_timeout=seconds
            )
        except (OSError, ssl.SSLError) as failure:
            if isinstance(failure, ssl.SSLError):
                server.admission.breached(session.connection.life.address, "", "", server.now())
            if str(failure):  # else the client is gone, as after a check whether the port is open
                server.denied(session, Denial.MALFORMED, error=failure)
        finally:
            if session.transport is None:
                client.close()
                session.connection.ended(server.now())
                server.session_closed(session)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _address_from_proxy(client: socket.socket) -> str | None:
    """Read exactly the PROXY header, so that TLS or Kafka's protocol begins with the next byte."""
    data = b""
    while True:
        await _readable(client)
        peeked = client.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
        if not peeked:
            raise ProxyHeaderInvalid(reason="the connection ended within it")
        header = parse_proxy_header(data + peeked)
        data += client.recv(len(peeked) if header is None else header.size - len(data))
        if header is not None:
            return header.address


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock.fileno())


def _listener(host: str, port: int) -> socket.socket:
    listener = bind_port(host, port)
    listener.setblocking(False)
    try:
        listener.listen(BACKLOG)
    except OSError as failure:
        listener.close()
        raise ListenFailed(host=host, port=port, reason=failure.strerror or failure) from failure
    return listener
