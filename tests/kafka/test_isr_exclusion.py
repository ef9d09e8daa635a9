"""The contract of ISR exclusion, which Kafka does not document: checked on the pinned version."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.fleet.readiness import security_of
from penstock.fleet.spec import Listener
from penstock.kafka import isr_exclusion
from penstock.kafka.admin import log_dirs, reassignments, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import Partition, Topic
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.isr_exclusion import Registration, exclude, obstacles, registrations
from penstock.kafka.quorum import MetadataRecord
from penstock.model.errors.health import ExclusionIneffective, ExclusionUnsafe
from penstock.wire.logs import Entry
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

PARTITIONS = 6
SICK = 2


def topic(name: str, *partitions: Partition) -> Topic:
    return Topic(name, UUID(int=7), internal=False, partitions=partitions)


def partition(
    index: int, leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3)
) -> Partition:
    return Partition(index, leader, 0, replicas, isr, ())


def test_a_broker_may_go_if_every_partition_keeps_its_minimum() -> None:
    described = {"orders": topic("orders", partition(0, SICK, (1, 2, 3)), partition(1, 1, (1, 3)))}
    assert obstacles(described, {"orders": 2}, SICK) == ()


def test_a_partition_that_would_fall_below_its_minimum_is_an_obstacle() -> None:
    described = {"orders": topic("orders", partition(0, SICK, (1, 2)))}
    (obstacle,) = obstacles(described, {"orders": 2}, SICK)
    assert str(obstacle) == "orders-0: 1 in-sync replicas would be left, min.insync.replicas is 2"


def test_the_only_in_sync_replica_is_an_obstacle_unless_it_is_expendable() -> None:
    described = {"alone": topic("alone", partition(0, SICK, (SICK,), (SICK,)))}
    (obstacle,) = obstacles(described, {}, SICK)
    assert "only in-sync replica" in obstacle.reason
    assert obstacles(described, {}, SICK, {"alone"}) == ()


def test_a_broker_that_leads_nothing_cannot_be_excluded() -> None:
    (obstacle,) = obstacles({"orders": topic("orders", partition(0, 1, (1, 2, 3)))}, {"orders": 2}, SICK)
    assert obstacle.reason == "broker 2 leads no partition"


def record(name: str, **values: Any) -> MetadataRecord:
    return MetadataRecord(0, 0, Entry(name, 0, values))


def test_a_restart_registers_the_broker_again_without_its_mark() -> None:
    known: dict[int, Registration] = {}
    marked = {"BrokerId": SICK, "BrokerEpoch": 5, "Fenced": 0, "InControlledShutdown": 1}
    again = {"BrokerId": SICK, "BrokerEpoch": 9, "Fenced": True, "InControlledShutdown": False}
    isr_exclusion.apply(known, record("RegisterBrokerRecord", BrokerId=SICK, BrokerEpoch=5, Fenced=True))
    isr_exclusion.apply(known, record("BrokerRegistrationChangeRecord", **{**marked, "Fenced": -1}))
    excluded = known[SICK]
    isr_exclusion.apply(known, record("BrokerRegistrationChangeRecord", **marked))
    assert excluded == known[SICK] == Registration(SICK, 5, fenced=False, shutting_down=True)
    assert known[SICK].excluded
    isr_exclusion.apply(known, record("RegisterBrokerRecord", **again))
    assert known[SICK] == replace(excluded, epoch=9, fenced=True, shutting_down=False)
    isr_exclusion.apply(known, record("UnregisterBrokerRecord", BrokerId=SICK))
    assert known == {}


class Cluster:
    """Three brokers whose second one is excluded, and what its partitions look like."""

    def __init__(self, fleet: Fleet, client: Client, controllers: Client) -> None:
        self.fleet, self.client, self.controllers = fleet, client, controllers
        self.isr_least = 3  # the smallest ISR of a replicated partition, sampled all along

    async def partitions(self, *names: str) -> list[Partition]:
        described = results_or_raise(await topics.describe(self.client, list(names)))
        return [p for each in described.values() for p in each.partitions]

    async def is_in(self, *names: str) -> int:
        """In how many ISRs the broker is."""
        return sum(SICK in p.isr for p in await self.partitions(*names))

    async def sample(self) -> None:
        while True:
            self.isr_least = min(self.isr_least, *(len(p.isr) for p in await self.partitions("orders")))
            await asyncio.sleep(0.1)

    async def lag(self) -> int:
        directories = (await log_dirs.describe(self.client, [SICK]))[SICK]
        replicas = [r for d in directories for key, r in d.replicas.items() if key[0] == "orders"]
        assert len(replicas) == PARTITIONS
        return max(r.offset_lag for r in replicas)

    async def write(self) -> None:
        for index in range(PARTITIONS):
            await append(self.client, TopicPartition("orders", index), [(None, b"a" * 100)])


@pytest.mark.kafka
async def test_exclusion_survives_everything_but_a_restart(make_fleet: Callable[..., Fleet]) -> None:
    fleet = await asyncio.to_thread(partial(make_fleet, brokers=3, controllers=1, zones=["a", "b", "c"]))
    node = next(node for node in fleet.nodes if node.spec.is_controller)
    async with (
        Client(fleet.bootstrap, fleet.security()) as client,
        Client(
            node.cluster.spec.bootstrap(Listener.CONTROLLER), security_of(node), controllers=True
        ) as controllers,
    ):
        one = Cluster(fleet, client, controllers)
        rotated = {i: [(i + k) % 3 + 1 for k in range(3)] for i in range(PARTITIONS)}
        least = {"min.insync.replicas": "2"}
        new = [topics.NewTopic("orders", replicas=rotated, configs=least)]
        new.append(topics.NewTopic("alone", replicas={0: [SICK]}))
        results_or_raise(await topics.create(client, new))
        await asyncio.to_thread(fleet.wait_for_leaders, "orders", PARTITIONS)
        await asyncio.to_thread(fleet.wait_for_leaders, "alone", 1)
        await one.write()

        with pytest.raises(ExclusionUnsafe, match="alone-0: broker 2 is its only in-sync replica"):
            await exclude(client, controllers, SICK)
        assert await one.is_in("orders") == PARTITIONS

        sampling = asyncio.create_task(one.sample())
        registration = await exclude(client, controllers, SICK, expendable={"alone"})
        assert await one.is_in("orders") == 0
        assert all(p.leader not in (SICK, -1) for p in await one.partitions("orders"))

        # It keeps replicating, and keeps leading what only it has.
        await one.write()
        await eventually(lambda: _is(one.lag(), 0))
        await eventually(lambda: _leads_alone(one))
        assert await one.is_in("orders") == 0
        assert (await exclude(client, controllers, SICK, expendable={"alone"})).epoch == registration.epoch

        # The controller is killed, leaders are elected, a topic is created, a partition is reassigned.
        sampling.cancel()
        await asyncio.to_thread(fleet.kill, node.name)
        await asyncio.to_thread(fleet.start_node, node.name)
        sampling = asyncio.create_task(one.sample())
        assert (await registrations(controllers))[SICK].excluded
        await reassignments.elect(client, [TopicPartition("orders", i) for i in range(PARTITIONS)])
        results_or_raise(
            await topics.create(client, [topics.NewTopic("later", replicas={0: [1, SICK, 3]}, configs=least)])
        )
        results_or_raise(await reassignments.alter(client, {TopicPartition("orders", 0): [3, SICK, 1]}))
        await asyncio.to_thread(fleet.wait_for_leaders, "later", 1)
        await one.write()
        await eventually(lambda: _is(one.lag(), 0))
        assert await one.is_in("orders", "later") == 0
        assert not sampling.done()
        sampling.cancel()
        assert one.isr_least == 2

        # A restart undoes it.
        await asyncio.to_thread(fleet.restart, "b2")
        await eventually(lambda: _is(one.is_in("orders", "later"), PARTITIONS + 1))
        assert not (await registrations(controllers))[SICK].excluded


async def _is(value: Any, expected: int) -> bool:
    return bool(await value == expected)


async def _leads_alone(one: Cluster) -> bool:
    (only,) = await one.partitions("alone")
    return only.leader == SICK


class Granting:
    """A controller that grants the shutdown at once, as for a broker that leads nothing."""

    async def call(self, api: str, body: Any, **_: Any) -> dict[str, Any]:
        if api == "BrokerHeartbeat":
            assert (body["CurrentMetadataOffset"], body["WantShutDown"]) == (41, True)
            return {"ErrorCode": 0, "ShouldShutDown": True}
        partition = {"ErrorCode": 0, "LeaderId": 1001, "LeaderEpoch": 3, "HighWatermark": 42}
        voters: dict[str, list[Any]] = {"CurrentVoters": [], "Observers": []}
        partitions = [{**partition, **voters}]
        return {"ErrorCode": 0, "Topics": [{"Partitions": partitions}], "Nodes": []}


async def test_a_shutdown_that_is_granted_at_once_excludes_nothing() -> None:
    registration = Registration(SICK, 5, fenced=False, shutting_down=False)
    with pytest.raises(ExclusionIneffective, match="it led no partition"):
        await isr_exclusion._announce_shutdown(cast("Client", Granting()), registration)
