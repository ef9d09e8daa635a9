"""The log: a topic of any Kafka, appended to and read from any position.

Many logical logs share a partition; the key identifies each. Reads are read-committed. Positions come
from the consumer, not from the offsets of records: transaction markers and compaction leave gaps, so a
reader that counts records never reaches the end of such a log.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka.admin
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from penstock.model import fault_points
from penstock.model.errors.olep import AppendUnknown, HistoryMissing, LogMissing, LogUnavailable
from penstock.olep.codec import Codec, JsonCodec
from penstock.olep.event import Event, Record
from penstock.olep.partitioner import partition_of
from penstock.olep.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from confluent_kafka import Message

_admin: Any = confluent_kafka.admin  # its type stubs do not export everything

CALL_SECONDS: Final = 30.0  # an administrative call
FETCH_BYTES: Final = 100_000  # a broker responds to a fetch at once when it has this much
READ_CHUNK: Final = 1000  # records taken from the client at a time

APPEND_BEFORE = fault_points.declare("olep.append.before", "a request is encoded and not sent")
APPEND_AFTER = fault_points.declare("olep.append.after", "a request is acknowledged, its caller not notified")

# The client's log goes to Python's logging, where an application can enable it.
_logger = logging.getLogger("penstock.olep.kafka")
_logger.addHandler(logging.NullHandler())
LOGGING_CONFIG: Final[Mapping[str, Any]] = {"logger": _logger}

CONSUMER_CONFIG: Final[Mapping[str, Any]] = {
    **LOGGING_CONFIG,
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.error.backoff.ms": 50,
}
PRODUCER_CONFIG: Final[Mapping[str, Any]] = {
    **LOGGING_CONFIG,
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2",
    "linger.ms": 1,
}


@dataclass(frozen=True, slots=True)
class Log:
    """A topic and how to reach it. Applications refer to it by `name`."""

    name: str
    topic: str
    topic_id: str
    partitions: int
    config: Mapping[str, Any] = field(repr=False)
    admin: AdminClient = field(repr=False, compare=False)
    codec: Codec = field(default_factory=JsonCodec, repr=False, compare=False)

    def partition_of(self, key: str) -> int:
        return partition_of(key.encode(), self.partitions)

    def decode(self, partition: int, record: Record) -> Event:
        key = (record.key or b"").decode("utf-8", "replace")
        return self.codec.decode(record.value or b"", key, partition, record.offset)


def open_log(
    config: Mapping[str, Any], topic: str, *, name: str | None = None, codec: Codec | None = None
) -> Log:
    """Looks up the topic. Raises LogMissing, LogUnavailable."""
    admin = AdminClient({**config, **LOGGING_CONFIG})
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=CALL_SECONDS)
        description = described[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise LogMissing(topic=topic) from error
        raise LogUnavailable(topic=topic, reason=error.args[0].str()) from error
    topic_id = str(description.topic_id).replace("+", "-").replace("/", "_").rstrip("=")
    partitions = len(description.partitions)
    return Log(name or topic, topic, topic_id, partitions, dict(config), admin, codec or JsonCodec())


def create_log(
    config: Mapping[str, Any], topic: str, partitions: int, *, replicas: int = -1, **settings: str
) -> None:
    """Creates the topic with retention off, since state is derived from the log. Keeps an existing topic."""
    admin = AdminClient({**config, **LOGGING_CONFIG})
    settings = {"retention.ms": "-1", "retention.bytes": "-1", **settings}
    new_topic = _admin.NewTopic(topic, partitions, replicas, config=settings)
    try:
        admin.create_topics([new_topic], request_timeout=CALL_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise LogUnavailable(topic=topic, reason=error.args[0].str()) from error
        return
    _wait_until_known(config, topic)


def _wait_until_known(config: Mapping[str, Any], topic: str) -> None:
    """Waits until brokers know a new topic: for a moment, some report it as missing."""
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            end_position(open_log(config, topic))
        except (LogMissing, LogUnavailable):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def end_position(log: Log) -> Position:
    """The last stable offsets: the end of the log, or the first open transaction."""
    return _bounds(log, _admin.OffsetSpec.latest())


def start_position(log: Log) -> Position:
    """The first offsets that retention has left."""
    return _bounds(log, _admin.OffsetSpec.earliest())


def position_at_time(log: Log, milliseconds: int) -> Position:
    """The first offset of each partition whose record is not older; its end if there is none."""
    tail = end_position(log).offsets[log.topic_id]
    offsets = _bounds(log, _admin.OffsetSpec.for_timestamp(milliseconds)).offsets[log.topic_id]
    return Position({log.topic_id: {p: offset if offset >= 0 else tail[p] for p, offset in offsets.items()}})


def _bounds(log: Log, spec: Any) -> Position:
    requested = {TopicPartition(log.topic, p): spec for p in range(log.partitions)}
    isolation = IsolationLevel.READ_COMMITTED
    try:
        futures = log.admin.list_offsets(requested, isolation_level=isolation, request_timeout=CALL_SECONDS)
        offsets = {each.partition: future.result().offset for each, future in futures.items()}
    except KafkaException as error:
        raise LogUnavailable(topic=log.topic, reason=error.args[0].str()) from error
    return Position({log.topic_id: offsets})


def read(
    log: Log,
    *,
    start: Position | None = None,
    until: Position | None = None,
    idle_seconds: float = CALL_SECONDS,
) -> Iterator[tuple[int, Record]]:
    """(partition, record) from `start` to `until`, by default the whole log; in log order within each
    partition. Raises LogUnavailable if nothing arrives for `idle_seconds`."""
    until = until or end_position(log)
    end_offsets = dict(until.of_topic(log.topic, log.topic_id))
    begin_offsets = dict((start or start_position(log)).of_topic(log.topic, log.topic_id))
    left = {partition for partition, end in end_offsets.items() if begin_offsets.get(partition, 0) < end}
    consumer = Consumer({"group.id": f"penstock-olep-reader-{log.topic}", **log.config, **CONSUMER_CONFIG})
    try:
        consumer.assign([TopicPartition(log.topic, p, begin_offsets.get(p, 0)) for p in sorted(left)])
        deadline = time.monotonic() + idle_seconds
        while left:
            messages = consumer.consume(READ_CHUNK, 0) or consumer.consume(1, 0.1)
            if messages:
                deadline = time.monotonic() + idle_seconds
            elif time.monotonic() > deadline:
                raise LogUnavailable(topic=log.topic, reason=f"nothing was read for {idle_seconds:g} s")
            for message in messages:
                yield from _within(log, message, end_offsets, left)
    finally:
        consumer.close()


def _within(
    log: Log, message: Message, end_offsets: Mapping[int, int], left: set[int]
) -> Iterator[tuple[int, Record]]:
    partition, offset = partition_and_offset(message)
    if (error := message.error()) is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise log_error(log.topic, partition, error)
        # The end of the partition, after markers and aborted records, which the client skips.
        if offset >= end_offsets.get(partition, 0):
            left.discard(partition)
        return
    if partition not in left:
        return
    if offset < end_offsets[partition]:
        yield partition, Record(offset, message.key(), message.value())
    if offset + 1 >= end_offsets[partition]:
        left.discard(partition)


def append_time(log: Log, partition: int, offset: int) -> int:
    """When the record was appended, in milliseconds. Raises LogUnavailable."""
    consumer = Consumer({"group.id": f"penstock-olep-reader-{log.topic}", **log.config, **CONSUMER_CONFIG})
    try:
        consumer.assign([TopicPartition(log.topic, partition, offset)])
        deadline = time.monotonic() + CALL_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                raise log_error(log.topic, partition, error, offset)
            return int(message.timestamp()[1])
        raise LogUnavailable(topic=log.topic, reason=f"nothing was read for {CALL_SECONDS:g} s")
    finally:
        consumer.close()


def following(log: Log, group: str, gather_seconds: float, **more: Any) -> Consumer:
    """A consumer that follows the log; records gather at the broker for up to `gather_seconds`."""
    gather_ms = int(gather_seconds * 1000)
    return Consumer(
        {
            "group.id": group,
            "queued.min.messages": 20_000,
            "fetch.min.bytes": FETCH_BYTES if gather_ms else 1,
            "fetch.wait.max.ms": gather_ms or 500,
            **log.config,
            **more,
            **CONSUMER_CONFIG,
        }
    )


def take_available(consumer: Consumer, limit: int, *, idle: float, linger: float) -> list[Message]:
    """The messages at hand. If there are none, waits `idle` seconds for one, then `linger` for more."""
    messages = consumer.consume(limit, 0)
    if not messages:
        messages = consumer.consume(1, idle)
        if messages and limit > 1 and linger:
            messages += consumer.consume(limit - 1, linger)
    return messages


def by_partition(
    topic: str, messages: Sequence[Message], position_of: Callable[[int], int]
) -> tuple[dict[int, list[Record]], dict[int, int]]:
    """The records of each partition in order of offset, and the ends of partitions that were reached.

    After a change of leader or a seek, librdkafka may return offsets again. Records below the position are
    dropped, and a record that comes again replaces those from its offset on.
    Raises LogMissing, LogUnavailable, HistoryMissing; retriable errors are ignored."""
    records: dict[int, list[Record]] = {}
    ends: dict[int, int] = {}
    fetched: list[Record] = []
    last = -1  # the partition of `fetched`
    for message in messages:
        error = message.error()
        partition: int = message.partition()  # type: ignore[assignment]  # None only in errors of the client
        if error is None:
            offset: int = message.offset()  # type: ignore[assignment]  # likewise
            if partition != last:
                fetched, last = records.setdefault(partition, []), partition
            if not fetched or offset <= fetched[-1].offset:  # the first one, or a step back
                if offset < position_of(partition):
                    continue
                del fetched[bisect_left(fetched, offset, key=attrgetter("offset")) :]
            fetched.append(Record(offset, message.key(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            ends[partition] = partition_and_offset(message)[1]
        elif error.code() != KafkaError._MAX_POLL_EXCEEDED and not error.retriable():
            raise log_error(topic, partition, error, position_of(partition))
    return {partition: fetched for partition, fetched in records.items() if fetched}, ends


def partition_and_offset(message: Message) -> tuple[int, int]:
    """Both are set for every message that came from a broker."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def log_error(topic: str, partition: int, error: KafkaError, position: int = 0) -> Exception:
    if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
        return HistoryMissing(topic=topic, partition=partition, start="a later offset", position=position)
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return LogMissing(topic=topic)
    return LogUnavailable(topic=topic, reason=error.str())


class Appender:
    """Appends events to a log. Each append returns the position right after it."""

    def __init__(self, log: Log, **settings: Any) -> None:
        self.log = log
        self._producer = Producer({**log.config, **PRODUCER_CONFIG, **settings})

    def submit(self, key: str, event: Event, *, partition: int | None = None) -> Future[Position]:
        """Queues the event in the client; `poll`, `append` or `flush` resolves the future.

        The key chooses the partition, unless `partition` is given."""
        future: Future[Position] = Future()
        partition = self.log.partition_of(key) if partition is None else partition

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                reason = error.str()
                future.set_exception(AppendUnknown(id=event.id, topic=self.log.topic, reason=reason))
            else:
                at, offset = partition_and_offset(message)
                fault_points.reach(APPEND_AFTER)
                future.set_result(Position.at(self.log.topic_id, at, offset + 1))

        value = self.log.codec.encode(event)
        fault_points.reach(APPEND_BEFORE)
        try:
            self._producer.produce(self.log.topic, value, key.encode(), partition, delivered)
        except BufferError:
            self._producer.poll(1.0)
            self._producer.produce(self.log.topic, value, key.encode(), partition, delivered)
        except KafkaException as error:
            raise LogUnavailable(topic=self.log.topic, reason=error.args[0].str()) from error
        return future

    def append(
        self, key: str, event: Event, *, partition: int | None = None, timeout: float = CALL_SECONDS
    ) -> Position:
        """Appends and waits. Raises AppendUnknown; retry with the same id."""
        future = self.submit(key, event, partition=partition)
        deadline = time.monotonic() + timeout
        while not future.done():
            if (left := deadline - time.monotonic()) <= 0:
                reason = f"no response within {timeout:g} s"
                raise AppendUnknown(id=event.id, topic=self.log.topic, reason=reason)
            self._producer.poll(min(left, 0.1))
        return future.result()

    def poll(self, timeout: float = 0.0) -> None:
        self._producer.poll(timeout)

    def flush(self, timeout: float = CALL_SECONDS) -> int:
        """Waits for all queued events; returns the number not acknowledged in time."""
        return int(self._producer.flush(timeout))
