"""The values users meet: a record to handle, and an output to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.consume.assignment import Assignment

Headers = list[tuple[str, bytes | None]]

PARTITION_LANE: Final = b"\x00partition"  # the one lane of a partition that is kept in order as a whole


class Message(Protocol):
    """What is used of confluent_kafka.Message."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> Any: ...
    def __len__(self) -> int: ...


class Record:
    """One record of a topic, as the handler gets it.

    `key` and `value` are bytes, or what the deserialisers made of them. `attempt` counts from 1.
    """

    __slots__ = ("assignment", "attempt", "key", "lane", "message", "offset", "size", "value")

    def __init__(
        self, message: Message, assignment: Assignment, offset: int, key: Any, lane: Any, size: int
    ) -> None:
        self.message = message
        self.assignment = assignment
        self.offset = offset
        self.key = key
        self.value: Any = message.value()
        self.lane = lane  # records of one lane run one at a time, in order; None: no order asked
        self.size = size
        self.attempt = 1

    @property
    def topic(self) -> str:
        return self.assignment.topic

    @property
    def partition(self) -> int:
        return self.assignment.partition

    @property
    def headers(self) -> Headers:
        return self.message.headers() or []

    @property
    def timestamp(self) -> float | None:
        """Seconds since the epoch; None when the record carries no time."""
        kind, milliseconds = self.message.timestamp()
        return milliseconds / 1000 if kind else None

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __reduce__(self) -> tuple[Any, ...]:
        """What crosses to a worker process: the record without the consumer's book-keeping."""
        letter = Letter(self.topic, self.partition, self.message.headers(), self.message.timestamp())
        return _arrived, (letter, self.offset, self.key, self.value, self.attempt)


class Letter:
    """Stands for message and assignment in a worker process, which has neither."""

    __slots__ = ("_headers", "_timestamp", "partition", "topic")

    def __init__(self, topic: str, partition: int, headers: Any, timestamp: tuple[int, int]) -> None:
        self.topic, self.partition, self._headers, self._timestamp = topic, partition, headers, timestamp

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def __reduce__(self) -> tuple[Any, ...]:
        return Letter, (self.topic, self.partition, self._headers, self._timestamp)


def _arrived(letter: Any, offset: int, key: Any, value: Any, attempt: int) -> Record:
    record = Record.__new__(Record)
    record.message = record.assignment = letter
    record.offset, record.key, record.value, record.attempt = offset, key, value, attempt
    record.lane, record.size = None, 0
    return record


@dataclass(frozen=True, slots=True)
class Output:
    """A record for the consumer to write: before the input is committed, or with it in one transaction."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] = field(default=())
    partition: int | None = None
    timestamp_ms: int | None = None
