"""A TCP link between two processes that can be cut, refused or delayed, without root.

    with Link("127.0.0.1", broker_port) as link:
        ...connect the other process to 127.0.0.1:{link.port}...
        link.cut()       # a network partition: nothing passes, and nothing closes
        link.heal()      # everything in flight arrives

It forwards TCP in a thread. While the link is cut, bytes, closes and resets are all held back. New
connections are still accepted, because the kernel does that, but get no response: a client's first
request times out, not its connect.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

CONNECTIONS_MAX = 1024
CHUNK_BYTES = 64 * 1024
CHUNKS_IN_FLIGHT_MAX = 64  # per direction; beyond that the sender is blocked
FORWARDER_SECONDS_MAX = 60.0  # for the forwarder's thread to react

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_END = b""


@dataclass
class Direction:
    """One direction. Its gate is closed while the link is cut in this direction."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    delay_seconds: float = 0.0
    bytes_passed: int = 0


@dataclass(eq=False)
class Connection:
    client: asyncio.StreamWriter
    task: asyncio.Task[None]
    target: asyncio.StreamWriter | None = None

    def reset(self) -> None:
        """Reset both sides; unsent bytes are dropped."""
        for writer in (self.client, self.target):
            if writer is not None:
                raw = writer.get_extra_info("socket")
                if raw is not None and raw.fileno() >= 0:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
        if self.task is not asyncio.current_task():
            self.task.cancel()


class Link:
    """Listens on a port of 127.0.0.1 and forwards to the target. For use from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)  # new connections go here; may be changed at any time
        # Never listens: it reserves the port while the link refuses connections.
        self._holder = _bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live()), name=f"link-{self.port}", daemon=True
        )
        self._thread.start()
        assert self._started.wait(FORWARDER_SECONDS_MAX), "the forwarder did not start"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Connections open now, for a test to wait for."""
        return len(self._connections)

    @property
    def bytes_there(self) -> int:
        """Bytes delivered to the target so far."""
        return self._there.bytes_passed

    @property
    def bytes_back(self) -> int:
        return self._back.bytes_passed

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        """Let nothing pass, in both directions or one, but keep every socket open."""
        self._do(self._cut(there=there, back=back))

    def refuse(self) -> None:
        """Reset every connection and refuse new ones, as if the process had ended."""
        self._do(self._refuse())

    def delay(self, ms: float) -> None:
        """Delay everything by this time, in each direction."""
        self._do(self._delay(ms / 1000))

    def heal(self) -> None:
        """Deliver everything again, at once, on open and new connections."""
        self._do(self._heal())

    def close(self) -> None:
        """Reset every connection and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(FORWARDER_SECONDS_MAX)
            assert not self._thread.is_alive(), "the forwarder did not end"
        self._holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Everything below runs in the forwarder's thread.

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(FORWARDER_SECONDS_MAX)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._there, self._back = Direction(), Direction()
        await self._heal()
        self._started.set()
        await self._stop.wait()
        await self._refuse()

    async def _heal(self) -> None:
        for direction in (self._there, self._back):
            direction.delay_seconds = 0.0
            direction.gate.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self.port))

    async def _cut(self, *, there: bool, back: bool) -> None:
        for direction, shut in ((self._there, there), (self._back, back)):
            if shut:
                direction.gate.clear()

    async def _delay(self, seconds: float) -> None:
        self._there.delay_seconds = self._back.delay_seconds = seconds

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        ending = list(self._connections)
        for connection in ending:
            connection.reset()
        await asyncio.gather(*(connection.task for connection in ending), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(writer, task)
        if len(self._connections) >= CONNECTIONS_MAX:
            connection.reset()
            return
        self._connections.add(connection)
        try:
            await self._there.gate.wait()
            target_reader, connection.target = await asyncio.open_connection(*self.target)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, connection.target, self._there))
                pumps.create_task(_pump(target_reader, writer, self._back))
        except (OSError, asyncio.CancelledError):  # no target, or ended by `reset` itself
            connection.reset()
        except BaseExceptionGroup as broken:
            connection.reset()  # one side failed: reset the other
            if (defect := broken.split(OSError)[1]) is not None:
                raise defect from None
        finally:
            for side in (writer, connection.target):
                if side is not None:
                    side.close()
            self._connections.discard(connection)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    """Forward in order, with the direction's delay and a bounded number of chunks in flight."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_IN_FLIGHT_MAX)
    clock = asyncio.get_running_loop().time

    async def deliver() -> None:
        chunk = b"-"
        while chunk != _END:
            due, chunk = await waiting.get()
            if due > clock():
                await asyncio.sleep(due - clock())
            await direction.gate.wait()
            if chunk == _END:
                writer.write_eof()
            else:
                direction.bytes_passed += len(chunk)  # first, so that received bytes are always counted
                writer.write(chunk)
                await writer.drain()

    async with asyncio.TaskGroup() as both:
        both.create_task(deliver())
        chunk = b"-"
        while chunk != _END:
            await direction.gate.wait()
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except OSError:  # a reset is held back like bytes
                await direction.gate.wait()
                raise
            await waiting.put((clock() + direction.delay_seconds, chunk))


def _bound(port: int) -> socket.socket:
    """A bound socket that shares its port with our other sockets."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    return made
