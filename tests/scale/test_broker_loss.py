"""The scaler while brokers are killed or hang: its verdicts follow the group again, its requests are kept."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest
from confluent_kafka import Producer

from penstock.kafka.admin import group_offsets, topics
from penstock.kafka.admin.group_offsets import CommittedOffset
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.security import Mechanism
from penstock.model.errors import PenstockError
from penstock.scale.server import serving
from penstock.scale.settings import ClusterSettings, ScalerSettings
from tests.scale.fakes import FAST, metric_value, reference, stub_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.scale.grpc_service import ExternalScalerStub
    from penstock.scale.proto import externalscaler_pb2 as pb
    from tests.harness.fleet import Fleet

TOPIC, GROUP, SAMPLES = "orders", "billing", "lag"
SECONDS_MAX = 90.0


@dataclass
class Watched:
    """A scaler that watches a group at zero replicas, and ways to change what it must see."""

    fleet: Fleet
    client: Client
    stub: ExternalScalerStub
    about: pb.ScaledObjectRef
    produced: int = 0

    async def produce(self) -> None:
        """Records wait: the workload must become active."""

        def send() -> None:
            producer = Producer(self.fleet.client_config())
            producer.produce(TOPIC, b"x", partition=0)
            assert producer.flush(SECONDS_MAX) == 0

        await asyncio.to_thread(send)
        self.produced += 1

    async def consume(self) -> None:
        """Nothing waits any more: after the idle time the workload must become inactive."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                at = {TopicPartition(TOPIC, 0): CommittedOffset(self.produced)}
                try:
                    results_or_raise(await group_offsets.commit(self.client, GROUP, at))
                except PenstockError:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def wait_until_active(self, expected: bool) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    if (await self.stub.IsActive(self.about)).result is expected:
                        return
                except grpc.aio.AioRpcError as failure:
                    if failure.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(0.05)

    async def broker_of(self, what: str) -> str:
        """The name of the broker that coordinates the group or leads the samples topic; else the third."""
        body = {"KeyType": 0, "CoordinatorKeys": [GROUP]}
        response = await self.client.call("FindCoordinator", body)
        coordinator = response["Coordinators"][0]["NodeId"]
        leader = (await self.client.leaders([SAMPLES]))[SAMPLES, 0]
        others = [node.spec.id for node in self.fleet.brokers if node.spec.id not in (coordinator, leader)]
        chosen = {"coordinator": coordinator, "leader": leader}.get(what, others[0])
        return next(node.name for node in self.fleet.brokers if node.spec.id == chosen)

    async def wait_for_replicas(self) -> None:
        """All replicas are in sync, so that the next broker may go."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                described = await topics.describe(self.client, [TOPIC, SAMPLES, "__consumer_offsets"])
                if all(
                    isinstance(topic, topics.Topic) and all(len(each.isr) == 3 for each in topic.partitions)
                    for topic in described.values()
                ):
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def watched(fleet: Fleet, home: Path) -> AsyncIterator[Watched]:
    config = fleet.client_config()
    (home / "password").write_text(config["sasl.password"])
    cluster = ClusterSettings(
        fleet.bootstrap, 1.0, config["sasl.username"], home / "password", Mechanism(config["sasl.mechanism"])
    )
    settings = ScalerSettings(
        {"default": cluster}, "127.0.0.1:0", samples_cluster="default", samples_topic=SAMPLES
    )
    async with Client(fleet.bootstrap, fleet.security()) as client:
        results_or_raise(await topics.create(client, [topics.NewTopic(TOPIC, 1, 3)]))
        async with (
            serving(settings) as up,
            grpc.aio.insecure_channel(f"127.0.0.1:{up.port}") as channel,
        ):
            about = reference(group=GROUP, topic=TOPIC, **FAST | {"minReplicas": "0"})
            one = Watched(fleet, client, stub_for(channel), about)
            await one.produce()
            await one.consume()
            await one.wait_until_active(False)
            yield one


async def lose(one: Watched, what: str, take: Callable[[str], None], restore: Callable[[str], None]) -> None:
    """The scaler follows the group while a broker is away, and after its return."""
    name = await one.broker_of(what)
    await asyncio.to_thread(take, name)
    try:
        await one.produce()
        await one.wait_until_active(True)
        assert await metric_value(one.stub, one.about) == 1.0
    finally:
        await asyncio.to_thread(restore, name)
    await one.wait_for_replicas()
    await one.consume()
    await one.wait_until_active(False)


@pytest.mark.kafka
async def test_verdicts_follow_the_group_after_its_coordinator_is_killed(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    async with watched(fleet, tmp_path) as one:
        await lose(one, "coordinator", fleet.kill, fleet.start_node)


@pytest.mark.soak
@pytest.mark.kafka
@pytest.mark.parametrize("way", ["killed", "hanging"])
async def test_verdicts_follow_the_group_after_any_broker_is_lost_ten_times(
    make_fleet: Callable[..., Fleet], tmp_path: Path, way: str
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    take, restore = (fleet.kill, fleet.start_node) if way == "killed" else (fleet.pause, fleet.resume)
    async with watched(fleet, tmp_path) as one:
        for number in range(10):
            await lose(one, ("coordinator", "leader", "other")[number % 3], take, restore)
