"""Our consumer and the bare loop as a process that stays warm: `python -m bench.consume_jobs FILE`.

It speaks the protocol of bench/peers/parallelconsumer/Peer.java: one job per line in, one result per line
out.

    job:     topic order workers work records        order KEY, PARTITION, UNORDERED, BARE or SLEEP
    result:  wall processor records p50 p99          nanoseconds, the last two in microseconds

BARE is a loop that only polls. SLEEP has no Kafka at all: as many tasks that only sleep, which is what
asyncio itself can do. `work` is in microseconds, `random` (0 to 5 ms) or `stamp`: 1 ms, with the intended
send time as value, from which latency is measured.
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
from penstock.gc_tuning import rare_collections

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

    def result(self) -> str:
        # The first fifth includes joining the group.
        ranked = sorted(self.latencies[len(self.latencies) // 5 :]) or [0.0]
        p50, p99 = ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)]
        return f"{self.wall} {self.processor} {self.count} {p50:.0f} {p99:.0f}"


def bare(properties: dict[str, Any], topic: str, expected: int) -> str:
    """The fastest loop with this client: no work, no commits, no order beyond the partition's."""
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
    return meter.result()


async def _sleep(seconds: float) -> None:
    """Sleeps at least so long: uvloop's timers may fire early, which would flatter us."""
    deadline = time.perf_counter() + seconds
    while (left := deadline - time.perf_counter()) > 0:
        await asyncio.sleep(left)


async def only_sleep(workers: int, seconds: float, expected: int) -> str:
    """What asyncio alone can do: as many tasks, the same work, nothing else."""
    meter = Meter(expected)
    meter.first()

    async def lane() -> None:
        while meter.count < meter.expected:
            meter.count += 1
            await _sleep(seconds)

    await asyncio.gather(*(lane() for _ in range(workers)))
    meter.finish()
    return meter.result()


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
    return meter.result()


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
            result = bare(properties, job[0], int(job[4]))
        else:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                if job[1] == "SLEEP":
                    result = runner.run(only_sleep(int(job[2]), int(job[3]) / 1e6, int(job[4])))
                else:
                    result = runner.run(ours(properties, job))
        print(result, flush=True)


if __name__ == "__main__":
    main()
