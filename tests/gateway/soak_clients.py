"""Clients that write and read for as long as a soak lasts, one for each library.

Every record holds its partition and its sequence number there. Acknowledged records are kept with their time,
as are errors that a library reports and does not call retriable.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from kafka import KafkaProducer
from tests.gateway.test_aiokafka import login as aiokafka_login
from tests.gateway.test_kafka_python import login as kafka_python_login

if TYPE_CHECKING:
    from tests.harness.gateway import Access

PARTITIONS = 3
RECORD_BYTES = 1000
BATCH_BYTES = 16_384
IN_FLIGHT = 5  # requests of one idempotent producer on one connection
PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 180.0  # for one record: gateways start slowly on a busy machine
# librdkafka's errors for closed connections, from which it recovers by itself.
PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


def record(partition: int, place: int) -> bytes:
    return (b"%d %d " % (partition, place)).ljust(RECORD_BYTES, b".")


def position_of(value: bytes | None) -> tuple[int, int]:
    """The partition and sequence number in a record's value."""
    partition, number, _ = (value or b"").split(b" ", 2)
    return int(partition), int(number)


class Load(ABC):
    """A thread; `stop` lets it finish its current work."""

    def __init__(self, access: Access, topic: str) -> None:
        self.access = access
        self.topic = topic
        self.surfaced: list[Any] = []
        self.acknowledged: dict[tuple[int, int], float] = {}  # by partition and sequence number: when
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=type(self).__name__)
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self.work()
        except Exception as failure:  # noqa: BLE001  (whatever it is, the test reports of it)
            self.surfaced.append(failure)

    @abstractmethod
    def work(self) -> None: ...

    def acknowledge(self, partition: int, place: int) -> None:
        self.acknowledged[partition, place] = time.monotonic()

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        self._thread.join(2 * PATIENCE_SECONDS)
        if self._thread.is_alive():
            self.surfaced.append("it did not end")


class Librdkafka(Load):
    """An idempotent producer."""

    def work(self) -> None:
        producer = Producer(
            self.access.client_config(enable_idempotence=True, batch_size=BATCH_BYTES, linger_ms=5)
        )
        place = 0
        while not self.stopping.is_set():
            for partition in range(PARTITIONS):
                producer.produce(
                    self.topic, record(partition, place), partition=partition, on_delivery=self._delivered
                )
            place += 1
            producer.poll(PAUSE_SECONDS)
        if producer.flush(PATIENCE_SECONDS):
            self.surfaced.append("records that were never delivered")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledge(*position_of(message.value()))
        else:
            self.surfaced.append(error)


class EndedAlready(Exception):
    """An abort was refused, as the coordinator knows no open transaction: the commit before it succeeded and
    its response was lost, or the connection closed before the coordinator received the transaction
    (librdkafka 4849). That is fatal for the producer, so a new one is created.
    """


class Transactions(Load):
    """Transactions of a few records, of which every fourth is aborted; `aborted` must never be read."""

    def __init__(self, access: Access, topic: str) -> None:
        self.aborted: set[tuple[int, int]] = set()
        self.unsure: set[tuple[int, int]] = set()  # the response to a commit was lost with a gateway
        super().__init__(access, topic)

    def work(self) -> None:
        producer = self._producer()
        place = 0
        while not self.stopping.is_set():
            try:
                self._one(producer, place)
            except EndedAlready:
                producer = self._producer()
            place += 1
            time.sleep(PAUSE_SECONDS)

    def _producer(self) -> Producer:
        made = Producer(self.access.client_config(transactional_id=self.topic, batch_size=BATCH_BYTES))
        self._insist(made.init_transactions)
        return made

    def _one(self, producer: Producer, place: int) -> None:
        rows = [(partition, place) for partition in range(PARTITIONS)]
        committing = False
        try:
            producer.begin_transaction()
            for partition, _ in rows:
                producer.produce(self.topic, record(partition, place), partition=partition)
            if place % 4 == 3:
                self.aborted.update(rows)
                self._abort(producer)
                return
            committing = True
            self._insist(producer.commit_transaction)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            (self.unsure if committing else self.aborted).update(rows)
            self._abort(producer)
            return
        for row in rows:
            self.acknowledge(*row)

    def _abort(self, producer: Producer) -> None:
        try:
            self._insist(producer.abort_transaction)
        except KafkaException as failure:
            if failure.args[0].code() == KafkaError.INVALID_TXN_STATE:
                raise EndedAlready from failure
            raise

    def _insist(self, call: Any) -> None:
        """Call again for as long as the library reports a retriable error."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                call(10.0)
                return
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise


class KafkaPython(Load):
    def work(self) -> None:
        producer = KafkaProducer(
            **kafka_python_login(self.access),
            enable_idempotence=True,
            batch_size=BATCH_BYTES,
            delivery_timeout_ms=int(PATIENCE_SECONDS * 1000),
        )
        place = 0
        while not self.stopping.is_set():
            for partition in range(PARTITIONS):
                row = (partition, place)
                sent = producer.send(self.topic, record(*row), partition=partition)
                sent.add_callback(lambda _, row=row: self.acknowledge(*row))
                sent.add_errback(self.surfaced.append)
            place += 1
            time.sleep(PAUSE_SECONDS)
        producer.flush(PATIENCE_SECONDS)
        producer.close(PATIENCE_SECONDS)


class Aiokafka(Load):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        producer = AIOKafkaProducer(
            **aiokafka_login(self.access),
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=int(PATIENCE_SECONDS * 1000),
        )
        await producer.start()
        place = 0
        try:
            while not self.stopping.is_set():
                rows = [(partition, place) for partition in range(PARTITIONS)]
                sent = [await producer.send(self.topic, record(*row), partition=row[0]) for row in rows]
                for row, waiting in zip(rows, sent, strict=True):
                    await waiting
                    self.acknowledge(*row)
                place += 1
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await producer.stop()


class Reader(Load):
    """A group member that reads all topics; its records are in `read`."""

    def __init__(self, access: Access, topics: list[str], group: str) -> None:
        self.topics = topics
        self.read: dict[str, set[tuple[int, int]]] = {topic: set() for topic in topics}
        self._group = group
        super().__init__(access, ",".join(topics))

    def work(self) -> None:
        consumer = Consumer(self.access.client_config(group_id=self._group, auto_offset_reset="earliest"))
        consumer.subscribe(self.topics)
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self.read[message.topic() or ""].add(position_of(message.value()))
                elif not error.retriable() and error.code() not in PASSING:
                    self.surfaced.append(error)
        consumer.close()
