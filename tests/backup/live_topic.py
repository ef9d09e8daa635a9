"""A live topic that loses its prefix: producers that keep writing, and what must be there afterwards."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.fleet import Fleet

PAUSE_SECONDS = 0.002
TRANSACTION_RECORDS = 20
FLUSH_SECONDS = 120.0
READ_SECONDS_MAX = 120.0

Place = tuple[int, int]  # partition and offset


@dataclass
class Writer:
    """One idempotent producer with acks=all, and what was acknowledged to it."""

    topic: str
    name: str
    config: dict[str, Any]
    transactional: bool = False  # commits every few records
    acknowledged: dict[Place, bytes] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    gap_seconds: float = 0.0  # the longest time without an acknowledgement
    _stop: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        config = {**self.config, "enable.idempotence": True, "linger.ms": 2, "acks": "all"}
        producer = Producer(config | ({"transactional.id": self.name} if self.transactional else {}))
        if self.transactional:
            producer.init_transactions(FLUSH_SECONDS)
        last, number = time.monotonic(), 0

        def delivered(error: Any, message: Any) -> None:
            nonlocal last
            now = time.monotonic()
            self.gap_seconds, last = max(self.gap_seconds, now - last), now
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acknowledged[_place_of(message)] = message.value()

        while not self._stop.is_set():
            if self.transactional:
                producer.begin_transaction()
            for _ in range(TRANSACTION_RECORDS if self.transactional else 1):
                value = b"%s %d" % (self.name.encode(), number)
                producer.produce(self.topic, value=value, on_delivery=delivered)
                producer.poll(0)
                number += 1
            if self.transactional:
                producer.commit_transaction(FLUSH_SECONDS)
            self._stop.wait(PAUSE_SECONDS * (TRANSACTION_RECORDS if self.transactional else 1))
        assert producer.flush(FLUSH_SECONDS) == 0

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def writing(*writers: Writer) -> Iterator[None]:
    threads = [threading.Thread(target=one.write) for one in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for one in writers:
            one.stop()
        for thread in threads:
            thread.join()


def records_of(fleet: Fleet, topic: str, partitions: int) -> dict[Place, bytes]:
    """Every record to the present ends, as read_uncommitted."""
    config = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer(
        fleet.client_config(**config, **{"isolation.level": "read_uncommitted", "auto.offset.reset": "error"})
    )
    places = [TopicPartition(topic, index) for index in range(partitions)]
    for one in places:
        one.offset = consumer.get_watermark_offsets(one, timeout=30)[0]
    consumer.assign(places)
    records: dict[Place, bytes] = {}
    complete: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while len(complete) < partitions:
        assert time.monotonic() < deadline, f"{len(records)} records, {complete} complete"
        for message in consumer.consume(1000, 1):
            if (error := message.error()) is not None and error.code() == KafkaError._PARTITION_EOF:
                complete.add(_place_of(message)[0])
                continue
            assert error is None, error
            records[_place_of(message)] = message.value() or b""
    consumer.close()
    return records


def _place_of(message: Message) -> Place:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def check_writers(records: dict[Place, bytes], writers: list[Writer]) -> None:
    """Nothing acknowledged is lost or at another offset, and nothing is there twice."""
    values = list(records.values())
    assert len(set(values)) == len(values), "records are duplicated"
    for one in writers:
        assert one.errors == []
        assert one.acknowledged, f"nothing was acknowledged to {one.name}"
        lost = {place for place, value in one.acknowledged.items() if records.get(place) != value}
        assert not lost, f"{len(lost)} records of {one.name}"
