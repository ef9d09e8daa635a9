"""The memory of one connection's large responses: reserved before one is read, until the client has read it.

Without room, neither side of the connection is read. Responses above 32 KiB are rewritten in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.effects import Wake
from penstock.gateway.connection.states import BROKER_SLICE, CLIENT_FULL, RESPONSE_MEMORY
from penstock.model.errors.plans import ResponseFrameTooLarge

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.in_flight import InFlight

MEBIBYTE: Final = 1024 * 1024
LARGE_BYTES_MIN: Final = MEBIBYTE  # smaller responses are counted as other frames are
TAKEN_BYTES_MAX: Final = 8 * MEBIBYTE  # of one that the gateway decodes, which is not done in slices
FRAME_BYTES_MAX: Final = (1 << 31) - 1  # of one that is passed on as it arrives


class LargeResponses:
    """One at a time: responses come in order."""

    __slots__ = ("_connection", "_written", "bytes")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._written = False  # but the client may not have read it
        self.bytes = 0  # reserved

    def reserve(self, entry: InFlight, size: int) -> bool:
        """Whether there is memory for a large response; if not, it waits for `reserved`."""
        connection, route = self._connection, entry.route
        assert route is not None
        if entry.then is not None and size > TAKEN_BYTES_MAX:
            raise ResponseFrameTooLarge(size=size, limit=TAKEN_BYTES_MAX)
        if route.streams_response and entry.then is None:
            return True
        if self._written:
            self.release()  # the one before: its client takes more again
        memory = connection.services.response_memory
        if not memory.reserve(connection.waiter, connection.usage, size, connection.now):
            connection.pause(RESPONSE_MEMORY)
            return False
        self.bytes = size
        return True

    def reserved(self) -> None:
        """There is room for the response that waited: continue with it in the next slice."""
        self._connection.pauses = self._connection.pauses & ~RESPONSE_MEMORY | BROKER_SLICE

    def written(self) -> None:
        """The response is on its way; its memory is free when the client has read most of it."""
        if self.bytes:
            self._written = True
            self._connection.effects.append(Wake(0.0))

    def tick(self) -> None:
        if self._written and not self._connection.pauses & CLIENT_FULL:
            self.release()

    def release(self) -> None:
        """The client has read the response, or is gone."""
        connection = self._connection
        if self.bytes or connection.pauses & (RESPONSE_MEMORY | BROKER_SLICE):
            self.bytes = 0
            self._written = False
            connection.services.response_memory.release(connection.waiter, connection.now)
