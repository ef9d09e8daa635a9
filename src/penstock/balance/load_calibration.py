"""Drives one broker at known rates, and measures it: the input of `load_fit`.

Requests write to every partition of a topic that only this broker has. First as many as it sustains, then at
shares of that rate, at random times (open loop: a slow broker does not slow the arrivals down).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.audit import intents
from penstock.audit.intents import IntentLog
from penstock.balance.broker_load import Measurement, Scrape, measure
from penstock.balance.load_fit import Point
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.metrics_scrape import scrape
from penstock.kafka.partition_log import ensure_topic
from penstock.kafka.routing import NodeWithId
from penstock.model.errors.balance import CalibrationFailed
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client

TOPIC: Final = "_penstock.calibration"
LEVELS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
OUTSTANDING_MAX: Final = 1_000  # requests without a response
PRODUCE_BY_NAME_LAST: Final = 12
SETTLE_SECONDS: Final = 1.0  # of a level, before it is measured
RETENTION: Final = {"retention.bytes": str(64 << 20), "segment.bytes": str(64 << 20)}  # by partition


@dataclass(frozen=True, slots=True)
class Workload:
    """What one request writes."""

    partitions: int = 10
    record_bytes: int = 1_000
    connections: int = 32  # Kafka serves one request of a connection at a time


@dataclass(slots=True)
class Driver:
    """Sends requests of one workload to one broker."""

    client: Client
    broker: int
    workload: Workload
    latencies: list[float] = field(default_factory=list)  # seconds, of the current level
    failures: int = 0

    async def prepare(self) -> None:
        replicas = {number: [self.broker] for number in range(self.workload.partitions)}
        await ensure_topic(self.client, topics.NewTopic(TOPIC, replicas=replicas, configs=RETENTION))

    async def clean_up(self) -> None:
        await IntentLog(self.client).record(intents.topic_deletion([TOPIC], "calibration"))
        results_or_raise(await topics.delete(self.client, names=[TOPIC]))

    async def send(self, lane: int) -> None:
        began = time.monotonic()
        value = random.randbytes(self.workload.record_bytes)
        batch = write([Record(0, int(time.time() * 1000), None, value)])
        data = [{"Index": number, "Records": batch} for number in range(self.workload.partitions)]
        body = {
            "TransactionalId": None,
            "Acks": 1,
            "TimeoutMs": 10_000,
            "TopicData": [{"Name": TOPIC, "PartitionData": data}],
        }
        response = await self.client.call(
            "Produce", body, to=NodeWithId(self.broker), version_max=PRODUCE_BY_NAME_LAST, lane=f"load-{lane}"
        )
        codes = {part["ErrorCode"] for part in response["Responses"][0]["PartitionResponses"]}
        self.failures += codes != {0}
        self.latencies.append(time.monotonic() - began)

    async def flood(self, seconds: float) -> float:
        """Requests a second with every connection busy."""
        self.latencies.clear()
        end = time.monotonic() + seconds

        async def worker(lane: int) -> None:
            while time.monotonic() < end:
                await self.send(lane)

        began = time.monotonic()
        await asyncio.gather(*(worker(lane) for lane in range(self.workload.connections)))
        return len(self.latencies) / (time.monotonic() - began)

    async def offer(self, rate: float, seconds: float) -> None:
        """Requests at random times, so many a second on average."""
        self.latencies.clear()
        lanes, pending = itertools.cycle(range(self.workload.connections)), set[asyncio.Task[None]]()
        due = time.monotonic()
        end = due + seconds
        while due < end:
            due += random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if len(pending) < OUTSTANDING_MAX:
                task = asyncio.create_task(self.send(next(lanes)))
                pending.add(task)
                task.add_done_callback(pending.discard)
        await asyncio.gather(*pending)


async def measured_points(
    driver: Driver,
    agent: tuple[str, int],
    *,
    seconds: float,
    levels: Sequence[float] = LEVELS,
    report: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """The broker's measurements at each level of its highest rate."""
    await driver.flood(seconds)  # warms up
    sustained = await driver.flood(seconds)
    report(f"{sustained:.0f} requests a second at most")
    points = []
    for level in levels:
        points.append(Point(level, await measured_level(driver, agent, level * sustained, seconds)))
        report(f"{level:.0%}: {points[-1].measured}")
    if driver.failures:
        raise CalibrationFailed(broker=driver.broker, reason=f"{driver.failures} requests failed")
    return points


async def measured_level(driver: Driver, agent: tuple[str, int], rate: float, seconds: float) -> Measurement:
    """What the broker measures while so many requests a second arrive."""
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.offer(rate, SETTLE_SECONDS + seconds))
        await asyncio.sleep(SETTLE_SECONDS)
        before = await scraped(agent)
        await asyncio.sleep(max(0.0, before.time + seconds - time.monotonic()))
        window = measure(before, await scraped(agent))
    if window is None:
        raise CalibrationFailed(broker=driver.broker, reason="it restarted")
    return window


async def scraped(agent: tuple[str, int]) -> Scrape:
    began = time.monotonic()
    metrics = await scrape(*agent)
    if metrics.broker.missing:
        raise CalibrationFailed(broker=metrics.node_id, reason=f"no sample of {metrics.broker.missing[0]}")
    halfway = (began + time.monotonic()) / 2  # a busy broker responds late
    return Scrape(halfway, metrics.start_ms, metrics.broker)
