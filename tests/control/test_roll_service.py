"""Rounds of a roll in the active control plane, on a cluster in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.control.health.broker_states import state_of
from penstock.control.physical.cluster_access import Clusters
from penstock.control.physical.roll_nodes import LocalNodes, RemoteNodes
from penstock.control.rolling import roll_service, rolls
from penstock.control.rolling.roll_observation import ClusterSeen, _is_current
from penstock.control.rolling.roll_service import RollService, RollSupport, Waiting
from penstock.fleet.restarting import ProcessState
from penstock.fleet.rolls.rolling import NodeSeen, Observation, QuorumSeen
from penstock.model.entities import ConditionKind, PhysicalCluster, Roll, RolledNode, RollState
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.test_roll_planning import MEMBERS, SAFE, UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.control.decisions import Decision
    from penstock.control.registry import Registry

QUORUM = QuorumSeen(9, frozenset((9,)), frozenset((9,)))
BACK = NodeSeen(alive=True, ready=True, current=True, ordered=True)


@dataclass
class Restarter:
    orders: list[int] = field(default_factory=list)

    async def restart(self, node: int, request: str, document: str = "") -> None:
        del request, document
        self.orders.append(node)


@dataclass
class Watch:
    nodes: Any
    seen: dict[int, NodeSeen] = field(default_factory=lambda: {m.id: UP for m in MEMBERS})
    meanwhile: Callable[[], object] = lambda: None  # while the round observes

    async def observe(self, *_: object) -> ClusterSeen:
        observed = Observation(dict(self.seen), SAFE, QUORUM)
        self.meanwhile()
        return ClusterSeen(MEMBERS, observed, dict.fromkeys(self.seen, "old"))

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Rounds:
    memory: InMemoryControl
    watch: Watch
    service: RollService
    restarter: Restarter

    @property
    def roll(self) -> Roll:
        return rolls.need_roll(self.memory.registry, PHYSICAL)

    def change(self, change: str) -> None:
        memory = self.memory
        memory.accept(rolls.change_roll(memory.registry, memory.context(), PHYSICAL, change))

    async def round(self) -> str:
        outcome = await self.service.round(self.roll.id)
        return outcome.detail if isinstance(outcome, Waiting) else "ended"


def make(
    monkeypatch: pytest.MonkeyPatch, *, local: bool = True, support: RollSupport | None = None
) -> Rounds:
    memory, restarter = InMemoryControl.with_cells(), Restarter()
    request = rolls.RollRequest(PHYSICAL, (1, 2, 3), document="new", document_before="old")
    memory.accept(rolls.start_roll(memory.registry, memory.context(), request))
    nodes: Any = LocalNodes.__new__(LocalNodes) if local else RemoteNodes.__new__(RemoteNodes)
    nodes.restarter = restarter
    watch = Watch(nodes)

    async def made(*_: object) -> Watch:
        return watch

    async def propose(decide: Callable[[Registry], Decision]) -> Decision:
        return memory.accept(decide(memory.registry))

    monkeypatch.setattr(roll_service, "make_watch", made)
    executor: Any = None
    service = RollService(Clusters(()), lambda: memory.registry, propose, executor, support or RollSupport())
    return Rounds(memory, watch, service, restarter)


async def test_a_paused_roll_gives_its_orders_again_and_lets_brokers_lead_that_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = make(monkeypatch)
    await rounds.round()
    rounds.change("pause")
    assert not state_of(rounds.memory.registry, PHYSICAL, 1).leads
    rounds.restarter.orders.clear()
    rounds.watch.seen[1] = NodeSeen(alive=False, ready=False, ordered=True)
    assert await rounds.round() == "paused: paused by test"
    assert rounds.restarter.orders == [1]

    rounds.watch.seen[1] = BACK
    await rounds.round()

    assert state_of(rounds.memory.registry, PHYSICAL, 1).leads
    assert (rounds.roll.state, rounds.restarter.orders) == (RollState.PAUSED, [1])


async def test_nothing_restarts_for_a_roll_that_was_paused_while_it_was_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = make(monkeypatch)
    rounds.watch.meanwhile = lambda: rounds.change("pause")

    await rounds.round()

    assert (rounds.restarter.orders, rounds.roll.nodes) == ([], ())


async def test_a_roll_back_during_a_round_keeps_no_progress_of_the_roll_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = make(monkeypatch)
    await rounds.round()
    rounds.watch.seen[1] = BACK
    rounds.watch.meanwhile = lambda: rounds.change("back") if not rounds.roll.roll_back else None

    await rounds.round()

    assert rounds.roll.roll_back
    assert rounds.roll.nodes == ()


async def test_a_command_runs_again_only_if_it_had_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = make(monkeypatch, local=False)
    await rounds.round()
    rounds.restarter.orders.clear()

    rounds.watch.seen[1] = NodeSeen(alive=True, ready=False, ordered=True)  # perhaps it recovers its logs
    await rounds.round()
    assert rounds.restarter.orders == []
    rounds.watch.seen[1] = replace(UP, ordered=True)
    await rounds.round()
    assert rounds.restarter.orders == [1]
    rounds.change("pause")  # as a command that failed does: an operator decides
    await rounds.round()
    assert rounds.restarter.orders == [1]


@pytest.mark.parametrize("evidence", ["burning", "slow"])
async def test_a_roll_pauses_when_clients_suffer(monkeypatch: pytest.MonkeyPatch, evidence: str) -> None:
    fed: dict[str, Any] = {evidence: lambda roll: f"{roll.cluster} suffers"}
    rounds = make(monkeypatch, support=RollSupport(**fed))

    assert await rounds.round() == f"paused: {PHYSICAL} suffers"
    assert rounds.restarter.orders == []
    condition = rounds.memory.registry.need(PhysicalCluster, PHYSICAL).condition(ConditionKind.ROLL_PAUSED)
    assert condition is not None
    assert f"{PHYSICAL} suffers" in condition.detail


def test_a_process_that_health_started_after_the_rolls_one_is_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roll = replace(make(monkeypatch).roll, nodes=(RolledNode(1, "first"),))
    for request, incarnation, document, expected in (
        (roll.request, "second", "new", True),
        ("health-1", "third", "new", True),
        ("health-1", "first", "new", False),
        ("health-1", "third", "old", False),
    ):
        state = ProcessState(True, incarnation, request, document)
        assert _is_current(state, roll, 1) is expected
