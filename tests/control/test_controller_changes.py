"""A request to change controllers is refused, or performed step by step, by what the quorum shows."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from penstock.control.operations import Step, next_step
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.control.size.controller_changes import ControllerChanges
from penstock.control.size.controller_steps import ControllerSteps
from penstock.control.step_outcome import Pending
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.fleet.local_fleet import load_fleet
from penstock.kafka import quorum
from penstock.kafka.quorum import NO_DIRECTORY, Quorum, Replica
from penstock.model.entities import Operation
from penstock.model.errors.control import LimitReached
from penstock.model.errors.fleet import (
    ControllerMajority,
    ControllerNotJoined,
    ControllersCombined,
    ControllersElsewhere,
    ControllerUnknown,
    QuorumStatic,
)
from penstock.model.ids import PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.in_memory_plane import InMemoryPlane
from tests.fleet.test_resize import controllers_in, fleet_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from penstock.fleet.layout import Layout


@dataclass
class KafkaQuorum:
    """The voters and observers of a cluster, in memory."""

    voters: dict[int, UUID] = field(default_factory=dict)
    observers: dict[int, UUID] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    changes: list[str] = field(default_factory=list)

    async def describe(self, *_: object, **__: object) -> Quorum:
        def replicas(nodes: dict[int, UUID]) -> tuple[Replica, ...]:
            return tuple(Replica(n, d, 9, 0, 0 if n in self.behind else 90_000) for n, d in nodes.items())

        return Quorum(min(self.voters), 1, 9, replicas(self.voters), replicas(self.observers), {})

    async def add_voter(self, _: object, node: int, directory: UUID, *__: object, **___: object) -> None:
        assert self.observers.pop(node) == directory
        self.voters[node] = directory
        self.changes.append(f"+{node}")

    async def remove_voter(self, _: object, node: int, directory: UUID, **__: object) -> None:
        assert self.voters.pop(node) == directory
        self.changes.append(f"-{node}")


@dataclass
class Harness:
    layout: Layout
    kafka: KafkaQuorum
    plane: InMemoryPlane
    clusters: Clusters

    @property
    def changes(self) -> ControllerChanges:
        return ControllerChanges(self.plane, self.clusters, self.layout)

    def remove(self, *controllers: int) -> Coroutine[Any, Any, Any]:
        return self.changes.remove(PHYSICAL, controllers, actor="test")

    def disk(self, node: int, directory: UUID) -> None:
        """As if the supervisor had formatted the disk of a controller, and started it."""
        meta = next(n for n in load_fleet(self.layout).nodes if n.spec.id == node).layout.meta
        meta.parent.mkdir(parents=True, exist_ok=True)
        text = base64.urlsafe_b64encode(directory.bytes).decode().rstrip("=")
        meta.write_text(f"directory.id={text}\n")

    async def perform(self, operation: Operation) -> list[str]:
        """Every step up to the end, or up to one that waits; returns what it waits for."""
        steps = ControllerSteps(self.clusters, lambda: self.plane.registry, self.layout)
        while (step := next_step(operation)) is not None:
            outcome = await steps.perform(step, operation)
            if isinstance(outcome, Pending):
                return [outcome.detail]
            operation = operation.changed(1, steps_done=operation.steps_done + 1)
        return []


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Harness]:
    def made(voters: int = 3, *, provider: str = "local", **shape: Any) -> Harness:
        layout = fleet_of(tmp_path, **({"controllers": voters} | shape))
        kafka = KafkaQuorum({1001 + n: UUID(int=n + 1) for n in range(voters)})
        for name in ("describe", "add_voter", "remove_voter"):
            monkeypatch.setattr(quorum, name, getattr(kafka, name))
        memory = InMemoryControl.with_cells(provider=provider)
        plane = InMemoryPlane(memory, completes=False)
        provided = ProvidedCluster(
            PhysicalClusterId(PHYSICAL), "home", provider, "127.0.0.1:1", PlatformKey(bytes(32)), kafka_id="k"
        )
        return Harness(layout, kafka, plane, Clusters((provided,)))

    return made


async def test_added_controllers_become_voters_once_they_have_the_metadata_log(
    make: Callable[..., Harness],
) -> None:
    harness = make(1)
    decided = await harness.changes.add(PHYSICAL, 2, actor="test")
    operation = decided.operation

    assert await harness.perform(operation) == ["controller 1002, 1003 starts"]
    for node in (1002, 1003):
        harness.disk(node, UUID(int=node))
        harness.kafka.observers[node] = UUID(int=node)
    harness.kafka.behind = {1003}
    assert await harness.perform(operation) == ["controller 1003 copies the metadata log"]
    harness.kafka.behind = set()
    assert await harness.perform(operation) == []
    assert await harness.perform(operation) == []

    assert harness.kafka.changes == ["+1002", "+1003"]
    assert controllers_in(harness.layout) == {"c1001": "a", "c1002": "b", "c1003": "c"}
    assert harness.clusters.get(PHYSICAL).controllers.count(",") == 2


async def test_removed_controllers_leave_the_quorum_before_they_stop(make: Callable[..., Harness]) -> None:
    harness = make()
    decided = await harness.remove(1001, 1003)

    assert await harness.perform(decided.operation) == []
    assert await harness.perform(decided.operation) == []

    assert harness.kafka.changes == ["-1003", "-1001"]  # the active one last
    assert controllers_in(harness.layout) == {"c1002": "b"}


async def test_a_removed_controller_is_not_listed_while_kafka_still_lists_it(
    make: Callable[..., Harness],
) -> None:
    harness = make()
    harness.kafka.observers = {1004: UUID(int=4)}

    assert [row.id for row in await harness.changes.rows(PHYSICAL)] == [1001, 1002, 1003]


async def test_a_replaced_controller_joins_with_its_new_disk_only(make: Callable[..., Harness]) -> None:
    harness = make()
    harness.kafka.behind = {1002}
    decided = await harness.changes.replace(PHYSICAL, 1002, actor="test")
    harness.disk(1002, UUID(int=2))

    assert await harness.perform(decided.operation) == ["controller 1002 starts"]
    harness.kafka.observers[1002] = UUID(int=2)  # the old process is still listed
    harness.disk(1002, UUID(int=77))
    later = decided.operation.changed(1, steps_done=3)
    assert await harness.perform(later) == ["controller 1002 starts"]
    harness.kafka.observers, harness.kafka.behind = {1002: UUID(int=77)}, set()
    assert await harness.perform(later) == []

    assert harness.kafka.voters[1002] == UUID(int=77)


async def test_neither_process_nor_disk_of_a_voter_is_touched(make: Callable[..., Harness]) -> None:
    harness = make()
    decided = await harness.remove(1002)
    await harness.perform(decided.operation.changed(1, steps_done=3))
    harness.kafka.voters[1002] = UUID(int=99)  # joined again meanwhile, with another disk

    for step in (Step.STOP, Step.FORGET):
        steps = ControllerSteps(harness.clusters, lambda: harness.plane.registry, harness.layout)
        with pytest.raises(ControllerNotJoined):
            await steps.perform(step, decided.operation)
    assert "c1002" in controllers_in(harness.layout)


async def test_controllers_never_leave_below_a_majority(make: Callable[..., Harness]) -> None:
    harness = make()
    harness.kafka.behind = {1003}
    before = harness.plane.registry.export()

    with pytest.raises(ControllerMajority):
        await harness.remove(1002)
    with pytest.raises(ControllerMajority):
        await harness.changes.replace(PHYSICAL, 1001, actor="test")

    assert harness.plane.registry.export() == before


async def test_what_cannot_be_changed_is_refused_with_the_way_out(make: Callable[..., Harness]) -> None:
    with pytest.raises(ControllerUnknown, match="no controller 9"):
        await make().remove(9)
    harness = make()
    with pytest.raises(LimitReached):
        await harness.changes.add(PHYSICAL, 7, actor="test")
    harness.kafka.voters = dict.fromkeys(harness.kafka.voters, NO_DIRECTORY)
    with pytest.raises(QuorumStatic, match="static quorum") as caught:
        await harness.changes.add(PHYSICAL, 2, actor="test")
    assert "finalize" in caught.value.advice


async def test_controllers_that_are_brokers_or_run_elsewhere_are_refused(
    make: Callable[..., Harness],
) -> None:
    with pytest.raises(ControllersElsewhere):
        await make(provider="adopted").remove(1002)
    (row, *_) = await make(provider="adopted").changes.rows(PHYSICAL)
    assert (row.id, row.role) == (1001, "active")


async def test_combined_nodes_keep_their_number(tmp_path: Path, make: Callable[..., Harness]) -> None:
    harness = make()
    harness.layout = fleet_of(tmp_path / "combined", combined=True, brokers=1, zones=["a"])
    with pytest.raises(ControllersCombined):
        await harness.changes.add(PHYSICAL, 2, actor="test")
    assert 1 in {row.id for row in await harness.changes.rows(PHYSICAL)}


async def test_a_repeated_request_starts_one_change(make: Callable[..., Harness]) -> None:
    harness = make(1)
    first, second = [
        await harness.changes.add(PHYSICAL, 2, actor="test", request="r", fingerprint="f") for _ in range(2)
    ]
    assert second.repeated
    assert first.operation.id == second.operation.id
    assert len(list(harness.plane.registry.all(Operation))) == 1
