"""A dead letter: the record as it was, with headers that say where it came from and why. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.consume.record import Output

if TYPE_CHECKING:
    from penstock.consume.record import Record

CAUSE: Final = "penstock.cause"
MESSAGE: Final = "penstock.message"
ATTEMPTS: Final = "penstock.attempts"
TOPIC: Final = "penstock.topic"
PARTITION: Final = "penstock.partition"
OFFSET: Final = "penstock.offset"
TIMESTAMP: Final = "penstock.timestamp"
GROUP: Final = "penstock.group"

MESSAGE_CHARS_MAX: Final = 1000


def dead_letter(topic: str, group: str, record: Record, cause: BaseException) -> Output:
    """Key, value and headers as they came in; ours are appended, so a second death keeps the first story."""
    kind = type(cause)
    timestamp = record.timestamp
    story: list[tuple[str, bytes | str | None]] = [
        (CAUSE, f"{kind.__module__}.{kind.__qualname__}"),
        (MESSAGE, str(cause)[:MESSAGE_CHARS_MAX]),
        (ATTEMPTS, str(record.attempt)),
        (TOPIC, record.topic),
        (PARTITION, str(record.partition)),
        (OFFSET, str(record.offset)),
        (TIMESTAMP, "" if timestamp is None else str(round(timestamp * 1000))),
        (GROUP, group),
    ]
    return Output(topic, record.message.value(), key=record.message.key(), headers=[*record.headers, *story])
