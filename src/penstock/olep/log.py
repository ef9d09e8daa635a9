"""The log: a topic of any Kafka, appended to and read from any position.

Many logical logs share a partition; the key says which is which. Reads are read-committed.
Positions come from the consumer and not from the offsets of records, since transaction markers
and compaction leave gaps: a reader that counts records never reaches the end of such a log.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
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

from penstock.model import faults
from penstock.model.errors.olep import AppendUnknown, HistoryMissing, LogMissing, LogUnavailable
from penstock.olep.codec import Codec, JsonCodec
from penstock.olep.event import Event, Record
from penstock.olep.placing import partition_of
from penstock.olep.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message

_admin: Any = confluent_kafka.admin  # its types do not export all that it offers

CALL_SECONDS: Final = 30.0  # an administrative call
READ_CHUNK: Final = 1000  # records taken from the client at a time

APPEND_BEFORE = faults.declare("olep.append.before", "a caller has built its request, nothing is sent")
APPEND_AFTER = faults.declare("olep.append.after", "a request is acknowledged, its caller does not know yet")

# What the client logs goes to Python's logging, where an application can have it or not.
_logger = logging.getLogger("penstock.olep.kafka")
_logger.addHandler(logging.NullHandler())
QUIET: Final[Mapping[str, Any]] = {"logger": _logger}

READER: Final[Mapping[str, Any]] = {
    **QUIET,
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.error.backoff.ms": 50,
}
APPENDER: Final[Mapping[str, Any]] = {
    **QUIET,
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2",
    "linger.ms": 1,
}


@dataclass(frozen=True, slots=True)
class Log:
    """A topic as it is now. `name` is what applications call it."""

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
        return self.codec.decode(
            record.value or b"", (record.key or b"").decode("utf-8", "replace"), partition, record.offset
        )


def open_log(
    config: Mapping[str, Any], topic: str, *, name: str | None = None, codec: Codec | None = None
) -> Log:
    """Looks the topic up. Raises LogMissing, LogUnavailable."""
    admin = AdminClient({**config, **QUIET})
    try:
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=CALL_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise LogMissing(topic=topic) from error
        raise LogUnavailable(topic=topic, reason=error.args[0].str()) from error
    topic_id = str(found.topic_id).replace("+", "-").replace("/", "_").rstrip("=")
    return Log(
        name or topic, topic, topic_id, len(found.partitions), dict(config), admin, codec or JsonCodec()
    )


def create_log(
    config: Mapping[str, Any], topic: str, partitions: int, *, replicas: int = -1, **settings: str
) -> None:
    """Creates the topic, with retention off: the log is the truth. One that exists is left alone."""
    admin = AdminClient({**config, **QUIET})
    settings = {"retention.ms": "-1", "retention.bytes": "-1", **settings}
    wanted = _admin.NewTopic(topic, partitions, replicas, config=settings)
    try:
        admin.create_topics([wanted], request_timeout=CALL_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise LogUnavailable(topic=topic, reason=error.args[0].str()) from error
        return
    _wait_until_known(config, topic)


def _wait_until_known(config: Mapping[str, Any], topic: str) -> None:
    """A broker may answer for a moment as if a topic just created were missing."""
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            ends(open_log(config, topic))
        except (LogMissing, LogUnavailable):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def ends(log: Log) -> Position:
    """The tail: what a reader that has reached it has seen all of. Stops at open transactions."""
    return _bounds(log, _admin.OffsetSpec.latest())


def starts(log: Log) -> Position:
    """The first offset that retention has left."""
    return _bounds(log, _admin.OffsetSpec.earliest())


def at_time(log: Log, milliseconds: int) -> Position:
    """The first offset of each partition whose record is not older; its end if there is none."""
    tail = ends(log).offsets[log.topic_id]
    found = _bounds(log, _admin.OffsetSpec.for_timestamp(milliseconds)).offsets[log.topic_id]
    return Position({log.topic_id: {p: offset if offset >= 0 else tail[p] for p, offset in found.items()}})


def _bounds(log: Log, spec: Any) -> Position:
    asked = {TopicPartition(log.topic, p): spec for p in range(log.partitions)}
    isolation = IsolationLevel.READ_COMMITTED
    try:
        answers = log.admin.list_offsets(asked, isolation_level=isolation, request_timeout=CALL_SECONDS)
        offsets = {each.partition: future.result().offset for each, future in answers.items()}
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
    """The records from `start` to `until`, or to the tail of now: (partition, record), in log order
    within each partition. Raises LogUnavailable if nothing comes for `idle_seconds`."""
    until = until or ends(log)
    stop = dict(until.of_topic(log.topic, log.topic_id))
    begin = dict((start or starts(log)).of_topic(log.topic, log.topic_id))
    left = {partition for partition, end in stop.items() if begin.get(partition, 0) < end}
    consumer = Consumer({"group.id": f"penstock-olep-reader-{log.topic}", **log.config, **READER})
    try:
        consumer.assign([TopicPartition(log.topic, p, begin.get(p, 0)) for p in sorted(left)])
        deadline = time.monotonic() + idle_seconds
        while left:
            messages = consumer.consume(READ_CHUNK, 0) or consumer.consume(1, 0.1)
            if messages:
                deadline = time.monotonic() + idle_seconds
            elif time.monotonic() > deadline:
                raise LogUnavailable(topic=log.topic, reason=f"nothing was read for {idle_seconds:g} s")
            for message in messages:
                yield from _taken(log, message, stop, left)
    finally:
        consumer.close()


def _taken(
    log: Log, message: Message, stop: Mapping[int, int], left: set[int]
) -> Iterator[tuple[int, Record]]:
    partition, offset = place_of(message)
    if (error := message.error()) is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise log_error(log.topic, partition, error)
        # The end of the partition, past markers and aborted records that no reader is shown.
        if offset >= stop.get(partition, 0):
            left.discard(partition)
        return
    if partition not in left:
        return
    if offset < stop[partition]:
        yield partition, Record(offset, message.key(), message.value())
    if offset + 1 >= stop[partition]:
        left.discard(partition)


def place_of(message: Message) -> tuple[int, int]:
    """Partition and offset, which every message has that a broker has seen."""
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
    """Appends events to a log; each append answers with the position right after it."""

    def __init__(self, log: Log, **settings: Any) -> None:
        self.log = log
        self._producer = Producer({**log.config, **APPENDER, **settings})

    def begin(self, key: str, event: Event, *, partition: int | None = None) -> Future[Position]:
        """Hands the event to the client; the future is resolved by `poll`, `append` or `flush`.

        The key says which partition, except for an event about a partition itself."""
        future: Future[Position] = Future()
        partition = self.log.partition_of(key) if partition is None else partition

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                reason = error.str()
                future.set_exception(AppendUnknown(id=event.id, topic=self.log.topic, reason=reason))
            else:
                at, offset = place_of(message)
                faults.reach(APPEND_AFTER)
                future.set_result(Position.at(self.log.topic_id, at, offset + 1))

        value = self.log.codec.encode(event)
        faults.reach(APPEND_BEFORE)
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
        """Appends and waits. Raises AppendUnknown: try again with the same id."""
        future = self.begin(key, event, partition=partition)
        deadline = time.monotonic() + timeout
        while not future.done():
            if (left := deadline - time.monotonic()) <= 0:
                raise AppendUnknown(id=event.id, topic=self.log.topic, reason=f"no answer in {timeout:g} s")
            self._producer.poll(min(left, 0.1))
        return future.result()

    def poll(self, timeout: float = 0.0) -> None:
        self._producer.poll(timeout)

    def waiting(self) -> int:
        return len(self._producer)

    def flush(self, timeout: float = CALL_SECONDS) -> int:
        """Waits for everything handed over; returns how many have no answer yet."""
        return int(self._producer.flush(timeout))
