"""Turn Kafka's error codes into errors of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors.wire import KafkaBusy, KafkaDenied, KafkaMissing, KafkaRefused
from penstock.wire.error_codes import DENIED, MISSING, RETRIABLE, Code, name_of

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError


def broker_error(api: str, code: int, message: str | None, subject: str | None = None) -> PenstockError:
    """The error for a code in a broker's response; `subject` names what it is about."""
    kind: type[PenstockError] = KafkaRefused
    if code in DENIED:
        kind = KafkaDenied
    elif code in MISSING:
        kind = KafkaMissing
    elif code in RETRIABLE:
        kind = KafkaBusy
    name = name_of(code)
    detail = f"{name} ({message})" if message and message != name else name
    return kind(
        api=api, subject=f"{subject}: " if subject else "", detail=detail, error=name, error_code=code
    )


def check(api: str, code: int, message: str | None = None, subject: str | None = None) -> None:
    """Raise the error for a code other than NONE."""
    if code != Code.NONE:
        raise broker_error(api, code, message, subject)
