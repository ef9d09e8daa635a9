"""The broker's memory for one connection's large Produce request, reserved until the request has been read.

A broker allocates a whole request when it has read its size, and the gateway passes large ones on as they
arrive. So clients that begin requests and never end them would fill the broker's heap. Without room, the
request waits and its client is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.states import CLIENT_SLICE, REQUEST_MEMORY

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection

LARGE_REQUEST_BYTES_MIN: Final = 128 * 1024  # a thousand smaller ones fit into the memory of any broker


class LargeRequests:
    """One at a time: requests come in order."""

    __slots__ = ("_connection", "_reserved", "waits")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reserved = False
        self.waits = False  # the next frame has passed the quota and waits for memory

    def reserve(self, size: int) -> bool:
        """Whether the broker has memory for a large request; if not, it waits for `reserved`."""
        connection = self._connection
        memory = connection.services.request_memory(connection.broker)
        self._reserved = memory.reserve(connection.waiter, connection.usage, size, connection.now)
        self.waits = not self._reserved
        if self.waits:
            connection.pause(REQUEST_MEMORY)
        return self._reserved

    def reserved(self) -> None:
        """There is room for the request that waited: continue with it in the next slice."""
        self._connection.pauses = self._connection.pauses & ~REQUEST_MEMORY | CLIENT_SLICE

    def release(self) -> None:
        """The request has been read, or its client is gone."""
        if self._reserved or self.waits:
            self._reserved = self.waits = False
            connection = self._connection
            connection.services.request_memory(connection.broker).release(connection.waiter, connection.now)
