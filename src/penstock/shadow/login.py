"""The server side of SCRAM (RFC 5802), without I/O, with the credentials of the metadata log.

An unknown user gets a made-up salt and fails at the proof, so a login does not reveal which users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.kafka.scram import HASHES, ITERATIONS_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.metadata_image import ScramCredential

MESSAGE_BYTES_MAX: Final = 4096
_UNKNOWN_SALT_KEY: Final = b"penstock shadow"


class LoginRejected(ValueError):
    """The client's messages are invalid, or its proof is wrong."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """After the client's first message; `message` is sent to it."""

    mechanism: str
    user: str
    credential: ScramCredential | None
    nonce: str
    signed: str  # the messages exchanged so far, as the proof covers them
    message: bytes


def challenge(
    mechanism: str,
    client_first: bytes,
    server_nonce: str,
    credentials: Mapping[tuple[str, str], ScramCredential],
) -> Challenge:
    if mechanism not in HASHES:
        raise LoginRejected(f"mechanism {mechanism} is not supported")
    text = _text(client_first)
    header, _, bare = text.partition(",,")
    attributes = _attributes(bare)
    if header != "n" or "n" not in attributes or not attributes.get("r"):
        raise LoginRejected("the first message is not a SCRAM message")
    user = attributes["n"].replace("=2C", ",").replace("=3D", "=")
    credential = credentials.get((user, mechanism))
    salt = credential.salt if credential else hmac.digest(_UNKNOWN_SALT_KEY, user.encode(), "sha256")[:16]
    iterations = credential.iterations if credential else ITERATIONS_MIN
    nonce = attributes["r"] + server_nonce
    message = f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}"
    return Challenge(mechanism, user, credential, nonce, f"{bare},{message}", message.encode())


def verify(sent: Challenge, client_final: bytes) -> bytes:
    """The server's last message; raises if the proof is wrong."""
    text = _text(client_final)
    without_proof, _, encoded = text.rpartition(",p=")
    attributes = _attributes(without_proof)
    try:
        proof = base64.b64decode(encoded, validate=True)
    except ValueError as broken:
        raise LoginRejected("the proof is not base64") from broken
    if attributes.get("c") != "biws" or attributes.get("r") != sent.nonce or sent.credential is None:
        raise LoginRejected("authentication failed")
    hash_name = HASHES[sent.mechanism]
    signed = f"{sent.signed},{without_proof}".encode()
    signature = hmac.digest(sent.credential.stored_key, signed, hash_name)
    if len(proof) != len(signature):
        raise LoginRejected("authentication failed")
    client_key = bytes(a ^ b for a, b in zip(proof, signature))
    stored = hashlib.new(hash_name, client_key).digest()
    if not hmac.compare_digest(stored, sent.credential.stored_key):
        raise LoginRejected("authentication failed")
    own = hmac.digest(sent.credential.server_key, signed, hash_name)
    return b"v=" + base64.b64encode(own)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise LoginRejected(f"a message has more than {MESSAGE_BYTES_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as broken:
        raise LoginRejected("a message is not UTF-8") from broken


def _attributes(text: str) -> dict[str, str]:
    return {pair[:1]: pair[2:] for pair in text.split(",") if pair[1:2] == "="}
