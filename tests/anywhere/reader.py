"""A tenant's consumer as a program: prints how often each record is in a topic.

python -m tests.anywhere.reader SETTINGS.json TOPIC PARTITIONS
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

POLL_SECONDS_MAX = 60.0
PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)


def main(settings: str, topic: str, partitions: str) -> None:
    consumer = Consumer(
        json.loads(Path(settings).read_text())
        | {"group.id": "reader", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    counts: Counter[str] = Counter()
    ended: set[int | None] = set()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(int(partitions))])
    while len(ended) < int(partitions):
        message = consumer.poll(POLL_SECONDS_MAX)
        assert message is not None, "the topic cannot be read"
        error = message.error()
        if error is None:
            counts[(message.value() or b"").decode()] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
        else:
            assert error.retriable() or error.code() in PASSING, error
    consumer.close()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:4])
