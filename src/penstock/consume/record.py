"""The values handlers see: a Record to handle, an Output to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.consume.assignment import Assignment

Headers = list[tuple[str, bytes | None]]

PARTITION_QUEUE: Final = b"\x00partition"  # queue key of a whole partition, or of its records without a key


class Record:
    """One record of a topic, as the handler gets it.

    `key` and `value` are bytes, or what the deserializers returned. `attempt` counts from 1.
    """

    __slots__ = ("assignment", "attempt", "key", "message", "offset", "queue_key", "size", "value")

    def __init__(
        self, message: Any, assignment: Assignment, offset: int, key: Any, queue_key: Any, size: int
    ) -> None:
        self.message = message  # of confluent_kafka
        self.assignment = assignment
        self.offset = offset
        self.key = key
        self.value: Any = message.value()
        self.queue_key = queue_key  # records with one key run one at a time, in order; None: unordered
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
        """Seconds since the epoch; None if the record has no timestamp."""
        kind, milliseconds = self.message.timestamp()
        return milliseconds / 1000 if kind else None

    def __repr__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the record for a worker process, without the consumer's state."""
        detached = DetachedMessage(
            self.topic, self.partition, self.message.headers(), self.message.timestamp()
        )
        return _rebuilt, (detached, self.offset, self.key, self.value, self.attempt)


@dataclass(slots=True)
class DetachedMessage:
    """Replaces message and assignment in a worker process, which has neither."""

    topic: str
    partition: int
    _headers: Any
    _timestamp: tuple[int, int]

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


def _rebuilt(detached: Any, offset: int, key: Any, value: Any, attempt: int) -> Record:
    record = Record.__new__(Record)
    record.message = record.assignment = detached
    record.offset, record.key, record.value, record.attempt = offset, key, value, attempt
    record.queue_key, record.size = None, 0
    return record


@dataclass(frozen=True, slots=True)
class Output:
    """A record to write before the input's offset is committed, or with it in one transaction."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] = field(default=())
    partition: int | None = None
    timestamp_ms: int | None = None
