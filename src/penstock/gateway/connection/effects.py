"""What a connection asks of the process around it, besides writing to its two sides.

`Connection` appends these to `effects`; `process.session` carries them out. They are rare: most bytes pass
without any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.gateway.limits.admission import Denial
    from penstock.wire.frames import Request


@dataclass(frozen=True, slots=True)
class LogIn:
    """Authenticate the client, then call `linked`, `logged_in_again` or `login_rejected`."""

    request: Request  # SaslAuthenticate


@dataclass(frozen=True, slots=True)
class Call:
    """Run a call on the platform's identity, then call `resolved` with its result or error."""

    work: Coroutine[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Deny:
    """Count and log a refusal."""

    reason: Denial
    api: object = None
    error: object = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Call `tick` after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close the client's side after so many seconds: when everything written has been sent, or at once."""

    reason: str
    after_seconds: float = 0.0
    at_once: bool = False


Effect = LogIn | Call | Deny | Wake | Close
