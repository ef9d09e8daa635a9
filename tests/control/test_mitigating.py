"""The effects of mitigations on brokers, with control planes that die between an intent and its effect."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.balance.executing import Observation, PartitionState
from penstock.balance.plan_document import PlanState
from penstock.control.health import mitigating, mitigations
from penstock.control.health.mitigating import Mitigating
from penstock.control.registry import Put
from penstock.fleet.restarting import ProcessState
from penstock.health.detector import Finding, HealthState
from penstock.health.mitigation import Step, Take
from penstock.kafka import isr_exclusion
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.isr_exclusion import Obstacle, Registration
from penstock.model import fault_points
from penstock.model.entities import BrokerStatus, Intervention, Mitigation, PhysicalCluster
from penstock.model.ids import BrokerId
from tests.control.in_memory_control import PHYSICAL
from tests.control.in_memory_plane import InMemoryPlane
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.registry import Registry
    from penstock.fleet.restarting import Restarter
    from penstock.model.entities import Entity

BROKER = 2
KEY = f"{PHYSICAL}/{BROKER}"
REPLICAS: tuple[int, ...] = (2, 1, 3)


class Killed(Exception):
    pass


class World:
    """One partition, the broker's process, and its registration. It outlives control planes."""

    def __init__(self, directory: Path) -> None:
        self.plane = InMemoryPlane()
        self.directory: Path | None = directory
        self.process = ProcessState(alive=True, request="first")
        self.registration = Registration(BROKER, 1, fenced=False, shutting_down=False)
        self.replicas = REPLICAS
        self.obstacles: tuple[Obstacle, ...] = ()
        self.orders: list[tuple[str, str]] = []
        self.follows_orders = True

    # As a Restarter

    async def restart(self, node: int, request: str, document: str = "") -> None:
        del node, document
        self.orders.append(("run", request))
        if self.follows_orders:
            self.process = ProcessState(alive=True, request=request)
            self.registration = replace(self.registration, epoch=2, shutting_down=False)

    async def start(self, node: int, request: str, document: str = "") -> None:
        await self.restart(node, request, document)

    async def hold(self, node: int, request: str) -> None:
        del node
        self.orders.append(("hold", request))
        self.process = ProcessState(alive=False)

    async def state(self, node: int) -> ProcessState:
        del node
        return self.process

    # As the nodes of this host

    def restarter(self, cluster: str) -> Restarter:
        del cluster
        return self

    def directory_of(self, cluster: str, broker: int) -> Path | None:
        del cluster, broker
        return self.directory

    # As Kafka

    async def observe(self, client: object) -> Observation:
        del client
        isr = (1, 3) if self.registration.excluded else (1, 2, 3)
        leader = next(each for each in self.replicas if each in isr)
        partition = PartitionState("id", self.replicas, isr, leader)
        return Observation({("orders", 0): partition}, frozenset({1, 2, 3}))

    async def exclude(self, *_: object, **__: object) -> None:
        self.registration = replace(self.registration, shutting_down=True)

    async def registrations(self, controllers: object) -> dict[int, Registration]:
        del controllers
        return {BROKER: self.registration}

    async def obstacles_now(self, *_: object, **__: object) -> tuple[Obstacle, ...]:
        return self.obstacles

    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision:
        """Plans that run end at once."""
        decided = await self.plane.decide(decision, kind, actor=actor)
        documents = self.plane.plans.documents
        for header in list(documents.headers.values()):
            document = documents.document(header.id)
            if header.state.ended or document is None:
                continue
            if decided.operation.action == "plan.run":
                self.replicas = document.moves[0].after
            ended = replace(document, header=replace(header, state=PlanState.DONE))
            self.plane.plans.add(ended)
        return decided

    @property
    def registry(self) -> Registry:
        return self.plane.registry

    # What happens

    def control_plane(self) -> Mitigating:
        nodes = cast("Any", type("Nodes", (), {"restarter": self.restarter, "directory": self.directory_of}))
        return Mitigating(self, cast("Any", Clusters()), lambda: self.plane.plans, nodes)

    def take(self, step: Step, state: HealthState = HealthState.SLOW) -> None:
        context = replace(self.plane.memory.context(), actor=mitigations.ACTOR)
        self.plane.memory.now_ms += 1_000
        taken = Take(BROKER, step, state, "why")
        self.plane.memory.accept(
            mitigations.begin_step(
                self.registry, context, PHYSICAL, taken, Finding(BROKER, state, "why"), 1.0
            )
        )

    def release(self, gave_up: str = "") -> None:
        context = replace(self.plane.memory.context(), actor=mitigations.ACTOR)
        self.plane.memory.accept(mitigations.begin_release(self.registry, context, KEY, gave_up))

    async def run(
        self, until: Callable[[World], bool], held: Collection[int] = (), rounds: Mitigating | None = None
    ) -> None:
        """Rounds of a control plane, until the condition holds."""
        plane = rounds or self.control_plane()

        async def round_() -> bool:
            plane.carry_out(PHYSICAL, held)
            await asyncio.sleep(0.01)
            return until(self)

        try:
            await eventually(round_)
        finally:
            await plane.close()

    @property
    def mitigation(self) -> Mitigation | None:
        return self.registry.get(Mitigation, KEY)


class Clusters:
    """Clients that are never called: what would call them is replaced."""

    def client(self, cluster: str) -> str:
        return cluster

    def get(self, cluster: str) -> Clusters:
        del cluster
        return self

    async def controllers_client(self, client: str) -> Closable:
        del client
        return Closable()


class Closable:
    async def close(self) -> None:
        pass


def done(world: World) -> bool:
    return world.mitigation is not None and world.mitigation.done


def released(world: World) -> bool:
    return world.mitigation is None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(mitigating, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(mitigating, "observe", made.observe)
    for name in ("exclude", "registrations", "obstacles_now"):
        monkeypatch.setattr(isr_exclusion, name, getattr(made, name))
    return made


async def killed_at(world: World, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane that dies at this point."""
    reached = asyncio.Event()

    def reach(name: str) -> None:
        if name == point:
            reached.set()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(fault_points, "reach", reach)
        plane = world.control_plane()
        plane.carry_out(PHYSICAL)
        async with asyncio.timeout(10):
            await reached.wait()
        await plane.close()


@pytest.mark.parametrize(
    ("step", "point"),
    [
        (Step.DEMOTE, mitigating.DEMOTED),
        (Step.EXCLUDE, mitigating.EXCLUDED),
        (Step.RESTART, mitigating.ORDERED),
        (Step.HOLD, mitigating.ORDERED),
    ],
)
async def test_a_step_whose_control_plane_dies_is_finished_by_the_next_and_undone_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, step: Step, point: str
) -> None:
    world.take(step)
    await killed_at(world, point, monkeypatch)
    assert not done(world)

    await world.run(done)
    assert world.process.alive

    world.release()
    await killed_at(world, mitigating.RETURNED, monkeypatch)
    await world.run(released)

    assert (world.replicas, world.registration.excluded) == (REPLICAS, False)
    assert world.registry.get(Intervention, PHYSICAL) is None
    assert BrokerId(BROKER) not in world.registry.broker_states(PHYSICAL)


async def test_a_demotion_moves_leadership_and_its_release_returns_it(world: World) -> None:
    world.take(Step.DEMOTE)
    await world.run(done)
    assert world.replicas == (1, 3, 2)
    world.release()
    await world.run(released)
    assert world.replicas == REPLICAS


async def test_leadership_does_not_return_to_a_broker_that_an_operator_has_demoted_too(world: World) -> None:
    world.take(Step.DEMOTE)
    await world.run(done)
    state = world.registry.broker_states(PHYSICAL)[BrokerId(BROKER)]
    operators = replace(state.claims[0], actor="operator/root")
    world.registry.accept([Put(state.changed(1, claims=(*state.claims, operators)))])
    world.release()
    await world.run(released)
    assert world.replicas == (1, 3, 2)
    statuses = world.registry.broker_states(PHYSICAL)[BrokerId(BROKER)].statuses
    assert statuses == (BrokerStatus.DEMOTED,)


async def test_an_exclusion_that_a_crash_of_the_broker_has_undone_is_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the mitigation has it as excluded: it is in every ISR again, and slow."""
    monkeypatch.setattr(mitigating, "EXCLUSION_SECONDS", 0.0)
    world.take(Step.EXCLUDE)
    await world.run(done)
    restarted = Registration(BROKER, 3, fenced=False, shutting_down=False)

    world.registration = restarted
    await world.run(lambda world: world.registration.excluded)

    world.registration = restarted
    rounds = iter(range(5))
    await world.run(lambda _: next(rounds) == 4, held=[BROKER])
    assert not world.registration.excluded, "an operator holds it"
    world.release()
    await world.run(released)
    assert not world.registration.excluded


async def test_a_restart_that_was_ordered_is_not_ordered_again(world: World) -> None:
    world.take(Step.RESTART)
    assert world.mitigation is not None
    request = f"health-{BROKER}-{world.mitigation.step_ms}"
    world.process = ProcessState(alive=True, request=request)
    world.obstacles = (Obstacle(TopicPartition("orders", 0), "it catches up"),)
    await world.run(done)
    assert world.orders == []


async def test_an_unsafe_restart_fails_and_changes_nothing(world: World) -> None:
    world.take(Step.HOLD)
    world.obstacles = (Obstacle(TopicPartition("orders", 0), "it is the only in-sync replica"),)
    await world.run(lambda w: w.mitigation is not None and bool(w.mitigation.failed))
    assert (world.orders, world.process.alive) == ([], True)


async def test_a_held_broker_starts_once_its_directory_can_be_written(world: World, tmp_path: Path) -> None:
    world.directory = tmp_path / "unmounted"
    world.take(Step.HOLD)
    await world.run(lambda w: len(w.orders) > 2)  # the order is renewed
    assert {order for order, _ in world.orders} == {"hold"}
    assert not world.process.alive

    world.directory.mkdir()
    await world.run(done)

    assert (world.orders[-1][0], world.process.alive) == ("run", True)


async def test_nothing_is_done_to_a_broker_that_an_operator_holds(world: World) -> None:
    world.follows_orders = False
    world.take(Step.RESTART)
    plane = world.control_plane()
    plane.carry_out(PHYSICAL)
    await eventually(lambda: asyncio.sleep(0.01, bool(world.orders)))
    plane.carry_out(PHYSICAL, {BROKER})
    ((_, task),) = plane._running.values()
    await asyncio.wait({task})
    plane.carry_out(PHYSICAL, {BROKER})
    assert task.cancelled()
    assert [each for _, each in plane._running.values()] == [task]
    world.follows_orders = True
    await world.run(done, rounds=plane)


async def test_a_release_that_another_step_replaces_ends_nothing(world: World) -> None:
    world.take(Step.EXCLUDE)
    await world.run(done)
    world.follows_orders = False
    world.release()
    plane = world.control_plane()
    plane.carry_out(PHYSICAL)
    await eventually(lambda: asyncio.sleep(0.01, bool(world.orders)))

    world.take(Step.DEMOTE, HealthState.DOWN)
    await world.run(done, rounds=plane)

    assert world.mitigation is not None
    assert (world.mitigation.steps, world.replicas) == (("exclude", "demote"), (1, 3, 2))
    world.follows_orders = True
    world.release()
    await world.run(released)
    assert (world.registration.excluded, world.replicas) == (False, REPLICAS)


async def test_a_control_plane_that_is_not_active_any_more_does_nothing_more(world: World) -> None:
    world.follows_orders = False
    world.take(Step.RESTART)
    plane = world.control_plane()
    plane.carry_out(PHYSICAL)
    await eventually(lambda: asyncio.sleep(0.01, bool(world.orders)))
    plane.stop(PHYSICAL)
    ((_, task),) = plane._running.values()
    await asyncio.wait({task})
    assert task.cancelled()
    await plane.close()


async def test_a_broker_that_left_the_cluster_needs_no_effects_to_be_let_go(world: World) -> None:
    world.take(Step.EXCLUDE)
    await world.run(done)
    physical = world.registry.need(PhysicalCluster, PHYSICAL)
    left = tuple(each for each in physical.brokers if each.id != BROKER)
    world.registry.accept([Put(physical.changed(1, brokers=left))])
    world.release("it has left the cluster")
    await world.run(released)
    assert world.orders == []
