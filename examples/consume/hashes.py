"""Runs CPU-bound work in worker processes, with the order of each key preserved.

KAFKA=localhost:9092 python examples/consume/hashes.py
"""

from __future__ import annotations

import hashlib
import json
import os

from penstock.consume import ParallelConsumer, Record, Workers

consumer = ParallelConsumer(
    {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092"), "group.id": "hashing"}
    | json.loads(os.environ.get("KAFKA_PROPERTIES", "{}")),
    topics=[os.environ.get("FILES", "files")],
    workers=Workers.PROCESSES,
)


@consumer.handler
def derive_key(record: Record) -> None:  # at module level, so that worker processes can import it
    digest = hashlib.pbkdf2_hmac("sha256", record.value, record.key or b"salt", 20_000)
    print(digest.hex(), flush=True)


if __name__ == "__main__":  # worker processes import this file
    consumer.run()
