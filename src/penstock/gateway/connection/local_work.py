"""Runs the gateway's own work for a connection step by step, with the client paused meanwhile.

Work is a generator (`local_requests`). It yields frames to send to the broker, in order with the client's
requests, and gets the next response; or it yields a `Call`, and gets its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.gateway.connection.effects import Call
from penstock.gateway.connection.states import LOCAL_WORK
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.local_requests import Work


class LocalWork:
    """The work of one connection, one at a time."""

    __slots__ = ("_connection", "_replies", "_until", "_waiting", "_work")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._work: Work | None = None
        self._until = 0.0
        self._replies: list[bytes] = []  # to frames of the work, which it has not taken yet
        self._waiting = False  # for the next of them

    @property
    def active(self) -> bool:
        return self._work is not None

    def start(self, work: Work, seconds: float) -> None:
        """Run work for at most so long."""
        self._work = work
        self._until = self._connection.now + seconds
        self.resume(None)
        if self._work is not None:
            self._connection.pause(LOCAL_WORK)

    def resume(self, value: object) -> None:
        """Give the work what it waits for: a result, or an exception."""
        connection, work = self._connection, self._work
        assert work is not None
        while True:
            try:
                step = work.throw(value) if isinstance(value, BaseException) else work.send(value)
            except StopIteration:
                self._work = None
                connection.unpause(LOCAL_WORK)
                return
            except PenstockError as failure:
                self._work = None
                connection.fail(failure)
                return
            if isinstance(step, Call):
                connection.effects.append(step)
                return
            for frame, correlation_id, route in connection.local_requests.own_frames(step):
                connection.request(frame, correlation_id, route, self._received)
            if not self._replies:
                self._waiting = True
                return
            value = self._replies.pop(0)

    def _received(self, frame: bytes) -> None:
        if self._work is None:
            return
        if self._waiting:
            self._waiting = False
            self.resume(frame)
        else:
            self._replies.append(frame)

    def stop(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None

    def overdue(self, now: float) -> bool:
        return self._work is not None and now >= self._until
