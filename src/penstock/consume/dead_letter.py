"""Build a dead letter: the record unchanged, plus headers for its origin and failure. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.consume.record import Output
from penstock.model.dead_letter import ORIGIN, PREFIX, failure_headers, own_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.consume.record import Record

MESSAGE_CHARS_MAX: Final = 1000
_DIGITS_MAX: Final = 10


def dead_letter(topic: str, group: str, record: Record, cause: BaseException) -> Output:
    """The record for the dead-letter topic, or for a delayed-retry topic.

    If it failed before and came back through a delayed retry, its origin stays and its attempts add up.
    """
    kind = type(cause)
    timestamp = record.timestamp
    before = failure_headers(record.headers)
    failure = {
        "cause": f"{kind.__module__}.{kind.__qualname__}",
        "message": shown(cause, str)[:MESSAGE_CHARS_MAX],
        "attempts": str(_number(before.get("attempts")) + record.attempt),
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": "" if timestamp is None else str(round(timestamp * 1000)),
        "group": group,
    } | {name: before[name] for name in ORIGIN if name in before}
    headers: list[tuple[str, bytes | str | None]] = [*own_headers(record.headers)]
    headers += [(PREFIX + name, value) for name, value in failure.items()]
    return Output(topic, record.message.value(), key=record.message.key(), headers=headers)


def shown(cause: BaseException, form: Callable[[object], str] = repr) -> str:
    """The exception as text, even if its class cannot describe it."""
    try:
        return form(cause)
    except Exception:  # noqa: BLE001  a class of the application
        return type(cause).__name__


def _number(text: str | None) -> int:
    """A number of a header, which any producer may have written."""
    return int(text) if text and text.isdecimal() and len(text) < _DIGITS_MAX else 0
