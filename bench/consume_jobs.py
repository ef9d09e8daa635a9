"""Our consumer and the bare loop as a process that stays warm: `python -m bench.consume_jobs FILE`.

The same protocol as bench/peers/parallelconsumer/Peer.java: one job a line, one answer a line.

    job:     topic order workers work records        order KEY, PARTITION, UNORDERED or BARE
    answer:  wall processor records p50 p99          nanoseconds, the last two in microseconds

`work` is microseconds, `random` (0 to 5 ms) or `stamp`: 1 ms, and the value is the intended time of
sending, from which latency is counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from penstock.consume import ParallelConsumer, Record
from penstock.consume.settings import CLIENT_DEFAULTS
from penstock.garbage import rare_collections

SECONDS_MAX = 300.0


class Meter:
    """Counts records from the first to the last expected one."""

    def __init__(self, expected: int) -> None:
        self.expected, self.count = expected, 0
        self.wall = self.processor = 0
        self.latencies: list[float] = []

    def first(self) -> None:
        self.processor, self.wall = time.process_time_ns(), time.perf_counter_ns()

    def finish(self) -> None:
        self.wall = time.perf_counter_ns() - self.wall
        self.processor = time.process_time_ns() - self.processor

    def answer(self) -> str:
        ranked = sorted(self.latencies[len(self.latencies) // 5 :]) or [0.0]  # without the time of joining
        p50, p99 = ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)]
        return f"{self.wall} {self.processor} {self.count} {p50:.0f} {p99:.0f}"


def bare(properties: dict[str, Any], topic: str, expected: int) -> str:
    """The fastest loop there is with this client: no work, no commits, no order but the partition's."""
    from confluent_kafka import Consumer

    client = Consumer(
        CLIENT_DEFAULTS | {"fetch.queue.backoff.ms": 5, "queued.min.messages": 100_000}
        | {"max.partition.fetch.bytes": 1 << 20, "enable.auto.commit": False} | properties
    )  # fmt: skip
    client.subscribe([topic])
    meter = Meter(expected)
    try:
        while meter.count < expected:
            messages = client.consume(500, 0.1)
            if messages and not meter.count:
                meter.first()
            for message in messages:
                if message.error() is None:
                    message.value()
                    meter.count += 1
        meter.finish()
    finally:
        client.close()
    return meter.answer()


async def _sleep(seconds: float) -> None:
    """At least so long: uvloop's timers may fire early, and a bench must not gain by that."""
    deadline = time.perf_counter() + seconds
    while (left := deadline - time.perf_counter()) > 0:
        await asyncio.sleep(left)


async def ours(properties: dict[str, Any], job: list[str]) -> str:
    topic, order, workers, work, expected = job
    consumer = ParallelConsumer(properties, [topic], order=order.lower(), concurrency=int(workers))
    meter = Meter(int(expected))
    over = asyncio.Event()

    def count() -> None:
        meter.count += 1
        if meter.count == meter.expected:
            meter.finish()
            over.set()

    if work == "0":

        @consumer.handler
        async def instant(record: Record) -> None:
            if not meter.wall:
                meter.first()
            count()

    elif work == "stamp":

        @consumer.handler
        async def stamped(record: Record) -> None:
            if not meter.wall:
                meter.first()
            await _sleep(0.001)
            meter.latencies.append(time.time() * 1e6 - float(record.value))
            count()

    else:

        @consumer.handler
        async def slow(record: Record) -> None:
            if not meter.wall:
                meter.first()
            await _sleep(random.random() * 0.005 if work == "random" else int(work) / 1e6)
            count()

    async with consumer, asyncio.timeout(SECONDS_MAX):
        await over.wait()
    return meter.answer()


def main() -> None:
    import uvloop

    connection = json.loads(Path(sys.argv[1]).read_text())
    with rare_collections():  # as ParallelConsumer.run() does; the bare loop has the same
        serve(connection, uvloop.new_event_loop)


def serve(connection: dict[str, Any], new_loop: Any) -> None:
    for line in sys.stdin:
        job = line.split()
        properties = connection | {"group.id": f"bench-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
        if job[1] == "BARE":
            answer = bare(properties, job[0], int(job[4]))
        else:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                answer = runner.run(ours(properties, job))
        print(answer, flush=True)


if __name__ == "__main__":
    main()
