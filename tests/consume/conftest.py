"""A real Kafka cluster: its topics, its records, and what a group committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness import propagation
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.harness.fleet import Fleet


COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS
)  # fmt: skip


class KafkaCluster:
    """A fleet, used through confluent_kafka as an application does."""

    def __init__(self, fleet: Fleet, unique: Callable[[str], str]) -> None:
        self.fleet, self.unique = fleet, unique
        self._admin = AdminClient(fleet.client_config())
        self._readers: dict[str, Any] = {}

    def properties(self, group: str, **more: Any) -> dict[str, Any]:
        classic = {} if more.get("group.protocol") == "consumer" else {"session.timeout.ms": 10_000}
        return self.fleet.client_config() | {"group.id": group} | classic | more

    def topic(self, partitions: int = 3, **config: str) -> str:
        name = self.unique("orders")
        properties = {key.replace("_", "."): value for key, value in config.items()}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=properties)])[name].result(30)
        propagation.run_in_thread(propagation.wait_for_topics(self.fleet, name))
        return name

    def write(
        self,
        topic: str,
        values: Iterable[tuple[str | None, str]],
        *,
        partition: int | None = None,
        **config: Any,
    ) -> None:
        """Appends (key, value) pairs and waits until they are durable."""
        producer = Producer(self.fleet.client_config() | {"linger.ms": 5} | config)
        for key, value in values:
            producer.produce(topic, value, key=key, partition=-1 if partition is None else partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, TopicPartition]:
        requested = [TopicPartition(topic, number) for number in range(partitions)]
        stored: list[TopicPartition] = []

        def read() -> bool:
            try:
                stored[:] = self._reader(group).committed(requested, timeout=30)
            except KafkaException as error:  # the group's coordinator is being elected, or has moved
                if error.args[0].code() not in COORDINATOR_MOVES:
                    raise
            return bool(stored)

        wait_for(read, what=f"the offsets of {group}", seconds=60)
        return {each.partition: each for each in stored}

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        client = self._reader("ends")
        requested = [TopicPartition(topic, number) for number in range(partitions)]
        return {each.partition: client.get_watermark_offsets(each, timeout=30)[1] for each in requested}

    def _reader(self, group: str) -> Any:
        """A client that reads a group's offsets and never joins the group."""
        if group not in self._readers:
            self._readers[group] = Consumer(self.fleet.client_config() | {"group.id": group})
        return self._readers[group]

    def close(self) -> None:
        for client in self._readers.values():
            client.close()

    def all_committed(self, group: str, topic: str, partitions: int) -> bool:
        committed = self.committed(group, topic, partitions)
        ends = self.ends(topic, partitions)
        return all(committed[number].offset == end or not end for number, end in ends.items())

    def read(self, topics: Sequence[str], count: int, **config: Any) -> list[Any]:
        """At least `count` records from the start, as another application's consumer reads them."""
        client = Consumer(
            self.fleet.client_config()
            | {
                "group.id": self.unique("reader"),
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
            | config
        )
        client.subscribe(list(topics))
        records: list[Any] = []
        ended: set[tuple[str | None, int | None]] = set()
        try:
            for _ in range(600):
                for message in client.consume(500, 0.1):
                    error = message.error()
                    if error is None:
                        records.append(message)
                        ended.discard((message.topic(), message.partition()))
                    elif error.code() == KafkaError._PARTITION_EOF:  # the client recovers from others
                        ended.add((message.topic(), message.partition()))
                if len(records) >= count and len(ended) == len(client.assignment()) > 0:
                    return records
            raise AssertionError(f"read {len(records)} of {count} records in {topics}")
        finally:
            client.close()


@pytest.fixture
def cluster(fleet: Fleet, unique: Callable[[str], str]) -> Iterator[KafkaCluster]:
    running = KafkaCluster(fleet, unique)
    yield running
    running.close()
