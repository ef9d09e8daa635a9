"""Kafka's error codes as errors of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.errors.wire import KafkaBusy, KafkaDenied, KafkaMissing, KafkaRefused
from penstock.wire.codes import DENIED, MISSING, RETRIABLE, Code, name_of

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError


def refusal(api: str, code: int, message: str | None, subject: str | None = None) -> PenstockError:
    """The error for a code that a broker answered with; `subject` says for what."""
    kind: type[PenstockError] = KafkaRefused
    if code in DENIED:
        kind = KafkaDenied
    elif code in MISSING:
        kind = KafkaMissing
    elif code in RETRIABLE:
        kind = KafkaBusy
    name = name_of(code)
    said = f"{name} ({message})" if message and message != name else name
    return kind(api=api, subject=f"{subject}: " if subject else "", said=said, error=name, error_code=code)


def check(api: str, code: int, message: str | None = None, subject: str | None = None) -> None:
    """Raise the code's error unless it is NONE."""
    if code != Code.NONE:
        raise refusal(api, code, message, subject)
