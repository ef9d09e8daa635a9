"""Makes API keys and operators' tokens, and hashes their secrets.

Secrets are long and random, so that one SHA-256 is enough of a hash. Randomness is passed in.
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.model.ids import Choice

API_KEY_LENGTH: Final = 16
API_SECRET_LENGTH: Final = 64
TOKEN_LENGTH: Final = 48
ROTATION_SECONDS: Final = 24 * 3600.0  # for which a rotated key stays valid by default

_KEY_ALPHABET: Final = string.ascii_uppercase + string.digits
_SECRET_ALPHABET: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class NewApiKey:
    id: str
    secret: str = field(repr=False)

    @property
    def secret_sha256(self) -> str:
        """What is stored of the secret, in hexadecimal digits."""
        return hashed(self.secret)


def new_api_key(choice: Choice) -> NewApiKey:
    secret = "".join(choice(_SECRET_ALPHABET) for _ in range(API_SECRET_LENGTH))
    return NewApiKey("".join(choice(_KEY_ALPHABET) for _ in range(API_KEY_LENGTH)), secret)


def new_token(choice: Choice) -> str:
    """The secret of an operator's token."""
    return "".join(choice(_SECRET_ALPHABET) for _ in range(TOKEN_LENGTH))


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
