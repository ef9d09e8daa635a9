"""Authentication with an API key: SASL/PLAIN, decided without I/O.

A secret is 64 random characters and cannot be guessed, so one SHA-256 is the right hash. An unknown key takes
as long as a wrong secret and gets the same error.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final

from penstock.gateway.config import Principal
from penstock.model.api_keys import API_KEY_LENGTH
from penstock.wire.error_codes import Code
from penstock.wire.frames import Response, encode_response

if TYPE_CHECKING:
    from penstock.gateway.config import GatewayConfig
    from penstock.wire.frames import Request

MECHANISM: Final = "PLAIN"
REFUSED_TEXT: Final = "Authentication failed: the API key or its secret is wrong."
TOKEN_BYTES_MAX: Final = 1024
_NO_DIGEST: Final = bytes(32)


def claimed_key(token: bytes) -> str:
    """The key that a client claims; empty unless it has a key's form, as it may be a misplaced secret."""
    _, user, _ = _parts(token)
    return user if len(user) == API_KEY_LENGTH and user.isascii() and user.isalnum() else ""


def authenticate(token: bytes, config: GatewayConfig, address: str) -> Principal | None:
    """The principal of this connection, or None. An unknown key takes as long as a wrong secret."""
    authorization, user, secret = _parts(token)
    entry = config.keys.get(user)
    expected = entry[1].secret_sha256 if entry else _NO_DIGEST
    matches = hmac.compare_digest(hashlib.sha256(secret).digest(), expected)
    if entry is None or not matches or authorization not in ("", user):
        return None
    tenant, key = entry
    account = tenant.accounts.get(key.account)
    if account is None:
        return None
    return Principal(tenant.id, key.id, key.secret_sha256, account.id, account.generation, address)


def _parts(token: bytes) -> tuple[str, str, bytes]:
    """Authorization identity, user and password of a SASL/PLAIN token (RFC 4616); empty if malformed."""
    parts = token.split(b"\0") if len(token) <= TOKEN_BYTES_MAX else []
    if len(parts) != 3:
        return "", "", b""
    return parts[0].decode(errors="replace"), parts[1].decode(errors="replace"), parts[2]


def handshake_response(request: Request) -> tuple[bytes, bool]:
    """The response to SaslHandshake, and whether the mechanism is supported."""
    supported = request.body["Mechanism"] == MECHANISM
    body = {
        "ErrorCode": Code.NONE if supported else Code.UNSUPPORTED_SASL_MECHANISM,
        "Mechanisms": [MECHANISM],
    }
    return encode_response(request.api, request.version, Response(request.correlation_id, body)), supported


def login_response(request: Request) -> bytes:
    body: dict[str, object] = {"ErrorCode": Code.NONE, "ErrorMessage": None, "AuthBytes": b""}
    if request.version >= 1:
        body["SessionLifetimeMs"] = 0  # a key is valid until it is revoked
    return encode_response(request.api, request.version, Response(request.correlation_id, body))


def login_error(request: Request, code: int = Code.SASL_AUTHENTICATION_FAILED) -> bytes:
    body = {"ErrorCode": code, "ErrorMessage": REFUSED_TEXT, "AuthBytes": b""}
    return encode_response(request.api, request.version, Response(request.correlation_id, body))
