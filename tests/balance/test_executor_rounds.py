"""Rounds of the executor on a cluster in memory, whose calls fail on request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance import execute
from penstock.balance import replication_throttle as throttle
from penstock.balance.execute import Executor
from penstock.balance.executing import Health, Observation, PartitionState
from penstock.balance.plan_document import Origin, PlannedMove, new_document
from penstock.balance.plan_job import LeaderReturnJob, PlanJob
from penstock.kafka.admin import reassignments
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors.wire import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.model.errors import PenstockError

MOVE = PlannedMove("orders", "t1", 0, (1, 2), (3, 2), bytes=10)
KEY = TopicPartition("orders", 0)


def lost() -> BrokerUnreachable:
    return BrokerUnreachable(address="controller:1", reason="it did not respond in time")


@dataclass
class Cluster:
    """One partition, and the rates of brokers."""

    state: PartitionState = field(default_factory=lambda: PartitionState("t1", (1, 2), (1, 2), 1, 10))
    rates: dict[int, float] = field(default_factory=dict)
    failing: list[PenstockError] = field(default_factory=list)  # the next calls that start a move
    completes: bool = True

    def seen(self) -> Observation:
        moving = frozenset({KEY}) if self.state.reassigning else frozenset[TopicPartition]()
        return Observation({KEY: self.state}, frozenset({1, 2, 3}), moving)

    async def observe(self, *_: object) -> Observation:
        seen = self.seen()
        if self.state.reassigning and self.completes:
            self.state = PartitionState("t1", (3, 2), (3, 2), 3, 10)
        return seen

    async def alter(self, _client: object, targets: Mapping[TopicPartition, Any], **_: object) -> object:
        if self.failing:
            raise self.failing.pop()
        self.state = replace(self.state, replicas=(3, 2, 1), adding=(3,), removing=(1,), reassigning=True)
        return dict.fromkeys(targets)

    async def set_rates(self, _client: object, brokers: Collection[int], rate: float) -> set[int]:
        self.rates |= dict.fromkeys(brokers, rate)
        return set()

    async def remove_rates(self, _client: object, brokers: Collection[int]) -> set[int]:
        for broker in brokers:
            self.rates.pop(broker, None)
        return set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    async def health(*_: object) -> Health:
        return Health()

    async def sized(_client: object, seen: Observation, _keys: Sequence[object]) -> Observation:
        return seen

    async def listed(*_: object) -> None:
        """Lists of throttled replicas are those of other tests."""

    monkeypatch.setattr(execute, "observe", made.observe)
    monkeypatch.setattr(execute, "cluster_health", health)
    monkeypatch.setattr(execute, "with_sizes", sized)
    monkeypatch.setattr(reassignments, "alter", made.alter)
    monkeypatch.setattr(throttle, "set_rates", made.set_rates)
    monkeypatch.setattr(throttle, "remove_rates", made.remove_rates)
    monkeypatch.setattr(throttle, "set_throttled", listed)
    return made


@pytest.fixture
def executor() -> Executor:
    client: Any = None
    return Executor(client, poll_seconds=0.001)


def job(rate: float = 50e6) -> PlanJob:
    return PlanJob(new_document([MOVE], Origin("plan-1", "pkc-1", 0, "test", "balance"), rate=rate))


async def test_a_plan_whose_start_got_no_response_moves_everything_when_it_runs_again(
    cluster: Cluster, executor: Executor
) -> None:
    cluster.failing = [lost()]
    plan = job()
    with pytest.raises(BrokerUnreachable):
        await executor.run(plan)
    assert not executor.memory.started  # else the move would look cancelled by another client

    await executor.run(plan)

    assert (plan.progress.done, plan.dropped) == (1, {})
    assert cluster.state.replicas == (3, 2)


async def test_rates_of_a_job_that_failed_are_removed(cluster: Cluster, executor: Executor) -> None:
    alive = cluster.seen().alive
    await executor.tidy(alive)
    cluster.failing = [lost()]
    with pytest.raises(BrokerUnreachable):
        await executor.run(job())
    assert cluster.rates

    await executor.tidy(alive)

    assert not cluster.rates


async def test_a_successor_throttles_what_its_predecessor_started(
    cluster: Cluster, executor: Executor
) -> None:
    await cluster.alter(None, {KEY: (3, 2)})
    cluster.completes = False
    await executor.tidy(cluster.seen().alive)  # as at the start of a leadership term

    running = asyncio.create_task(executor.run(job()))
    async with asyncio.timeout(10):
        while cluster.rates.keys() != {1, 2, 3}:
            await asyncio.sleep(0.001)
    cluster.completes = True
    await running

    assert not cluster.rates


async def test_leaders_that_return_do_not_raise_the_rate_of_a_slow_plan(
    cluster: Cluster, executor: Executor
) -> None:
    await cluster.alter(None, {KEY: (3, 2)})
    cluster.completes = False
    led = PlannedMove("orders", "t1", 0, (1, 2), (1, 2))
    running = [asyncio.create_task(executor.run(each)) for each in (job(2e6), LeaderReturnJob([led]))]
    async with asyncio.timeout(10):
        while not cluster.rates:
            await asyncio.sleep(0.001)
    rates = set(cluster.rates.values())
    cluster.completes = True
    await asyncio.gather(*running)

    assert rates == {2e6}
