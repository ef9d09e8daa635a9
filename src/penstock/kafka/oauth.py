"""OAUTHBEARER with the client credentials grant (RFC 6749 §4.4): get a token, reuse it, replace it in time.

All connections with one login share its token. A connection is replaced before its login expires (KIP-368,
see `client`), and the new one logs in with the current token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.http_calls import open_url
from penstock.model.errors.wire import ClientRefused, TokenUnavailable

if TYPE_CHECKING:
    import ssl

MECHANISM: Final = "OAUTHBEARER"
REQUEST_SECONDS_MAX: Final = 8.0
RESPONSE_BYTES_MAX: Final = 1 << 20
LIFETIME_USED_MAX: Final = 0.8  # of a token, before another is requested
REASON_CHARACTERS_MAX: Final = 200


@dataclass(slots=True)
class _Token:
    text: str = field(repr=False)
    replace_at: float  # monotonic


@dataclass(frozen=True, slots=True)
class OAuthLogin:
    """A client of an authorization server."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)  # none: the system's CAs
    _cached: list[_Token] = field(default_factory=list, init=False, repr=False, compare=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    @property
    def user(self) -> str:
        return self.client_id

    async def token(self) -> str:
        """The current token; requested if there is none, or if it expires soon."""
        async with self._lock:
            if not self._cached or time.monotonic() >= self._cached[0].replace_at:
                requested_at = time.monotonic()
                response = await asyncio.to_thread(self._request)
                token = str(response["access_token"])
                seconds = _lifetime_seconds(response, token)
                self._cached[:] = [_Token(token, requested_at + seconds * LIFETIME_USED_MAX)]
            return self._cached[0].text

    def forget(self) -> None:
        """A broker rejected the token: the next login requests another."""
        self._cached.clear()

    def principal(self) -> str:
        """The Kafka user of the current token: its subject, unless the broker is configured otherwise."""
        claims = _claims(self._cached[0].text) if self._cached else {}
        return str(claims.get("sub") or self.client_id)

    def _request(self) -> dict[str, Any]:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        # RFC 6749 §2.3.1: both parts are form-encoded first.
        pair = f"{urllib.parse.quote_plus(self.client_id)}:{urllib.parse.quote_plus(self.client_secret)}"
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.token_url, data, headers)  # noqa: S310 - settings check it
        try:
            with open_url(request, timeout=REQUEST_SECONDS_MAX, tls=self.tls) as response:
                body = json.loads(response.read(RESPONSE_BYTES_MAX))
        except urllib.error.HTTPError as refused:
            if refused.code < 500 and refused.code != 429:
                reason = _error_text(refused)
                raise ClientRefused(url=self.token_url, client=self.client_id, reason=reason) from refused
            raise TokenUnavailable(url=self.token_url, reason=f"HTTP status {refused.code}") from refused
        except urllib.error.URLError as failure:
            raise TokenUnavailable(url=self.token_url, reason=str(failure.reason)) from failure
        except (OSError, http.client.HTTPException, ValueError) as failure:
            reason = str(failure) or type(failure).__name__
            raise TokenUnavailable(url=self.token_url, reason=reason) from failure
        if not isinstance(body, dict) or not isinstance(body.get("access_token"), str):
            raise TokenUnavailable(url=self.token_url, reason="the response has no access_token")
        return body


def first_message(token: str) -> bytes:
    """The client's message (RFC 7628 §3.1)."""
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"


ACKNOWLEDGEMENT: Final = b"\x01"  # of an error; the broker fails the login then (RFC 7628 §3.2.3)


def rejection(server_message: bytes) -> str:
    """Why the broker rejects the token."""
    try:
        return str(json.loads(server_message)["status"])
    except (ValueError, LookupError, TypeError):
        return server_message[:REASON_CHARACTERS_MAX].decode(errors="replace")


def _lifetime_seconds(response: dict[str, Any], token: str) -> float:
    """The token's lifetime; 0 if it is unknown, so that it is used once."""
    expires_in = response.get("expires_in")
    if isinstance(expires_in, int | float):
        return float(expires_in)
    claims = _claims(token)
    expiry, issued = claims.get("exp"), claims.get("iat")
    if isinstance(expiry, int | float):
        return float(expiry - (issued if isinstance(issued, int | float) else time.time()))
    return 0.0


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT, unverified; empty if it is not one."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _error_text(refused: urllib.error.HTTPError) -> str:
    """The error of RFC 6749 §5.2, or the status."""
    try:
        body = json.loads(refused.read(RESPONSE_BYTES_MAX))
        described = body.get("error_description") or body["error"]
        return f"{body['error']}: {described}"[:REASON_CHARACTERS_MAX]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP status {refused.code}"
