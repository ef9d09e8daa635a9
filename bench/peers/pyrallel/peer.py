"""Pyrallel-Consumer as a process that stays warm, with the protocol of bench/consume_jobs.py.

It runs on a separate Python (3.12 or later), so it imports nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import uvloop
from pyrallel_consumer.config import ExecutionConfig, KafkaConfig, ParallelConsumerConfig
from pyrallel_consumer.consumer import PyrallelConsumer
from pyrallel_consumer.dto import OrderingMode

SECONDS_MAX = 300.0
ORDERS = {
    "KEY": OrderingMode.KEY_HASH,
    "PARTITION": OrderingMode.PARTITION,
    "UNORDERED": OrderingMode.UNORDERED,
}
CONNECTION: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())


class Config(KafkaConfig):  # type: ignore[misc]  # not installed where types are checked
    """Adds the login, for which its settings have no field."""

    def get_consumer_config(self) -> dict[str, Any]:
        return {**super().get_consumer_config(), **CONNECTION}

    def get_producer_config(self) -> dict[str, Any]:
        return {**super().get_producer_config(), **CONNECTION}


async def run(topic: str, order: str, workers: str, work: str, records: str) -> str:
    seconds, expected, count, wall, processor = int(work) / 1e6, int(records), 0, 0, 0
    over = asyncio.Event()

    async def handle(item: object) -> None:
        nonlocal count, wall, processor
        if not wall:
            wall, processor = time.perf_counter_ns(), time.process_time_ns()
        deadline = time.perf_counter() + seconds
        while seconds and (left := deadline - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        count += 1
        if count == expected:
            wall, processor = time.perf_counter_ns() - wall, time.process_time_ns() - processor
            over.set()

    execution = ExecutionConfig(max_in_flight=int(workers))
    config = Config(
        BOOTSTRAP_SERVERS=CONNECTION["bootstrap.servers"],
        CONSUMER_GROUP=f"bench-{uuid.uuid4()}",
        dlq_enabled=False,
        parallel_consumer=ParallelConsumerConfig(execution=execution, ordering_mode=ORDERS[order]),
    )
    consumer = PyrallelConsumer(config, handle, topic)
    await consumer.start()
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await over.wait()
    finally:
        await consumer.stop()
    return f"{wall} {processor} {count} 0 0"


def main() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(runner.run(run(*line.split())), flush=True)


if __name__ == "__main__":
    main()
