"""Kafka in memory, to test handlers without a broker or Java: topics, groups, rebalances, faults.

    kafka = MemoryKafka()
    kafka.create("orders", partitions=2)
    kafka.write("orders", b"42", key=b"alice")
    consumer = ParallelConsumer(kafka.properties("billing"), topics=["orders"], **kafka.clients)

    async with consumer:
        await kafka.until_committed("billing", "orders")

`revoke`, `lose` and `assign` move partitions as a rebalance would. `skip_offsets` leaves offsets without
records, as compaction and transaction markers do. `refuse_commits` and `break_client` inject errors.
It replaces a client, not a broker: there are no time-outs and no fencing.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import zlib
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PartitionId = tuple[str, int]


class MemoryMessage:
    """A record or an error, with the methods of confluent_kafka.Message."""

    def __init__(
        self, partition_id: PartitionId, offset: int, value: bytes | None = None, key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None, error: KafkaError | None = None,
    ) -> None:  # fmt: skip
        self._partition_id, self._offset, self._value, self._key = partition_id, offset, value, key
        self._headers, self._error, self._time = headers, error, int(time.time() * 1000)

    def topic(self) -> str:
        return self._partition_id[0]

    def partition(self) -> int:
        return self._partition_id[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return (1, self._time)

    def error(self) -> KafkaError | None:
        return self._error

    def __len__(self) -> int:
        return len(self._value or b"")


@dataclass(slots=True)
class Log:
    """A partition: its records in offset order, and its end offset."""

    records: list[MemoryMessage] = field(default_factory=list)
    end: int = 0


class MemoryKafka:
    """A Kafka cluster in this process. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.logs: dict[PartitionId, Log] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}  # by group, topic, partition
        self.members: list[MemoryClient] = []
        self._refusals: deque[int] = deque()

    # For tests

    def properties(self, group: str, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": "memory", "group.id": group, **more}

    @property
    def clients(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """Options that make a ParallelConsumer use this cluster."""
        return {
            "client": lambda properties: MemoryClient(self, properties),
            "producer_client": lambda properties: MemoryProducer(self, properties),
        }

    def create(self, topic: str, partitions: int = 1) -> None:
        with self.lock:
            for partition in range(partitions):
                self.logs[topic, partition] = Log()

    def write(
        self, topic: str, value: bytes | str | None, key: bytes | str | None = None,
        partition: int | None = None, headers: Iterable[tuple[str, Any]] | None = None,
    ) -> int:  # fmt: skip
        """Appends a record; returns its offset."""
        raw_key, raw_value = _raw(key), _raw(value)
        with self.lock:
            count = sum(name == topic for name, _ in self.logs)
            if not count:
                self.create(topic)
                count = 1
            number = zlib.crc32(raw_key or b"") % count if partition is None else partition
            log = self.logs[topic, number]
            raw_headers = [(name, _raw(each)) for name, each in headers or ()] or None
            log.records.append(MemoryMessage((topic, number), log.end, raw_value, raw_key, raw_headers))
            log.end += 1
            return log.end - 1

    def skip_offsets(self, topic: str, partition: int = 0, offsets: int = 1) -> None:
        """Leaves offsets without a record: compacted away, aborted, or a transaction marker."""
        with self.lock:
            self.logs[topic, partition].end += offsets

    def values(self, topic: str) -> list[bytes | None]:
        return [each.value() for each in self.messages(topic)]

    def messages(self, topic: str) -> list[MemoryMessage]:
        with self.lock:
            return [each for (name, _), log in self.logs.items() if name == topic for each in log.records]

    def committed(self, group: str, topic: str, partition: int = 0) -> tuple[int, str] | None:
        with self.lock:
            return self.offsets.get((group, topic, partition))

    def revoke(self, topic: str, partition: int) -> None:
        self._rebalance("revoke", (topic, partition))

    def lose(self, topic: str, partition: int) -> None:
        self._rebalance("lose", (topic, partition))

    def assign(self, topic: str, partition: int, member: int = 0) -> None:
        with self.lock:
            self.members[member].rebalances.append(("assign", (topic, partition)))

    def refuse_commits(self, *codes: int) -> None:
        """The next commits fail with these error codes, one each."""
        self._refusals.extend(codes)

    def break_client(self, code: int, *, fatal: bool = False, reason: str = "broken by the test") -> None:
        """Every member's next poll reports this error."""
        with self.lock:
            for member in self.members:
                member.errors.append(KafkaError(code, reason, fatal))

    async def until_committed(self, group: str, topic: str, *, seconds: float = 20.0) -> None:
        """Waits until everything in the topic is committed."""
        async with asyncio.timeout(seconds):
            while not self._all_committed(group, topic):
                await asyncio.sleep(0.005)

    def _all_committed(self, group: str, topic: str) -> bool:
        with self.lock:
            return all(
                self.offsets.get((group, *partition_id), (0, ""))[0] >= log.end
                for partition_id, log in self.logs.items()
                if partition_id[0] == topic
            )

    # For the clients

    def join(self, member: MemoryClient) -> None:
        with self.lock:
            self.members.append(member)
            owned = {partition_id for each in self.members for partition_id in each.positions}
            for partition_id in self.logs:
                if partition_id[0] in member.topics and partition_id not in owned:
                    member.rebalances.append(("assign", partition_id))

    def leave(self, member: MemoryClient) -> None:
        with self.lock:
            if member in self.members:
                self.members.remove(member)

    def store(self, group: str, partitions: Iterable[TopicPartition]) -> KafkaError | None:
        with self.lock:
            if self._refusals:
                return KafkaError(self._refusals.popleft())
            for each in partitions:
                self.offsets[group, each.topic, each.partition] = (each.offset, each.metadata or "")
            return None

    def _rebalance(self, kind: str, partition_id: PartitionId) -> None:
        with self.lock:
            for member in self.members:
                if partition_id in member.positions:
                    member.rebalances.append((kind, partition_id))
                    return
        raise LookupError(f"no member owns {partition_id[0]}[{partition_id[1]}]")


class MemoryClient:
    """The part of confluent_kafka.Consumer that the parallel consumer uses."""

    def __init__(self, kafka: MemoryKafka, properties: dict[str, Any]) -> None:
        self._kafka = kafka
        self._group = properties["group.id"]
        self._on_commit = properties.get("on_commit")
        self._batch_max = int(properties.get("test.batch.records", 100_000))
        self.topics: list[str] = []
        self.rebalances: deque[tuple[str, PartitionId]] = deque()
        self.errors: deque[KafkaError] = deque()
        self.positions: dict[PartitionId, int] = {}
        self.paused: set[PartitionId] = set()
        self._callbacks: dict[str, Any] = {}
        self._outcomes: deque[tuple[KafkaError | None, list[TopicPartition]]] = deque()
        self._eof_offset: dict[PartitionId, int] = {}
        self._next_start = itertools.count()

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.topics = topics
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lose": on_lost}
        self._kafka.join(self)

    def poll(self, timeout: float = 0) -> MemoryMessage | None:
        deadline = time.monotonic() + timeout
        while True:
            self._serve()
            messages = self._next(1)
            if messages or time.monotonic() >= deadline:
                return messages[0] if messages else None
            time.sleep(0.001)

    def consume(self, num_messages: int = 1, timeout: float = 0) -> list[MemoryMessage]:
        self._serve()
        return self._next(min(num_messages, self._batch_max))

    def committed(self, partitions: list[TopicPartition], timeout: float = 0) -> list[TopicPartition]:
        stored = []
        for partition in partitions:
            commit = self._kafka.committed(self._group, partition.topic, partition.partition)
            offset, metadata = commit or (OFFSET_INVALID, "")
            stored.append(TopicPartition(partition.topic, partition.partition, offset, metadata=metadata))
        return stored

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        error = self._kafka.store(self._group, offsets)
        if asynchronous:
            self._outcomes.append((error, offsets))
            return None
        if error is not None:
            raise KafkaException(error)
        return offsets

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        with self._kafka.lock:
            for partition in partitions:
                self.positions[partition.topic, partition.partition] = max(partition.offset, 0)
                self._eof_offset.pop((partition.topic, partition.partition), None)

    assign = incremental_assign

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused |= {(partition.topic, partition.partition) for partition in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(partition.topic, partition.partition) for partition in partitions}

    def consumer_group_metadata(self) -> str:
        return str(self._group)

    def close(self) -> None:
        with self._kafka.lock:
            owned = list(self.positions)
        if owned and self._callbacks:
            self._callbacks["revoke"](self, [TopicPartition(*partition_id) for partition_id in owned])
        self.positions.clear()
        self._kafka.leave(self)

    def _serve(self) -> None:
        while self._outcomes:
            error, partitions = self._outcomes.popleft()
            if self._on_commit is not None:
                self._on_commit(error, partitions)
        while self.rebalances:
            kind, partition_id = self.rebalances.popleft()
            self._callbacks[kind](self, [TopicPartition(*partition_id)])
            if kind != "assign":
                self.positions.pop(partition_id, None)
                self.paused.discard(partition_id)

    def _next(self, count: int) -> list[MemoryMessage]:
        with self._kafka.lock:
            if self.errors:
                return [MemoryMessage(("", -1), -1, error=self.errors.popleft())]
            messages: list[MemoryMessage] = []
            fetching = [each for each in self.positions if each not in self.paused]
            start = next(self._next_start)
            for index in range(len(fetching)):
                messages += self._read(fetching[(start + index) % len(fetching)], count - len(messages))
                if len(messages) >= count:
                    break
            return messages

    def _read(self, partition_id: PartitionId, count: int) -> list[MemoryMessage]:
        log = self._kafka.logs[partition_id]
        start = bisect_left(log.records, self.positions[partition_id], key=MemoryMessage.offset)
        messages = log.records[start : start + count]
        if messages:
            self.positions[partition_id] = messages[-1].offset() + 1
        elif count and self._eof_offset.get(partition_id) != log.end:
            self._eof_offset[partition_id] = log.end
            self.positions[partition_id] = log.end
            return [MemoryMessage(partition_id, log.end, error=KafkaError(KafkaError._PARTITION_EOF))]
        return messages


class MemoryProducer:
    """The part of confluent_kafka.Producer that the parallel consumer uses, with transactions."""

    def __init__(self, kafka: MemoryKafka, properties: dict[str, Any]) -> None:
        self._kafka = kafka
        self._transactional = "transactional.id" in properties
        self._bytes_max = int(properties.get("message.max.bytes", 1_000_000))
        self._open: list[tuple[str, dict[str, Any]]] = []
        self._offsets: list[tuple[str, list[TopicPartition]]] = []
        self._reports: deque[tuple[Any, MemoryMessage]] = deque()

    def produce(self, topic: str, on_delivery: Any = None, **arguments: Any) -> None:
        """Refuses what librdkafka refuses: values that are no bytes, and those that are too large."""
        arguments.pop("timestamp", None)
        size = sum(len(_raw(arguments.get(part)) or b"") for part in ("key", "value"))
        if size > self._bytes_max:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if self._transactional:
            self._open.append((topic, arguments))
            return
        self._kafka.write(topic, **arguments)
        if on_delivery is not None:
            self._reports.append((on_delivery, MemoryMessage((topic, 0), 0)))

    def poll(self, timeout: float = 0) -> int:
        served = 0
        while self._reports:
            report, message = self._reports.popleft()
            report(None, message)
            served += 1
        return served

    def flush(self, timeout: float = 0) -> int:
        self.poll()
        return 0

    def init_transactions(self, timeout: float = 0) -> None:
        self._open, self._offsets = [], []

    begin_transaction = abort_transaction = init_transactions

    def send_offsets_to_transaction(
        self, partitions: list[TopicPartition], group: str, timeout: float = 0
    ) -> None:
        self._offsets.append((group, partitions))

    def commit_transaction(self, timeout: float = 0) -> None:
        with self._kafka.lock:
            for group, partitions in self._offsets:
                error = self._kafka.store(group, partitions)
                if error is not None:
                    raise KafkaException(KafkaError(error.code(), error.str(), False, False, True))
            for topic, arguments in self._open:
                self._kafka.write(topic, **arguments)


def _raw(value: bytes | str | None) -> bytes | None:
    if value is not None and not isinstance(value, bytes | str):
        raise TypeError(f"a bytes-like object is required, not {type(value).__name__!r}")
    return value.encode() if isinstance(value, str) else value
