"""Checks a request's token and size by its headers, before any of its body is read.

FastAPI reads the whole body first and calls dependencies afterwards, so without this a caller without a token
could make the control plane hold as much as it sends.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from penstock.control.api.auth import require
from penstock.model.entities import OperatorRole
from penstock.model.errors import PenstockError
from penstock.model.errors.control import BodyTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.model.entities import OperatorToken

BODY_BYTES_MAX: Final = 256 * 1024  # an account with the most grants takes a fourth of it
# Routes with larger bodies, and the role that may send them.
LARGE_BODIES: Final = {"/v1/import": (257 << 20, OperatorRole.ADMIN)}
GATEWAY_CALLS_PATH: Final = "/v1/gateway-calls"  # with a gateway's token
GATEWAY_CALL_BYTES_MAX: Final = 4 << 20  # a tenant's partitions, by name


class BodyLimits:
    """ASGI middleware. Requests without a body pass; their route checks the token."""

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[Scope, str | None], OperatorToken | None],
        problem: Callable[[PenstockError], Response],
    ) -> None:
        self.app = app
        self.authenticate = authenticate
        self.problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            length = headers.get("Content-Length", "0")
            if length != "0" or "Transfer-Encoding" in headers:
                try:
                    limit = self._limit(scope, headers)
                    if length.isdecimal() and int(length) > limit:
                        raise BodyTooLarge(limit=limit)
                except PenstockError as error:
                    response = self.problem(error)
                    response.headers["Connection"] = "close"  # the body stays unread
                    await response(scope, receive, send)
                    return
                receive = _limited(receive, limit)
        await self.app(scope, receive, send)

    def _limit(self, scope: Scope, headers: Headers) -> int:
        token = self.authenticate(scope, headers.get("Authorization"))
        if token is None:
            return GATEWAY_CALL_BYTES_MAX
        limit, role = LARGE_BODIES.get(scope["path"], (BODY_BYTES_MAX, None))
        if role is not None:
            require(token, role)
        return limit


def _limited(receive: Receive, limit: int) -> Receive:
    """For bodies whose length is not declared."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            # FastAPI passes only this exception on.
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from BodyTooLarge(limit=limit)
        return message

    return limited
