"""Connections that wait for the next reader: opened when all others are in use, kept afterwards."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Closing(Protocol):
    def close(self) -> None: ...


Connection = TypeVar("Connection", bound=Closing)


class Pool(Generic[Connection]):
    """Thread-safe. `kind` tells connections apart that were prepared differently."""

    def __init__(self, connect: Callable[[str], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: dict[str, list[Connection]] = {}
        self._closed = False

    @contextmanager
    def connection(self, kind: str) -> Iterator[Connection]:
        """One that nobody else uses. If the block fails, it is closed and not used again."""
        with self._lock:
            idle = self._idle.setdefault(kind, [])
            found = idle.pop() if idle else None
        connection = self._connect(kind) if found is None else found
        kept = False
        try:
            yield connection
            kept = True
        finally:
            with self._lock:
                if kept and not self._closed:
                    idle.append(connection)
                else:
                    connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()
