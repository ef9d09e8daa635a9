"""The share session of one connection.

When a client disconnects, a broker removes only the session that its connection opened last (Kafka 4.3,
`ShareSessionCache`). Any other would take a place until the broker restarts, so a connection has at most one
session at a time, as clients do. It counts until the broker has confirmed its end, or the connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.connection.stages import choose_names
from penstock.wire.error_codes import Code
from penstock.wire.frames import decode_response
from penstock.wire.splice import Program, spliced

if TYPE_CHECKING:
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.in_flight import OnResponse
    from penstock.gateway.connection.routes import Route
    from penstock.wire.frames import Request

INITIAL_EPOCH: Final = 0  # opens a session, and replaces the member's previous one
FINAL_EPOCH: Final = -1  # closes it
ENDED: Final = (Code.NONE, Code.SHARE_SESSION_NOT_FOUND)


class ShareSession:
    __slots__ = ("connection", "key")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.key: tuple[str | None, str | None] | None = None  # group and member

    def admits(self, request: Request) -> bool:
        """Whether a ShareFetch or ShareAcknowledge may be sent; counts the session that it opens."""
        if request.body["ShareSessionEpoch"] != INITIAL_EPOCH or self.key == _key(request):
            return True
        connection = self.connection
        assert connection.context is not None
        assert connection.broker is not None
        sessions, tenant = connection.services.share_sessions, connection.context.tenant
        if self.key is not None or not sessions.reserve(tenant, int(connection.broker.id)):
            return False
        self.key = _key(request)
        return True

    def refusal(self) -> str:
        assert self.connection.context is not None
        if self.key is not None:
            return "A connection has one share session: close it, or open another connection."
        limit = self.connection.context.tenant.limits.share_sessions_max
        return f"At most {limit} share sessions on a broker: close some, or raise share_sessions_max."

    def on_close(self, request: Request, route: Route) -> OnResponse | None:
        """What to do with the response to a request that closes this session."""
        if request.body["ShareSessionEpoch"] != FINAL_EPOCH or self.key != _key(request):
            return None

        def then(frame: bytes) -> bytes:
            connection = self.connection
            if decode_response(request.api, request.version, frame).body["ErrorCode"] in ENDED:
                self.ended()
            choose_names(connection, route)
            assert isinstance(route.response, Program)
            return spliced(route.response, connection.responses.names, len(frame).to_bytes(4, "big") + frame)

        return then

    def ended(self) -> None:
        """The broker has removed the session, or will when the connection ends."""
        connection = self.connection
        if self.key is None or connection.context is None or connection.broker is None:
            return
        self.key = None
        connection.services.share_sessions.release(connection.context.tenant, int(connection.broker.id))


def _key(request: Request) -> tuple[str | None, str | None]:
    return request.body["GroupId"], request.body["MemberId"]
