"""Counts the words of each line, exactly once, even if the program is killed.

KAFKA=localhost:9092 python examples/consume/exactly_once.py
"""

from __future__ import annotations

import json
import os
import socket

from penstock.consume import Output, ParallelConsumer, Record

COUNTS = os.environ.get("COUNTS", "counts")

consumer = ParallelConsumer(
    {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092"), "group.id": "counting"}
    | json.loads(os.environ.get("KAFKA_PROPERTIES", "{}")),
    topics=[os.environ.get("LINES", "lines")],
    transactional_id=f"counting-{socket.gethostname()}",  # unique to a member, the same after a restart
)


@consumer.handler
async def count(record: Record) -> Output:
    return Output(COUNTS, str(len(record.value.split())), key=record.key)


if __name__ == "__main__":
    consumer.run()
