"""Logging in with an API key: SASL/PLAIN, judged without I/O.

A secret is 64 random characters, so one SHA-256 is the right hash: there is nothing to guess. An
unknown key costs what a wrong secret costs, and both are told the same.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from penstock.gateway.config import Holder
from penstock.wire.codes import Code
from penstock.wire.frames import Response, encode_response

if TYPE_CHECKING:
    from penstock.gateway.config import GatewayConfig
    from penstock.wire.frames import Request

MECHANISM: Final = "PLAIN"
REFUSED_TEXT: Final = "Authentication failed: the API key or its secret is wrong."
TOKEN_BYTES_MAX: Final = 1024
_NOBODY: Final = bytes(32)


def authenticate(token: bytes, config: GatewayConfig, address: str) -> Holder | None:
    """Whose connection this is, or None. Takes the same time for an unknown key as for a wrong secret."""
    parts = token.split(b"\0") if len(token) <= TOKEN_BYTES_MAX else []
    authorization, name, secret = parts if len(parts) == 3 else (b"", b"", b"")
    user = name.decode(errors="replace")
    found = config.keys.get(user)
    expected = found[1].secret_sha256 if found else _NOBODY
    right = hmac.compare_digest(hashlib.sha256(secret).digest(), expected)
    if found is None or not right or authorization not in (b"", name):
        return None
    tenant, key = found
    account = tenant.accounts.get(key.account)
    if account is None:
        return None
    return Holder(tenant.id, key.id, key.secret_sha256, account.id, account.generation, address)


def handshake_answer(request: Request) -> tuple[bytes, bool]:
    """The answer to SaslHandshake, and whether the mechanism is the one we speak."""
    right = request.body["Mechanism"] == MECHANISM
    body = {
        "ErrorCode": Code.NONE if right else Code.UNSUPPORTED_SASL_MECHANISM,
        "Mechanisms": [MECHANISM],
    }
    return encode_response(request.api, request.version, Response(request.correlation_id, body)), right


def login_answer(request: Request) -> bytes:
    body: dict[str, object] = {"ErrorCode": Code.NONE, "ErrorMessage": None, "AuthBytes": b""}
    if request.version >= 1:
        body["SessionLifetimeMs"] = 0  # a key holds until it is revoked
    return encode_response(request.api, request.version, Response(request.correlation_id, body))


def login_refusal(request: Request, code: int = Code.SASL_AUTHENTICATION_FAILED) -> bytes:
    body = {"ErrorCode": code, "ErrorMessage": REFUSED_TEXT, "AuthBytes": b""}
    return encode_response(request.api, request.version, Response(request.correlation_id, body))
