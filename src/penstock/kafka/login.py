"""Log in with SASL (PLAIN or SCRAM) on an open connection."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from penstock.kafka.scram import (
    HASHES,
    NONCE_BYTES,
    Exchange,
    ScramRefused,
    ScramUntrusted,
    check_final,
    final_message,
    first_message,
)
from penstock.kafka.security import Login, Mechanism
from penstock.model.errors.wire import BrokerUntrusted, LoginRefused
from penstock.wire.error_codes import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDSHAKE_VERSION = 1  # from this version on, tokens travel in SaslAuthenticate


class Caller(Protocol):
    address: str

    async def call(
        self, api: str, body: Mapping[str, Any] | None = None, *, version: int | None = None
    ) -> dict[str, Any]: ...


async def log_in(connection: Caller, login: Login) -> int:
    """Log in; returns the lifetime of the login in milliseconds, 0 if it never expires (KIP-368)."""
    handshake = await connection.call(
        "SaslHandshake", {"Mechanism": login.mechanism.value}, version=HANDSHAKE_VERSION
    )
    offered = handshake["Mechanisms"]
    if handshake["ErrorCode"]:
        _refuse(connection, login, name_of(handshake["ErrorCode"]), offered)
    if login.mechanism is Mechanism.PLAIN:
        token = f"\0{login.user}\0{login.password}".encode()
        lifetime, _ = await _authenticate(connection, login, token, offered)
        return lifetime
    nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
    exchange = Exchange(HASHES[login.mechanism.value], login.user, login.password, nonce)
    try:
        _, server_first = await _authenticate(connection, login, first_message(exchange), offered)
        proof = final_message(exchange, server_first)
        lifetime, server_final = await _authenticate(connection, login, proof.message, offered)
        check_final(proof, server_final)
    except ScramRefused as refused:
        _refuse(connection, login, str(refused), offered)
    except ScramUntrusted as failure:
        raise BrokerUntrusted(address=connection.address, reason=str(failure)) from failure
    return lifetime


async def _authenticate(
    connection: Caller, login: Login, token: bytes, offered: list[str]
) -> tuple[int, bytes]:
    response = await connection.call("SaslAuthenticate", {"AuthBytes": token})
    if response["ErrorCode"] != Code.NONE:
        reason = response["ErrorMessage"] or name_of(response["ErrorCode"])
        _refuse(connection, login, reason, offered)
    return response.get("SessionLifetimeMs", 0), response["AuthBytes"]


def _refuse(connection: Caller, login: Login, reason: str, offered: list[str]) -> NoReturn:
    raise LoginRefused(
        address=connection.address,
        user=login.user,
        mechanism=login.mechanism.value,
        reason=reason,
        offered=", ".join(offered) or "no mechanism",
    )
