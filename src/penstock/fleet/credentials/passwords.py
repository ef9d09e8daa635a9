"""The platform's Kafka users and their passwords.

A password is HMAC(platform key, user, generation), so none has to be stored. This module is separate
from `certificates`, so that processes that only log in do not load a cryptography library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

NODE_USER: Final = "_penstock.node"  # between brokers and controllers
PLATFORM_USER: Final = "_penstock.platform"  # admin calls, state topics, probes
# Nothing logs in as this user. A node that replays its metadata log from the start loses every SCRAM
# credential if the first user it visits has been deleted since: Kafka 4.3.1 drops the mechanism in
# ScramDelta.apply. Users are visited in the order of a Java HashMap. This name's hash code is 0, so it
# comes first in a map of any size, and it is never deleted.
ANCHOR_USER: Final = "_penstock.guard-adximgjb"
SCRAM_MECHANISM: Final = "SCRAM-SHA-512"
# Passwords have 256 bits of entropy: more iterations would add no protection and slow every login.
SCRAM_ITERATIONS: Final = 4096


@dataclass(frozen=True, slots=True)
class PlatformKey:
    secret: bytes

    def password(self, user: str, generation: int = 1) -> str:
        digest = hmac.new(self.secret, f"{user}\0{generation}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def __repr__(self) -> str:
        return "PlatformKey(…)"
