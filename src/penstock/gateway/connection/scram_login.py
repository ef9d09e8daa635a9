"""The login to a broker as the service account's user, by SCRAM: frames out, responses in.

Salting a password costs a millisecond of processor time, so the derived keys are cached.
"""

from __future__ import annotations

import base64
import os
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.scram import (
    HASHES,
    NONCE_BYTES,
    Exchange,
    ScramRefused,
    ScramUntrusted,
    check_final,
    final_message,
    first_message,
    keys_of,
)
from penstock.model.errors.gateway import ResponseUnexpected, UpstreamLoginRefused
from penstock.wire.error_codes import Code, name_of
from penstock.wire.frames import Request, decode_response, encode_request

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.gateway.config import Broker

MECHANISM: Final = "SCRAM-SHA-512"
CLIENT_ID: Final = "penstock-gateway"
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 2
CORRELATION_ID: Final = 0
KEYS_KEPT_MAX: Final = 20_000  # of users, 192 bytes each

_keys = lru_cache(maxsize=KEYS_KEPT_MAX)(keys_of)


def scram_login(broker: Broker, user: str, password: str) -> Generator[bytes, bytes, int]:
    """Yields frames to send, or none if they were sent before, and gets the next response.

    Returns for how many milliseconds the login is valid, 0 if forever.
    """

    def decoded(frame: bytes, api: str, version: int) -> dict[str, Any]:
        response = decode_response(api, version, frame)
        if response.correlation_id != CORRELATION_ID:
            raise ResponseUnexpected(
                actual=f"correlation id {response.correlation_id}", expected=CORRELATION_ID
            )
        code = response.body["ErrorCode"]
        if code != Code.NONE:
            reason = response.body.get("ErrorMessage") or name_of(code)
            raise UpstreamLoginRefused(broker=broker.id, user=user, reason=reason)
        return response.body

    nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
    scram = Exchange(HASHES[MECHANISM], user, password, nonce)
    # The broker reads the second frame after responding to the first, so both are sent at once.
    response = yield _handshake_frame() + _token_frame(first_message(scram))
    decoded(response, "SaslHandshake", HANDSHAKE_VERSION)
    response = yield b""
    first = decoded(response, "SaslAuthenticate", AUTHENTICATE_VERSION)
    try:
        proof = final_message(scram, first["AuthBytes"], _keys)
        response = yield _token_frame(proof.message)
        last = decoded(response, "SaslAuthenticate", AUTHENTICATE_VERSION)
        check_final(proof, last["AuthBytes"])
    except (ScramRefused, ScramUntrusted) as failure:
        raise UpstreamLoginRefused(broker=broker.id, user=user, reason=failure) from failure
    lifetime_ms: int = last["SessionLifetimeMs"]
    return lifetime_ms


@cache
def _handshake_frame() -> bytes:
    body = {"Mechanism": MECHANISM}
    return encode_request(Request("SaslHandshake", HANDSHAKE_VERSION, CORRELATION_ID, CLIENT_ID, body))


def _token_frame(token: bytes) -> bytes:
    body = {"AuthBytes": token}
    return encode_request(Request("SaslAuthenticate", AUTHENTICATE_VERSION, CORRELATION_ID, CLIENT_ID, body))
