"""The share session of one connection.

When a client disconnects, a broker removes only the session that its connection opened last (Kafka 4.3,
`ShareSessionCache`). Any other would take a place until the broker restarts, so a connection has at most one
session at a time, as clients do. It counts until the broker has confirmed its end, or the connection ends.

A broker fails every fetch of a session that still contains a deleted topic (Kafka 4.3 looks for an ACL of a
topic without a name). Clients keep that session, so the failure is reported as a session that does not
exist: they open another one, with the topics that there are.
"""

from __future__ import annotations

from struct import Struct
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

ERROR_CODE: Final = Struct(">h")
ERROR_CODE_AT: Final = 9  # in a ShareFetch response: after correlation id, tagged fields and throttle time


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

    def on_response(self, request: Request, route: Route) -> OnResponse | None:
        """What to do with the response to a fetch, or to a request that closes this session."""
        closes = request.body["ShareSessionEpoch"] == FINAL_EPOCH and self.key == _key(request)
        if not closes and request.api != "ShareFetch":
            return None

        def then(frame: bytes) -> bytes:
            connection = self.connection
            if closes and decode_response(request.api, request.version, frame).body["ErrorCode"] in ENDED:
                self.ended()
            if request.api == "ShareFetch":
                frame = self._without_failure(request, frame)
            choose_names(connection, route)
            assert isinstance(route.response, Program)
            return spliced(route.response, connection.responses.names, len(frame).to_bytes(4, "big") + frame)

        return then

    def _without_failure(self, request: Request, frame: bytes) -> bytes:
        (code,) = ERROR_CODE.unpack_from(frame, ERROR_CODE_AT)
        if code != Code.UNKNOWN_SERVER_ERROR:
            return frame
        assert self.connection.context is not None
        for topic in request.body["Topics"]:  # to be looked up again: one of them may be deleted
            self.connection.context.topics.forget_id(topic["TopicId"].bytes)
        missing = ERROR_CODE.pack(Code.SHARE_SESSION_NOT_FOUND)
        return frame[:ERROR_CODE_AT] + missing + frame[ERROR_CODE_AT + ERROR_CODE.size :]

    def ended(self) -> None:
        """The broker has removed the session, or will when the connection ends."""
        connection = self.connection
        if self.key is None or connection.context is None or connection.broker is None:
            return
        self.key = None
        connection.services.share_sessions.release(connection.context.tenant, int(connection.broker.id))


def _key(request: Request) -> tuple[str | None, str | None]:
    return request.body["GroupId"], request.body["MemberId"]
