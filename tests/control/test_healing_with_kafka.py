"""Incident 1 of Kora's table 1 on three real brokers: the gate prevents it, and healing proposes.

A stopped broker loses the first segments of a replica, comes back in sync, and leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from penstock.audit.service import Auditor
from penstock.balance.cluster_observation import observe
from penstock.balance.execute import Executor
from penstock.balance.leader_return import returning
from penstock.balance.plan_job import LeaderReturnJob
from penstock.control.health.healing import demoted_by_healing
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.spec import Listener
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.entities import PhysicalCluster
from tests.control.conftest import QUICK_SESSIONS, run_control_plane
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.control.health.healing_service import HealingService
    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

TOPIC = "orders"
PLACE = TopicPartition(TOPIC, 0)
RECORD = os.urandom(100_000)  # which no compression shrinks
RECORDS = 50
CONFIG = {**QUICK_SESSIONS, "auto.leader.rebalance.enable": "false"}


@pytest.fixture
def brokers(make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(brokers=3, config=CONFIG)


@contextlib.asynccontextmanager
async def auditing(fleet: Fleet, client: Client, cluster: str) -> AsyncIterator[Auditor]:
    node = fleet.nodes[0]
    login = Login(PLATFORM_USER, node.access.credentials.platform, Mechanism.PLAIN)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)

    async def controllers() -> Client:
        return Client(bootstrap, Security(login), controllers=True)

    auditor = Auditor(cluster, client, controllers, sweep_seconds=1.0, snapshot_seconds=2.0)
    task = asyncio.create_task(auditor.run())
    try:
        yield auditor
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def fill(client: Client) -> None:
    configs = {"segment.bytes": str(1 << 20), "retention.ms": "-1", "min.insync.replicas": "2"}
    await ensure_topic(client, NewTopic(TOPIC, replicas={0: (1, 2, 3)}, configs=configs))
    for _ in range(RECORDS):
        await append(client, PLACE, [(None, RECORD)])


def lose_first_segments(fleet: Fleet) -> None:
    """As a disk that loses files: two segments of broker 1's replica are gone when it starts."""
    fleet.stop_node("b1")
    data = fleet.node("b1").layout.data
    for log in sorted((data / f"{TOPIC}-0").glob("*.log"))[:2]:
        for file in log.parent.glob(f"{log.stem}.*"):
            file.unlink()
    (data / "log-start-offset-checkpoint").unlink(missing_ok=True)
    fleet.start_node("b1")


async def leader(client: Client) -> int | None:
    return (await observe(client, [TOPIC])).partitions[PLACE].leader


async def in_sync(client: Client) -> bool:
    return len((await observe(client, [TOPIC])).partitions[PLACE].isr) == 3


async def values(client: Client) -> list[bytes | None]:
    position, end = await bounds(client, PLACE)
    result: list[bytes | None] = []
    while position < end:
        fetched = await read(client, PLACE, position)
        result += [record.value for record in fetched.records]
        position = fetched.position
    return result


async def observed(auditor: Auditor) -> None:
    """The auditor has seen all records on every replica."""

    async def complete() -> bool:
        return any(
            len([each for each in state.replicas.values() if each.replica.end == RECORDS]) == 3
            for state in auditor.engine.states.values()
        )

    await eventually(complete)


async def proposed(healing: HealingService, cluster: str) -> bool:
    known = healing.known.get(cluster)
    return known is not None and known.verdict.demotion is not None


async def test_a_corrupt_replica_is_not_elected_and_its_demotion_is_proposed(
    brokers: Fleet,
) -> None:
    async with run_control_plane(brokers) as harness, Client(brokers.bootstrap, brokers.security()) as client:
        await harness.active()
        plane = harness.plane
        (physical,) = plane.registry.all(PhysicalCluster)
        await fill(client)
        async with auditing(brokers, client, physical.id) as auditor:
            await observed(auditor)
            await asyncio.to_thread(lose_first_segments, brokers)
            await eventually(lambda: in_sync(client))

            # The gate: the platform itself never elects it, though it is preferred and in sync.
            seen = await observe(client, [TOPIC])
            moves = returning(seen, {1: 0.0}, 1000.0)
            assert [each.partition for each in moves] == [0]
            await Executor(client).run(LeaderReturnJob(moves))
            assert await leader(client) != 1

            # Kafka would elect it first when the leader dies. The control plane proposes to demote it.
            await eventually(lambda: proposed(plane.healing, physical.id))
            assert demoted_by_healing(plane.registry, physical.id) == frozenset()
            (one,) = (await plane.findings.read()).findings
            assert (one.finding.rule, one.finding.first) == ("log-start-unexplained", 0)
            assert await values(client) == [RECORD] * RECORDS
