"""Kafka in memory, for tests of handlers: topics, groups, rebalances, holes, faults. No broker, no Java.

    kafka = MemoryKafka()
    kafka.create("orders", partitions=2)
    kafka.write("orders", b"42", key=b"alice")
    consumer = ParallelConsumer(kafka.properties("billing"), topics=["orders"], **kafka.clients)

    async with consumer:
        await kafka.until_committed("billing", "orders")

`revoke`, `lose` and `give` move partitions as a rebalance would; `hole` leaves offsets without
records, as compaction and transaction markers do; `refuse_commits` and `break_client` are what
brokers do on bad days. It is a stand-in for a client, not for a broker: no time-outs, no fencing.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Place = tuple[str, int]


class MemoryMessage:
    """A record, or an error, as confluent_kafka.Message would show it."""

    def __init__(
        self, place: Place, offset: int, value: bytes | None = None, key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None, error: KafkaError | None = None,
    ) -> None:  # fmt: skip
        self._place, self._offset, self._value, self._key = place, offset, value, key
        self._headers, self._error, self._time = headers, error, int(time.time() * 1000)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

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
    """A partition: records by offset, and where the next one goes."""

    records: list[MemoryMessage] = field(default_factory=list)
    end: int = 0


class MemoryKafka:
    """A cluster in this process. Safe to use from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.logs: dict[Place, Log] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}  # by group, topic, partition
        self.members: list[MemoryClient] = []
        self.commits: list[
            tuple[str, str, int, int, str]
        ] = []  # in order: group, topic, partition, offset, map
        self._refusals: deque[int] = deque()

    # What tests do

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
            kept = [(name, _raw(each)) for name, each in headers or ()] or None
            log.records.append(MemoryMessage((topic, number), log.end, raw_value, raw_key, kept))
            log.end += 1
            return log.end - 1

    def hole(self, topic: str, partition: int = 0, offsets: int = 1) -> None:
        """Leaves offsets without a record: compacted away, aborted, or a transaction's marker."""
        with self.lock:
            self.logs[topic, partition].end += offsets

    def values(self, topic: str) -> list[bytes | None]:
        with self.lock:
            return [
                each.value() for place, log in self.logs.items() if place[0] == topic for each in log.records
            ]

    def messages(self, topic: str) -> list[MemoryMessage]:
        with self.lock:
            return [each for place, log in self.logs.items() if place[0] == topic for each in log.records]

    def committed(self, group: str, topic: str, partition: int = 0) -> tuple[int, str] | None:
        with self.lock:
            return self.offsets.get((group, topic, partition))

    def revoke(self, topic: str, partition: int) -> None:
        self._move("revoke", (topic, partition))

    def lose(self, topic: str, partition: int) -> None:
        self._move("lose", (topic, partition))

    def give(self, topic: str, partition: int, member: int = 0) -> None:
        with self.lock:
            self.members[member].moves.append(("give", (topic, partition)))

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
                self.offsets.get((group, *place), (0, ""))[0] >= log.end
                for place, log in self.logs.items()
                if place[0] == topic
            )

    # What clients do

    def join(self, member: MemoryClient) -> None:
        with self.lock:
            self.members.append(member)
            held = {place for each in self.members for place in each.positions}
            for place in self.logs:
                if place[0] in member.topics and place not in held:
                    member.moves.append(("give", place))

    def leave(self, member: MemoryClient) -> None:
        with self.lock:
            if member in self.members:
                self.members.remove(member)

    def store(self, group: str, parts: Iterable[TopicPartition]) -> KafkaError | None:
        with self.lock:
            if self._refusals:
                return KafkaError(self._refusals.popleft())
            for part in parts:
                self.offsets[group, part.topic, part.partition] = (part.offset, part.metadata or "")
                self.commits.append((group, part.topic, part.partition, part.offset, part.metadata or ""))
            return None

    def _move(self, how: str, place: Place) -> None:
        with self.lock:
            for member in self.members:
                if place in member.positions:
                    member.moves.append((how, place))
                    return
        raise LookupError(f"no member holds {place[0]}[{place[1]}]")


class MemoryClient:
    """What the consumer uses of confluent_kafka.Consumer."""

    def __init__(self, kafka: MemoryKafka, properties: dict[str, Any]) -> None:
        self._kafka = kafka
        self._group = properties["group.id"]
        self._on_commit = properties.get("on_commit")
        self._batch_max = int(properties.get("test.batch.records", 100_000))
        self.topics: list[str] = []
        self.moves: deque[tuple[str, Place]] = deque()
        self.errors: deque[KafkaError] = deque()
        self.positions: dict[Place, int] = {}
        self.paused: set[Place] = set()
        self._callbacks: dict[str, Any] = {}
        self._outcomes: deque[tuple[KafkaError | None, list[TopicPartition]]] = deque()
        self._told_end: dict[Place, int] = {}
        self._turn = itertools.count()

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.topics = topics
        self._callbacks = {"give": on_assign, "revoke": on_revoke, "lose": on_lost}
        self._kafka.join(self)

    def poll(self, timeout: float = 0) -> MemoryMessage | None:
        deadline = time.monotonic() + timeout
        while True:
            self._serve()
            found = self._next(1)
            if found or time.monotonic() >= deadline:
                return found[0] if found else None
            time.sleep(0.001)

    def consume(self, num_messages: int = 1, timeout: float = 0) -> list[MemoryMessage]:
        self._serve()
        return self._next(min(num_messages, self._batch_max))

    def committed(self, parts: list[TopicPartition], timeout: float = 0) -> list[TopicPartition]:
        found = []
        for part in parts:
            stored = self._kafka.committed(self._group, part.topic, part.partition)
            offset, metadata = stored or (OFFSET_INVALID, "")
            found.append(TopicPartition(part.topic, part.partition, offset, metadata=metadata))
        return found

    def commit(self, offsets: list[TopicPartition], asynchronous: bool = True) -> list[TopicPartition] | None:
        error = self._kafka.store(self._group, offsets)
        if asynchronous:
            self._outcomes.append((error, offsets))
            return None
        if error is not None:
            raise KafkaException(error)
        return offsets

    def incremental_assign(self, parts: list[TopicPartition]) -> None:
        with self._kafka.lock:
            for part in parts:
                self.positions[part.topic, part.partition] = max(part.offset, 0)
                self._told_end.pop((part.topic, part.partition), None)

    assign = incremental_assign

    def pause(self, parts: list[TopicPartition]) -> None:
        self.paused |= {(part.topic, part.partition) for part in parts}

    def resume(self, parts: list[TopicPartition]) -> None:
        self.paused -= {(part.topic, part.partition) for part in parts}

    def consumer_group_metadata(self) -> str:
        return str(self._group)

    def close(self) -> None:
        with self._kafka.lock:
            held = list(self.positions)
        if held and self._callbacks:
            self._callbacks["revoke"](self, [TopicPartition(*place) for place in held])
        self.positions.clear()
        self._kafka.leave(self)

    def _serve(self) -> None:
        while self._outcomes:
            error, parts = self._outcomes.popleft()
            if self._on_commit is not None:
                self._on_commit(error, parts)
        while self.moves:
            how, place = self.moves.popleft()
            self._callbacks[how](self, [TopicPartition(*place)])
            if how != "give":
                self.positions.pop(place, None)
                self.paused.discard(place)

    def _next(self, count: int) -> list[MemoryMessage]:
        with self._kafka.lock:
            if self.errors:
                return [MemoryMessage(("", -1), -1, error=self.errors.popleft())]
            found: list[MemoryMessage] = []
            places = [place for place in self.positions if place not in self.paused]
            start = next(self._turn)
            for index in range(len(places)):
                place = places[(start + index) % len(places)]
                found += self._read(place, count - len(found))
                if len(found) >= count:
                    break
            return found

    def _read(self, place: Place, count: int) -> list[MemoryMessage]:
        log = self._kafka.logs[place]
        position = self.positions[place]
        low, high = 0, len(log.records)
        while low < high:
            middle = (low + high) // 2
            if log.records[middle].offset() < position:
                low = middle + 1
            else:
                high = middle
        found = log.records[low : low + count]
        if found:
            self.positions[place] = found[-1].offset() + 1
        elif count and self._told_end.get(place) != log.end:
            self._told_end[place] = log.end
            self.positions[place] = log.end
            return [MemoryMessage(place, log.end, error=KafkaError(KafkaError._PARTITION_EOF))]
        return found


class MemoryProducer:
    """What the consumer uses of confluent_kafka.Producer, transactions included."""

    def __init__(self, kafka: MemoryKafka, properties: dict[str, Any]) -> None:
        self._kafka = kafka
        self._transactional = "transactional.id" in properties
        self._open: list[tuple[str, dict[str, Any]]] = []
        self._offsets: list[tuple[str, list[TopicPartition]]] = []
        self._reports: deque[tuple[Any, MemoryMessage]] = deque()

    def produce(self, topic: str, on_delivery: Any = None, **facts: Any) -> None:
        facts.pop("timestamp", None)
        if self._transactional:
            self._open.append((topic, facts))
            return
        self._kafka.write(topic, **facts)
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

    def begin_transaction(self) -> None:
        self._open, self._offsets = [], []

    def send_offsets_to_transaction(
        self, parts: list[TopicPartition], group: str, timeout: float = 0
    ) -> None:
        self._offsets.append((group, parts))

    def commit_transaction(self, timeout: float = 0) -> None:
        with self._kafka.lock:
            for group, parts in self._offsets:
                error = self._kafka.store(group, parts)
                if error is not None:
                    raise KafkaException(KafkaError(error.code(), error.str(), False, False, True))
            for topic, facts in self._open:
                self._kafka.write(topic, **facts)

    def abort_transaction(self, timeout: float = 0) -> None:
        self._open, self._offsets = [], []


def _raw(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
