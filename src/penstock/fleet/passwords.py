"""The platform's passwords towards Kafka: who it is there, and what each user's password is.

A password is HMAC(platform key, user, generation), so none of them has to be stored. This stands
apart from certificates, so that whoever only logs in does not load a cryptography library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

NODE_USER: Final = "_penstock.node"  # brokers and controllers among themselves
PLATFORM_USER: Final = "_penstock.platform"  # the platform's own calls: admin, state, probes
SCRAM_MECHANISM: Final = "SCRAM-SHA-512"
# Passwords are 256 random-looking bits: more rounds would protect nothing and cost every login.
SCRAM_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class PlatformKey:
    secret: bytes

    def password(self, user: str, generation: int = 1) -> str:
        digest = hmac.new(self.secret, f"{user}\0{generation}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def __repr__(self) -> str:
        return "PlatformKey(…)"
