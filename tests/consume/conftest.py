"""Topics and records on the real fleet, and what a group has committed there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ground import heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.ground.fleet import Fleet


class Ground:
    """A fleet seen through the client that applications use."""

    def __init__(self, fleet: Fleet, unique: Callable[[str], str]) -> None:
        self.fleet, self.unique = fleet, unique
        self._admin = AdminClient(fleet.client_config())
        self._lookers: dict[str, Any] = {}

    def properties(self, group: str, **more: Any) -> dict[str, Any]:
        classic = {} if more.get("group.protocol") == "consumer" else {"session.timeout.ms": 10_000}
        return self.fleet.client_config() | {"group.id": group} | classic | more

    def topic(self, partitions: int = 3, **config: str) -> str:
        name = self.unique("orders")
        wanted = {key.replace("_", "."): value for key, value in config.items()}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=wanted)])[name].result(30)
        heard.now(heard.topics_heard(self.fleet, name))
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
        where = {} if partition is None else {"partition": partition}
        for key, value in values:
            producer.produce(topic, value, key=key, **where)
            producer.poll(0)
        assert producer.flush(30) == 0

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, TopicPartition]:
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        return {part.partition: part for part in self._looking(group).committed(parts, timeout=30)}

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        client = self._looking("ends")
        return {place.partition: client.get_watermark_offsets(place, timeout=30)[1] for place in places}

    def _looking(self, group: str) -> Any:
        """A client that asks about a group and never joins it."""
        if group not in self._lookers:
            self._lookers[group] = Consumer(self.fleet.client_config() | {"group.id": group})
        return self._lookers[group]

    def close(self) -> None:
        for client in self._lookers.values():
            client.close()

    def all_committed(self, group: str, topic: str, partitions: int) -> bool:
        found = self.committed(group, topic, partitions)
        ends = self.ends(topic, partitions)
        return all(found[number].offset == end or not end for number, end in ends.items())

    def read(self, topics: Sequence[str], count: int, **config: Any) -> list[Any]:
        """At least `count` records from the start, as somebody else's consumer sees them."""
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
        found: list[Any] = []
        ended: set[tuple[str, int]] = set()
        try:
            for _ in range(600):
                for message in client.consume(500, 0.1):
                    if message.error() is None:
                        found.append(message)
                        ended.discard((message.topic(), message.partition()))
                    elif message.error().code() == KafkaError._PARTITION_EOF:  # others pass by themselves
                        ended.add((message.topic(), message.partition()))
                if len(found) >= count and len(ended) == len(client.assignment()) > 0:
                    return found
            raise AssertionError(f"found {len(found)} of {count} records in {topics}")
        finally:
            client.close()


@pytest.fixture
def ground(fleet: Fleet, unique: Callable[[str], str]) -> Iterator[Ground]:
    made = Ground(fleet, unique)
    yield made
    made.close()
