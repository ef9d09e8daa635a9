"""The client side of SCRAM (RFC 5802, RFC 7677): three functions without I/O.

The server authenticates too: without the salted password it cannot produce the signature that
`check_final` verifies. Kafka does not normalise passwords (SASLprep), so this does not either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    KeysBy = Callable[[str, str, bytes, int], "Keys"]

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4096  # RFC 7677; with fewer, an impostor could weaken the password
ITERATIONS_MAX: Final = 1_000_000  # an impostor must not make us compute for minutes
NONCE_BYTES: Final = 24


class ScramRefused(ValueError):
    """The server rejected the login; the text is its reason."""


class ScramUntrusted(ValueError):
    """The server's messages are invalid, so it cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Exchange:
    hash_name: str
    user: str
    password: str
    nonce: str

    @property
    def first_bare(self) -> str:
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self.nonce}"


@dataclass(frozen=True, slots=True)
class Proof:
    message: bytes
    server_signature: bytes


def first_message(exchange: Exchange) -> bytes:
    return f"n,,{exchange.first_bare}".encode()


@dataclass(frozen=True, slots=True)
class Keys:
    """Derived from a password and a salt; the same for every login."""

    client: bytes = field(repr=False)
    stored: bytes = field(repr=False)
    server: bytes = field(repr=False)


def keys_of(hash_name: str, password: str, salt: bytes, iterations: int) -> Keys:
    """Derive the keys. Slow on purpose: cache the result if you log in often."""
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client = hmac.digest(salted, b"Client Key", hash_name)
    server = hmac.digest(salted, b"Server Key", hash_name)
    return Keys(client, hashlib.new(hash_name, client).digest(), server)


def final_message(exchange: Exchange, server_first: bytes, keys_by: KeysBy = keys_of) -> Proof:
    """Our proof, and the signature the server must reply with."""
    attributes = _attributes(server_first)
    try:
        nonce, salt = attributes["r"], base64.b64decode(attributes["s"], validate=True)
        iterations = int(attributes["i"])
    except (KeyError, ValueError, binascii.Error) as broken:
        raise ScramUntrusted("its first message is not a SCRAM message") from broken
    if not nonce.startswith(exchange.nonce) or len(nonce) == len(exchange.nonce):
        raise ScramUntrusted("it did not extend our nonce")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ScramUntrusted(f"it demands {iterations} iterations")
    without_proof = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
    signed = ",".join((exchange.first_bare, server_first.decode(), without_proof)).encode()
    keys = keys_by(exchange.hash_name, exchange.password, salt, iterations)
    signature = hmac.digest(keys.stored, signed, exchange.hash_name)
    proof = int.from_bytes(keys.client) ^ int.from_bytes(signature)
    encoded = base64.b64encode(proof.to_bytes(len(signature))).decode()
    message = f"{without_proof},p={encoded}".encode()
    return Proof(message, hmac.digest(keys.server, signed, exchange.hash_name))


def check_final(proof: Proof, server_final: bytes) -> None:
    attributes = _attributes(server_final)
    if "e" in attributes:
        raise ScramRefused(attributes["e"])
    try:
        signature = base64.b64decode(attributes["v"], validate=True)
    except (KeyError, binascii.Error) as broken:
        raise ScramUntrusted("its last message is not a SCRAM message") from broken
    if not hmac.compare_digest(signature, proof.server_signature):
        raise ScramUntrusted("its signature is wrong: it does not know the password")


def _attributes(message: bytes) -> dict[str, str]:
    try:
        pairs = message.decode().split(",")
    except UnicodeDecodeError as broken:
        raise ScramUntrusted("its message is not UTF-8") from broken
    return {pair[:1]: pair[2:] for pair in pairs if pair[1:2] == "="}
