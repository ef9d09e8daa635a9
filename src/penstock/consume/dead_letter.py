"""Build a dead letter: the record unchanged, plus headers for its origin and failure. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.consume.record import Output
from penstock.model.dead_letter import ORIGIN, PREFIX, failure_headers, own_headers

if TYPE_CHECKING:
    from penstock.consume.record import Record

MESSAGE_CHARS_MAX: Final = 1000


def dead_letter(topic: str, group: str, record: Record, cause: BaseException) -> Output:
    """The record for the dead-letter topic, or for a delayed-retry topic.

    If it failed before and came back through a delayed retry, its origin stays and its attempts add up.
    """
    kind = type(cause)
    timestamp = record.timestamp
    before = failure_headers(record.headers)
    failure = {
        "cause": f"{kind.__module__}.{kind.__qualname__}",
        "message": str(cause)[:MESSAGE_CHARS_MAX],
        "attempts": str(int(before.get("attempts") or 0) + record.attempt),
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": "" if timestamp is None else str(round(timestamp * 1000)),
        "group": group,
    } | {name: before[name] for name in ORIGIN if name in before}
    headers: list[tuple[str, bytes | str | None]] = [*own_headers(record.headers)]
    headers += [(PREFIX + name, value) for name, value in failure.items()]
    return Output(topic, record.message.value(), key=record.message.key(), headers=headers)
