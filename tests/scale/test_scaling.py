"""Real Kafka, a real group, and a simulated Deployment that follows the HPA's rule.

The times of the rules are shortened, the rules are not. Consumers handle a fixed number of records a
second, so the replicas that a load needs are known.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from confluent_kafka import Consumer, Producer

from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.scale.proto import externalscaler_pb2 as pb
from penstock.scale.sampler.kafka_source import KafkaLagSource
from penstock.scale.sampler.samples_topic import SamplesTopic
from penstock.scale.simulate.hpa import recommended
from tests.scale.fakes import Running, metric_value, served, stub_for, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.scale.grpc_service import ExternalScalerStub
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

PARTITIONS = 4
CAPACITY = 120.0  # records a second, each consumer
INTERVAL = 0.5
LATENESS_SECONDS_MAX = 1.0
METADATA = {
    "lagThreshold": "30", "warmUpSeconds": "2", "sustainSeconds": "3", "settleSeconds": "2",
    "lowSeconds": "3", "coolDownSeconds": "5", "scaleUpIntervalSeconds": "3", "startSeconds": "3",
    "objectiveSeconds": "60", "drainSeconds": "60", "stallSeconds": "10", "idleSeconds": "600",
}  # fmt: skip


class Pod(threading.Thread):
    """One consumer that handles `CAPACITY` records a second and commits as it goes."""

    def __init__(self, config: dict[str, object], topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(config)
        self._topic = topic
        self._leaving = threading.Event()
        self.start()

    def run(self) -> None:
        self._consumer.subscribe([self._topic])
        free_at = time.monotonic()
        while not self._leaving.is_set():
            records = self._consumer.consume(num_messages=12, timeout=0.1)
            # Catch up after a pause of the machine, which would otherwise look like slow consumers.
            free_at = max(free_at, time.monotonic() - LATENESS_SECONDS_MAX) + len(records) / CAPACITY
            self._leaving.wait(max(0.0, free_at - time.monotonic()))
        self._consumer.close()

    def leave(self) -> None:
        self._leaving.set()
        self.join()


class Deployment:
    """Follows the scaler's value by the HPA's rule, and records each change."""

    def __init__(self, config: dict[str, object], topic: str) -> None:
        self._config = config
        self._topic = topic
        self._pods = [Pod(config, topic)]
        self.changes: list[int] = []
        self.reasons: list[str] = []  # shown when the test fails

    async def follow(self, stub: ExternalScalerStub, about: pb.ScaledObjectRef, up: Running) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                desired = recommended(len(self._pods), await metric_value(stub, about), 1.0)
            except grpc.aio.AioRpcError:
                continue  # KEDA leaves the replicas alone then
            if desired != len(self._pods):
                self.changes.append(desired)
                self.reasons += [str(watch.verdict) for watch in up.verdicts.watches]
                await asyncio.to_thread(self._scale_to, desired)

    def _scale_to(self, desired: int) -> None:
        while len(self._pods) < desired:
            self._pods.append(Pod(self._config, self._topic))
        while len(self._pods) > desired:
            self._pods.pop().leave()

    def end(self) -> None:
        for pod in self._pods:
            pod.leave()


class Load:
    """Produces `rate` records a second, evenly over the partitions."""

    def __init__(self, config: dict[str, object], topic: str) -> None:
        self.rate = 0.0
        self._producer = Producer({**config, "linger.ms": 5})
        self._topic = topic
        self._sent = 0

    async def run(self) -> None:
        owed, last = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            owed, last = owed + self.rate * (now - last), now
            self.send(int(owed))
            owed -= int(owed)

    def send(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            self._producer.produce(self._topic, b"x", partition=self._sent % PARTITIONS)
        self._producer.poll(0)


@asynccontextmanager
async def environment(
    fleet: Fleet, unique: Callable[[str], str]
) -> AsyncIterator[tuple[Load, Deployment, Running]]:
    """Topic, load, one pod, the scaler with its samples topic, and the Deployment that follows it."""
    topic, group = unique("orders"), unique("billing")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(topic, PARTITIONS, 1)]))
        journal = SamplesTopic(client, unique("lag"), history_seconds=600)
        await journal.prepare()
        load = Load(fleet.client_config(), topic)
        config = fleet.client_config(
            group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=200,
            auto_commit_interval_ms=300, partition_assignment_strategy="range",
        )  # fmt: skip
        deployment = await asyncio.to_thread(Deployment, config, topic)
        about = pb.ScaledObjectRef(
            name="billing", namespace="shop", scalerMetadata={"group": group, "topic": topic, **METADATA}
        )
        async with (
            served(
                {"default": KafkaLagSource(client)}, journal, {"default": INTERVAL}, listen="127.0.0.1:0"
            ) as up,
            grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
        ):
            tasks = [
                asyncio.create_task(load.run()),
                asyncio.create_task(deployment.follow(stub_for(channel), about, up)),
            ]
            try:
                yield load, deployment, up
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.to_thread(deployment.end)


def lag(up: Running) -> int:
    (watch,) = up.verdicts.watches
    return watch.verdict.lag if watch.verdict else 0


def evaluated(up: Running) -> bool:
    return any(watch.verdict is not None and watch.verdict.states for watch in up.verdicts.watches)


async def test_a_burst_changes_nothing_overload_scales_up_once_and_recovery_down_once(
    fleet: Fleet, unique: Callable[[str], str]
) -> None:
    async with environment(fleet, unique) as (load, deployment, up):
        load.rate = 30.0
        await until(lambda: evaluated(up), "a first verdict", seconds=40)
        (watch,) = up.verdicts.watches
        await until(lambda: watch.window.at and watch.memory.requested == 1, "one replica")

        load.send(600)
        await until(lambda: lag(up) > 200, "the burst to be seen")
        await until(lambda: lag(up) < 40, "the burst to drain", seconds=40)
        assert deployment.changes == [], deployment.reasons

        load.rate = 160.0
        await until(lambda: deployment.changes, "a scale-up", seconds=60)
        await until(lambda: lag(up) < 60, "the backlog to drain", seconds=60)
        assert deployment.changes == [2], deployment.reasons

        load.rate = 20.0
        await until(lambda: len(deployment.changes) > 1, "a scale-down", seconds=60)
        await until(lambda: watch.window.members == 1, "one member", seconds=30)
        assert deployment.changes == [2, 1], deployment.reasons
