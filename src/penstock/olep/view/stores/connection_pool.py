"""Reuses the connections of readers: opens one when all others are in use."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Closeable(Protocol):
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=Closeable)


class Pool(Generic[Connection]):
    """Thread-safe. Connections of different `kind` are set up differently."""

    def __init__(self, connect: Callable[[str], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._closed = False

    @contextmanager
    def connection(self, kind: str) -> Iterator[Connection]:
        """A connection for exclusive use. If the block fails, it is closed instead of reused."""
        with self._lock:
            idle = self._idle.setdefault(kind, [])
            reused = idle.pop() if idle else None
        connection = self._connect(kind) if reused is None else reused
        succeeded = False
        try:
            yield connection
            succeeded = True
        finally:
            with self._lock:
                if succeeded and not self._closed:
                    idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()
