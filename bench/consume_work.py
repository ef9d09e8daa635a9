"""Processor-bound work done three ways; a separate module, so that worker processes can import it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer

from penstock.consume import ParallelConsumer, Record, Workers

if TYPE_CHECKING:
    from concurrent.futures import Executor

HASHES = 500
CHUNK = 50


def hash_repeatedly(value: bytes) -> None:
    for _ in range(HASHES):
        value = hashlib.sha256(value).digest()


def handle(record: Record) -> None:
    hash_repeatedly(record.value)


def plain_loop(connection: dict[str, Any], topic: str, records: int) -> float:
    client = _client(connection, topic)
    seen, begin = 0, 0.0
    try:
        while seen < records:
            for message in client.consume(500, 0.1):
                begin = begin or time.perf_counter()
                hash_repeatedly(message.value())
                seen += 1
    finally:
        client.close()
    return time.perf_counter() - begin


def pool_loop(connection: dict[str, Any], topic: str, records: int, pool: Executor) -> float:
    client = _client(connection, topic)
    seen, begin, results = 0, 0.0, []
    try:
        while seen < records:
            messages = client.consume(500, 0.1)
            if messages:
                begin = begin or time.perf_counter()
                values = [message.value() for message in messages]
                results.append(pool.map(hash_repeatedly, values, chunksize=CHUNK))
                seen += len(values)
        for result in results:
            list(result)
    finally:
        client.close()
    return time.perf_counter() - begin


def consume_on_processes(connection: dict[str, Any], topic: str, records: int) -> float:
    """Seconds from the first to the last record finished; the workers are started before."""
    consumer = ParallelConsumer(
        connection | {"group.id": f"bench-{uuid.uuid4()}"}, [topic], workers=Workers.PROCESSES, processes=2
    )
    consumer.handler(handle)

    async def run() -> float:
        begin = 0.0
        async with consumer:
            while consumer.counts.finished < records:
                if not begin and consumer.counts.finished:
                    begin = time.perf_counter()
                await asyncio.sleep(0.001)
            return time.perf_counter() - begin

    return asyncio.run(run())


def _client(connection: dict[str, Any], topic: str) -> Any:
    client = Consumer(
        connection
        | {"group.id": f"bench-{uuid.uuid4()}", "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 5}
    )
    client.subscribe([topic])
    return client
