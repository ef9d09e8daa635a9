"""Checks before a roll: which nodes, what is refused, and what an operator may accept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from penstock.audit.intents import IntentLog
from penstock.control.physical.cluster_access import Clusters
from penstock.control.physical.roll_nodes import RemoteNodes, roll_nodes
from penstock.control.rolling import roll_planning, roll_service, rolls
from penstock.control.rolling.roll_observation import ClusterSeen
from penstock.control.rolling.roll_planning import RollPlanner, RollSelection
from penstock.control.rolling.roll_service import RollSupport, apply_dynamic, make_watch
from penstock.fleet.rolls.roll_batches import Partition
from penstock.fleet.rolls.rolling import Member, NodeSeen, Observation, QuorumSeen
from penstock.kafka.admin import configs
from penstock.model.durability import Intent
from penstock.model.entities import PhysicalCluster
from penstock.model.errors.fleet import (
    ControllersUnreachable,
    NodeUnknown,
    NothingToRoll,
    RightsMissing,
    RollInterrupts,
    RollRefused,
    RollRunning,
    SettingNotApplied,
)
from tests.control.in_memory_control import PHYSICAL, InMemoryControl

UP = NodeSeen(alive=True, ready=True)
MEMBERS = (*(Member(n, "abc"[n - 1]) for n in (1, 2, 3)), Member(9, "a", broker=False, controller=True))
SAFE = {("orders", 0): Partition((1, 2, 3), frozenset((1, 2, 3)), 1, min_isr=2)}
ALONE = QuorumSeen(9, frozenset((9,)), frozenset((9,)))


@dataclass
class FakeWatch:
    """A cluster that runs elsewhere."""

    nodes: RemoteNodes
    members: tuple[Member, ...] = MEMBERS
    observation: Observation = field(
        default_factory=lambda: Observation({m.id: UP for m in MEMBERS}, SAFE, ALONE)
    )
    client: Any = None
    restore: str = ""

    async def restoring(self) -> str:
        return self.restore

    async def observe(self, *_: object) -> ClusterSeen:
        return ClusterSeen(self.members, self.observation, {})

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def memory() -> InMemoryControl:
    return InMemoryControl.with_cells()


@pytest.fixture
def watch(memory: InMemoryControl, monkeypatch: pytest.MonkeyPatch) -> FakeWatch:
    made = FakeWatch(RemoteNodes(memory.registry.need(PhysicalCluster, PHYSICAL)))

    async def make(*_: object) -> FakeWatch:
        return made

    monkeypatch.setattr(roll_planning, "make_watch", make)
    return made


@pytest.fixture
def planner(memory: InMemoryControl, watch: FakeWatch) -> RollPlanner:
    del watch
    return RollPlanner(lambda: memory.registry, Clusters(()), RollSupport())


def selection(*nodes: int, **more: Any) -> RollSelection:
    return RollSelection(PHYSICAL, nodes, **more)


async def test_a_plan_has_the_batches_in_their_order_and_an_estimate(planner: RollPlanner) -> None:
    plan = await planner.checked(selection(1, 2, 3))
    assert plan.batches == ((1,), (2,), (3,))
    assert plan.request.scope == (1, 2, 3)
    assert plan.request.estimate_seconds == 3 * roll_service.RESTART_SECONDS


async def test_zones_select_their_brokers(planner: RollPlanner) -> None:
    assert (await planner.plan(selection(zones=("a",)))).request.scope == (1,)
    with pytest.raises(RollRefused, match="no zone x"):
        await planner.plan(selection(zones=("x",)))


async def test_an_unknown_node_is_refused(planner: RollPlanner) -> None:
    with pytest.raises(NodeUnknown):
        await planner.plan(selection(7))


async def test_a_selection_without_any_node_is_refused(planner: RollPlanner) -> None:
    with pytest.raises(NothingToRoll):
        await planner.plan(selection(9, zones=("a",)))


async def test_the_only_controller_restarts_only_by_flag(planner: RollPlanner) -> None:
    with pytest.raises(RollRefused, match="controller 9 is the only one") as refused:
        await planner.checked(selection(9))
    assert "--allow-downtime" in refused.value.advice
    assert (await planner.checked(selection(9, allow_downtime=True))).batches == ((9,),)


async def test_a_second_roll_is_refused(planner: RollPlanner, memory: InMemoryControl) -> None:
    request = rolls.RollRequest(PHYSICAL, (1,))
    memory.accept(rolls.start_roll(memory.registry, memory.context(), request))
    with pytest.raises(RollRunning):
        await planner.checked(selection(1))


def with_partition(watch: FakeWatch, topic: str, partition: Partition) -> None:
    partitions = {**watch.observation.partitions, (topic, 0): partition}
    watch.observation = replace(watch.observation, partitions=partitions)


async def test_a_cluster_below_its_minimum_is_not_rolled(planner: RollPlanner, watch: FakeWatch) -> None:
    with_partition(watch, "under", Partition((2, 3, 1), frozenset((2,)), 2, min_isr=2))
    with pytest.raises(RollRefused, match="under-0 is below its minimum"):
        await planner.checked(selection(1))


async def test_a_broker_that_is_down_elsewhere_blocks_a_roll(planner: RollPlanner, watch: FakeWatch) -> None:
    down = NodeSeen(alive=False, ready=False)
    watch.observation = replace(watch.observation, nodes={**watch.observation.nodes, 3: down})
    with pytest.raises(RollRefused, match="broker 3 is down"):
        await planner.checked(selection(1))


async def test_a_cluster_is_not_rolled_during_a_restore(planner: RollPlanner, watch: FakeWatch) -> None:
    watch.restore = "res-1"
    with pytest.raises(RollRefused, match="restore res-1 is running"):
        await planner.checked(selection(1))


async def test_topics_without_a_spare_replica_are_accepted_one_by_one(
    planner: RollPlanner, watch: FakeWatch
) -> None:
    with_partition(watch, "single", Partition((1,), frozenset((1,)), 1))
    with pytest.raises(RollInterrupts, match="single"):
        await planner.checked(selection(1))
    plan = await planner.checked(selection(1, allow_unavailable=("single",)))
    assert plan.at_risk == ("single-0",)
    await planner.checked(selection(2))  # it has none of its replicas


async def test_a_setting_that_a_broker_does_not_take_is_an_error(
    watch: FakeWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = configs.Entry("num.io.threads", "4", configs.Source.BROKER_DYNAMIC, False, False)

    async def describe(_client: object, resources: list[configs.Resource], **_: object) -> object:
        return {resources[0]: {entry.name: entry}}

    async def alter(_client: object, altered: dict[configs.Resource, object]) -> object:
        return dict.fromkeys(altered)

    monkeypatch.setattr(configs, "describe", describe)
    monkeypatch.setattr(configs, "alter", alter)
    monkeypatch.setattr(roll_service, "SETTING_SECONDS_MAX", -1.0)
    fake: Any = watch
    await apply_dynamic(fake, [1], {"num.io.threads": "4"})
    with pytest.raises(SettingNotApplied, match=r"has num\.io\.threads=4, not 8"):
        await apply_dynamic(fake, [1], {"num.io.threads": "8"})


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("log.retention.ms", [("named/*", Intent("config", "roll")), "altered"]),
        ("num.io.threads", ["altered"]),
    ],
)
async def test_defaults_of_topics_change_only_after_their_intent(
    watch: FakeWatch, monkeypatch: pytest.MonkeyPatch, setting: str, expected: list[object]
) -> None:
    calls: list[object] = []

    async def record(_log: IntentLog, planned: list[object]) -> None:
        calls.extend(planned)

    async def alter(_client: object, altered: dict[configs.Resource, object]) -> object:
        calls.append("altered")
        return dict.fromkeys(altered)

    monkeypatch.setattr(IntentLog, "record", record)
    monkeypatch.setattr(configs, "alter", alter)
    fake: Any = watch
    await apply_dynamic(fake, [], {setting: "5"})

    assert calls == expected


async def test_controllers_that_cannot_be_read_are_named(
    memory: InMemoryControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_: object) -> None:
            """Takes what a watch takes."""

        async def image(self) -> None:
            raise RightsMissing(principal="User:x", name="east", rights="ClusterAction", commands="")

        async def close(self) -> None:
            """Nothing is open."""

    class Provided:
        async def controllers_client(self, _client: object) -> None:
            """The watch refuses anyway."""

    monkeypatch.setattr(roll_service, "ClusterWatch", Refusing)
    monkeypatch.setattr(Clusters, "get", lambda *_: Provided())
    monkeypatch.setattr(Clusters, "client", lambda *_: None)
    with pytest.raises(ControllersUnreachable, match="ClusterAction"):
        await make_watch(Clusters(()), None, memory.registry.need(PhysicalCluster, PHYSICAL))


def test_a_cluster_elsewhere_is_rolled_by_hand_without_a_command(memory: InMemoryControl) -> None:
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)
    nodes = roll_nodes(None, replace(physical, provider="adopted"))
    assert type(nodes.restarter).__name__ == "ByHand"
    commanded = RemoteNodes(physical, "ssh {host} restart")
    assert type(commanded.restarter).__name__ == "CommandRestarter"
