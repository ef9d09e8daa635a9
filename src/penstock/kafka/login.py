"""Log in with SASL (PLAIN, SCRAM or OAUTHBEARER) on an open connection."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from penstock.kafka import oauth
from penstock.kafka.oauth import OAuthLogin
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
from penstock.model.errors.wire import BrokerUntrusted, LoginRefused, TokenRejected
from penstock.wire.error_codes import Code, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

HANDSHAKE_VERSION = 1  # from this version on, tokens travel in SaslAuthenticate


class Caller(Protocol):
    address: str

    async def call(
        self, api: str, body: Mapping[str, Any] | None = None, *, version: int | None = None
    ) -> dict[str, Any]: ...


async def log_in(connection: Caller, login: Login | OAuthLogin) -> int:
    """Log in; returns the lifetime of the login in milliseconds, 0 if it never expires (KIP-368)."""
    if isinstance(login, OAuthLogin):
        return await _log_in_with_token(connection, login)
    offered = await _handshake(connection, login, login.mechanism.value)
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


async def _log_in_with_token(connection: Caller, login: OAuthLogin) -> int:
    offered = await _handshake(connection, login, oauth.MECHANISM)
    message = oauth.first_message(await login.token())
    try:
        lifetime, error = await _authenticate(connection, login, message, offered)
        if error:
            await _authenticate(connection, login, oauth.ACKNOWLEDGEMENT, offered)
            _refuse(connection, login, oauth.rejection(error), offered)
    except LoginRefused:
        login.forget()
        raise
    return lifetime


async def _handshake(connection: Caller, login: Login | OAuthLogin, mechanism: str) -> list[str]:
    """The mechanisms that the broker offers, this one among them."""
    handshake = await connection.call("SaslHandshake", {"Mechanism": mechanism}, version=HANDSHAKE_VERSION)
    offered: list[str] = handshake["Mechanisms"]
    if handshake["ErrorCode"]:
        _refuse(connection, login, name_of(handshake["ErrorCode"]), offered)
    return offered


async def _authenticate(
    connection: Caller, login: Login | OAuthLogin, token: bytes, offered: list[str]
) -> tuple[int, bytes]:
    response = await connection.call("SaslAuthenticate", {"AuthBytes": token})
    if response["ErrorCode"] != Code.NONE:
        reason = response["ErrorMessage"] or name_of(response["ErrorCode"])
        _refuse(connection, login, reason, offered)
    return response.get("SessionLifetimeMs", 0), response["AuthBytes"]


def _refuse(connection: Caller, login: Login | OAuthLogin, reason: str, offered: list[str]) -> NoReturn:
    mechanism = oauth.MECHANISM if isinstance(login, OAuthLogin) else login.mechanism.value
    kind = TokenRejected if mechanism == oauth.MECHANISM and mechanism in offered else LoginRefused
    raise kind(
        address=connection.address,
        user=login.user,
        mechanism=mechanism,
        reason=reason,
        offered=", ".join(offered) or "no mechanism",
    )
