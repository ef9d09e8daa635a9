"""A minimal gateway: a relay that renames with splice plans, for real clients and brokers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.model.errors import PenstockError
from penstock.wire.field_rules import Kind
from penstock.wire.names import Names
from penstock.wire.plans import Direction
from penstock.wire.splice import Limits, Program, Requests, Responses, Splicer, program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

READ_BYTES = 64 * 1024


class Prefixed(Names):
    """Names towards the broker."""

    kinds = frozenset(
        (
            Kind.TOPIC,
            Kind.GROUP,
            Kind.TRANSACTIONAL_ID,
            Kind.COORDINATOR_KEY,
            Kind.CONFIG_RESOURCE,
            Kind.SUBSCRIPTION,
            Kind.ASSIGNMENT,
        )
    )

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.topic_growth = len(prefix)

    def topic(self, name: bytes) -> bytes | None:
        return self.prefix + name

    group = transactional_id = topic

    def coordinator_key(self, key: bytes, key_type: int | None) -> bytes | None:
        return self.topic(key)

    def config_resource(self, name: bytes, resource_type: int) -> bytes | None:
        return self.topic(name) if resource_type in (2, 32) else name


class Stripped(Prefixed):
    """Names towards the client."""

    kinds = Prefixed.kinds | {Kind.ENDPOINT, Kind.TEXT}

    def __init__(self, prefix: bytes, ports: Mapping[int, int]) -> None:
        super().__init__(prefix)
        self.topic_growth = -len(prefix)
        self.ports = ports

    def topic(self, name: bytes) -> bytes | None:
        return name[len(self.prefix) :] if name.startswith(self.prefix) else None

    group = transactional_id = topic

    def text(self, text: bytes) -> bytes | None:
        return text.replace(self.prefix, b"")

    def endpoint(self, broker_id: int, host: bytes, port: int) -> tuple[int, bytes, int] | None:
        return (broker_id, b"127.0.0.1", self.ports[broker_id]) if broker_id >= 0 else (broker_id, host, port)


class Link:
    """One connection: both handlers of its two splicers."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.waiting: deque[tuple[int, int]] = deque()
        self.current = (0, 0)
        self.there = Requests(self, Prefixed(relay.prefix), relay.limits)
        self.back = Responses(_Back(self), Stripped(relay.prefix, relay.ports), relay.limits)

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program:
        self.current = (api_key, version)
        return program(api_key, version, Direction.REQUEST, Prefixed.kinds, observed=True)

    def end(self, seen: list[tuple[Any, ...]] | None) -> None:
        api_key, version = self.current
        self.relay.requests.append(self.current)
        if api_key == 0 and seen is not None and seen[0] == (0,):
            return  # acks 0: no response
        self.waiting.append((api_key, version))

    def taken(self, frame: bytes) -> None:
        raise AssertionError("a relay takes nothing")

    def refused(self, frame: bytes, error: Exception) -> None:
        raise error


class _Back:
    def __init__(self, link: Link) -> None:
        self.link = link

    def begin(self, correlation_id: int, size: int) -> Program:
        api_key, version = self.link.waiting.popleft()
        return program(api_key, version, Direction.RESPONSE, Stripped.kinds)

    def end(self, seen: list[tuple[Any, ...]] | None) -> None:
        pass

    taken = Link.taken
    refused = Link.refused


class Relay:
    """One listener per broker, in a thread. `failures` has the exceptions of the relay."""

    def __init__(
        self, brokers: Mapping[int, tuple[str, int]], prefix: bytes, limits: Limits | None = None
    ) -> None:
        self.brokers = brokers
        self.prefix = prefix
        self.limits = limits or Limits()
        self.ports: dict[int, int] = {}
        self.requests: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        servers, self._open = [], set[asyncio.StreamWriter]()
        for broker, address in self.brokers.items():
            server = await asyncio.start_server(self._accept(address), "127.0.0.1", 0, backlog=64)
            self.ports[broker] = server.sockets[0].getsockname()[1]
            servers.append(server)
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for writer in list(self._open):
            writer.transport.abort()
        for server in servers:
            await server.wait_closed()
        while self._open:
            await asyncio.sleep(0.01)

    def _accept(self, address: tuple[str, int]) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._open.add(writer)  # before connecting to the broker, so that stopping the relay waits for it
            link, ends = Link(self), [writer]
            try:
                up_reader, up_writer = await asyncio.open_connection(*address)
                ends.append(up_writer)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, up_writer, link.there))
                    group.create_task(self._pump(up_reader, writer, link.back))
            except* ConnectionError:
                pass  # either side may hang up when it likes
            except* PenstockError as failures:
                self.failures += failures.exceptions
            finally:
                for one in ends:
                    one.transport.abort()
                self._open.discard(writer)

        return accept

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, splicer: Splicer
    ) -> None:
        while data := await reader.read(READ_BYTES):
            out: list[Any] = []
            splicer.feed(data, out)
            writer.writelines(out)
            await writer.drain()
        raise ConnectionResetError("the other side hung up")
