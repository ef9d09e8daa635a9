"""A log in memory that `ViewRunner` and `rebuild` follow, for tests that choose every failure.

The runner, folds and stores are the real ones; only the Kafka consumer is replaced.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from penstock.olep.codec import JsonCodec
from penstock.olep.log import Log
from penstock.olep.position import Position
from penstock.olep.view import consistent_reads, rebuild, runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from penstock.olep.event import Event

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class MemoryLog:
    """Partitions of (offset, key, value). `log` is what runners and readers take."""

    def __init__(self, partitions: int) -> None:
        self.log = Log("memory", "memory", TOPIC_ID, partitions, {}, cast("Any", None), JsonCodec())
        self.records: list[list[tuple[int, bytes, bytes]]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.changed = threading.Condition()

    def append(self, partition: int, key: str, event: Event | bytes, *, gap: int = 0) -> Position:
        """`gap`: offsets before the record that a consumer never sees, such as transaction markers."""
        value = event if isinstance(event, bytes) else self.log.codec.encode(event)
        with self.changed:
            offset = self.ends[partition] + gap
            self.records[partition].append((offset, key.encode(), value))
            self.ends[partition] = offset + 1
            self.changed.notify_all()
        return Position.at(TOPIC_ID, partition, offset + 1)

    def end_position(self, _: Log | None = None) -> Position:
        return Position({TOPIC_ID: dict(enumerate(self.ends))})

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes runners, rebuilds and readers follow this log instead of Kafka's."""
        monkeypatch.setattr(runner, "following", lambda *_, **__: _Consumer(self))
        for module in (runner, rebuild, consistent_reads):
            monkeypatch.setattr(module, "end_position", self.end_position)


class _Message:
    def __init__(self, partition: int, record: tuple[int, bytes, bytes]) -> None:
        self._partition, self._record = partition, record

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._record[0]

    def key(self) -> bytes:
        return self._record[1]

    def value(self) -> bytes:
        return self._record[2]


class _Consumer:
    """The part of confluent_kafka's consumer that a runner uses."""

    def __init__(self, source: MemoryLog) -> None:
        self._source = source
        self._at: dict[int, int] = {}

    def assign(self, partitions: Sequence[Any]) -> None:
        self._at = {each.partition: each.offset for each in partitions}

    def consume(self, limit: int, timeout: float) -> list[_Message]:
        with self._source.changed:
            self._source.changed.wait_for(lambda: self._waiting() or not timeout, timeout)
            messages = self._waiting()[:limit]
        for message in messages:
            self._at[message.partition()] = message.offset() + 1
        return messages

    def get_watermark_offsets(self, partition: Any, cached: bool) -> tuple[int, int]:
        return 0, self._source.ends[partition.partition]

    def close(self) -> None:
        """Nothing to close."""

    def _waiting(self) -> list[_Message]:
        return [
            _Message(partition, record)
            for partition, at in self._at.items()
            for record in self._source.records[partition]
            if record[0] >= at
        ]
