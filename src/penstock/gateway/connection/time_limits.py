"""Closes connections that take too long: to log in, to send anything, to read what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.states import State
from penstock.gateway.limits.admission import Denial

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection

CLOSING_SECONDS: Final = 5.0  # for a client to read what was written before the connection is aborted


def close_overdue(connection: Connection, now: float) -> None:
    """Called once a second."""
    state, bounds = connection.life.state, connection.services.bounds
    if state in (State.NEW, State.HANDSHAKE, State.LINKING):
        if now - connection.last_active > bounds.handshake_seconds:
            connection.deny(Denial.HANDSHAKE_SLOW)
            connection.abort("the login timed out")
    elif connection.active or (connection.in_flight and state is not State.CLOSED):
        connection.active = False
        connection.last_active = now
    elif state is State.CLOSED:
        if now - connection.last_active > CLOSING_SECONDS:
            connection.abort("the client did not read what was written")
    elif now - connection.last_active > bounds.idle_seconds:
        connection.deny(Denial.IDLE)
        connection.abort("idle")
