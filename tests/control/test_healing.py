"""Modes of healing, what else holds it up, and a round over an in-memory control plane."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from penstock.audit.healing import Demotion, HealingMode, Verdict
from penstock.balance.executing import Observation, PartitionState
from penstock.control.health import healing_service
from penstock.control.health.broker_states import set_status
from penstock.control.health.healing import acted_ms, demoted_by_healing, mode_of, other_work, set_healing
from penstock.control.health.healing_service import ClusterHealing, HealingService
from penstock.control.health.interventions import open_intervention
from penstock.control.registry import Put
from penstock.model.durability import FindingRecord, FindingState, Intent, Severity
from penstock.model.entities import Actor, BrokerStatus, OpenIntervention, Operation, PhysicalCluster
from penstock.model.errors.wire import BrokerUnreachable
from penstock.model.ids import BrokerId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.in_memory_plane import InMemoryPlane

if TYPE_CHECKING:
    from tests.control.in_memory_plane import Api

FINDING = FindingRecord(
    "3f9a000000000000", "log-start-unexplained", Severity.CRITICAL, "c", "partition/AAAAAAAAAAAAAAAAAAAAAQ/0",
    "offsets 0 to 99 are gone", 0, 99, "a", 1, 1, evidence={"broker": 1}, topic_name="orders",
)  # fmt: skip
KEY = ("orders", 0)
STATE = PartitionState(str(UUID(int=1)), (1, 2, 3), (1, 2, 3), 1)
STARTS = {1: 100, 2: 0, 3: 0}


class Round:
    """A service whose cluster has one corrupt leader, broker 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: HealingMode) -> None:
        self.plane = InMemoryPlane()
        self.findings = [FINDING]
        self.state = STATE
        self.starts = dict(STARTS)
        self.intents: list[tuple[str, Intent]] = []
        memory = self.plane.memory
        memory.accept(set_healing(memory.registry, memory.context(), PHYSICAL, mode))
        round_ = self

        class Log:
            def __init__(self, client: object) -> None:
                del client

            async def record(self, planned: list[tuple[str, Intent]]) -> None:
                assert not demoted_by_healing(round_.plane.registry, PHYSICAL), "acted before the intent"
                round_.intents += planned

        async def observe(*_: object) -> Observation:
            return Observation({KEY: self.state}, frozenset({1, 2, 3}))

        async def list_own(_: object, broker: int, keys: list[Any], *_a: Any, **_k: Any) -> dict[Any, Any]:
            return dict.fromkeys(keys, (self.starts[broker], 0))

        async def min_isr(*_: object) -> dict[str, int]:
            return {"orders": 2}

        monkeypatch.setattr(healing_service, "IntentLog", Log)
        monkeypatch.setattr(healing_service, "observe", observe)
        monkeypatch.setattr(healing_service, "list_own_offsets", list_own)
        monkeypatch.setattr(healing_service, "_min_isr", min_isr)
        self.service = HealingService(
            self.plane,
            cast("Any", SimpleNamespace(client=lambda cluster: None, known=())),
            cast("Any", self),
            lambda: cast("Any", self.plane.plans),
            lambda: True,
        )

    async def of_cluster(self, cluster: str) -> list[FindingRecord]:
        assert cluster == PHYSICAL
        return self.findings

    def fail(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        """Rounds raise this."""

        async def observe(*_: object) -> Observation:
            raise error

        monkeypatch.setattr(healing_service, "observe", observe)

    def __call__(self) -> Verdict:
        asyncio.run(self.service.run_round(PHYSICAL))
        return self.service.known[PHYSICAL].verdict

    @property
    def demoted(self) -> frozenset[int]:
        return demoted_by_healing(self.plane.registry, PHYSICAL)

    @property
    def plans(self) -> list[tuple[str, tuple[int, ...]]]:
        """Purpose and replicas after the only move of each."""
        documents = self.plane.plans.documents
        every = [documents.document(each) for each in documents.headers]
        return [(each.header.purpose, each.moves[0].after) for each in every if each is not None]


def test_with_act_a_corrupt_leader_is_demoted_after_its_intent_and_leadership_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Round(monkeypatch, HealingMode.ACT)

    one()

    assert one.demoted == {1}
    assert one.plans == [("demote", (2, 3, 1))]
    assert [(subject, intent.action, intent.actor) for subject, intent in one.intents] == [
        ("named/orders/0", "heal-demote", "audit")
    ]
    (started,) = [each for each in one.plane.registry.all(Operation) if each.action == "plan.run"]
    assert started.actor == "audit"


def test_another_round_changes_nothing_while_the_plan_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(monkeypatch, HealingMode.ACT)
    one()
    one()
    assert (one.demoted, len(one.plans), len(one.intents)) == (frozenset({1}), 1, 1)


def test_a_successor_moves_leadership_of_a_broker_that_was_demoted_by_its_predecessor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It died at `audit.heal.decided`."""
    one = Round(monkeypatch, HealingMode.ACT)
    memory = one.plane.memory
    context = replace(memory.context(), actor="audit")
    memory.accept(set_status(memory.registry, context, PHYSICAL, 1, BrokerStatus.DEMOTED, "audit: 3f9a"))

    one()

    assert one.plans == [("demote", (2, 3, 1))]


def test_with_ask_the_commands_are_proposed_and_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(monkeypatch, HealingMode.ASK)

    verdict = one()

    assert verdict.demotion is not None
    assert verdict.demotion.commands == ('penstock broker demote 1 --reason "audit finding 3f9a0000"',)
    assert (one.demoted, one.plans, one.intents) == (frozenset(), [], [])


def test_with_off_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(monkeypatch, HealingMode.OFF)
    assert one() == Verdict()


def test_a_broker_is_restored_when_its_finding_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(monkeypatch, HealingMode.ACT)
    one()
    one.findings = [replace(FINDING, state=FindingState.RESOLVED)]

    one()

    assert one.demoted == frozenset()


def test_a_broker_stays_demoted_while_no_finding_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the topic of findings were missing."""
    one = Round(monkeypatch, HealingMode.ACT)
    one()
    one.findings = []

    one()

    assert one.demoted == {1}
    assert [purpose for purpose, _ in one.plans] == ["demote"]


@pytest.mark.parametrize(
    "other", [replace(STATE, topic_id=str(UUID(int=2))), replace(STATE, replicas=(2, 3))]
)
def test_a_topic_that_was_created_again_or_has_moved_away_accuses_no_broker(
    monkeypatch: pytest.MonkeyPatch, other: PartitionState
) -> None:
    one = Round(monkeypatch, HealingMode.ACT)
    one.state = other
    assert one() == Verdict()


def test_a_partition_that_is_being_moved_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(monkeypatch, HealingMode.ACT)
    one.state = replace(STATE, reassigning=True)
    assert one().withheld == {FINDING.id: "orders-0 is being moved"}
    assert one.demoted == frozenset()


@pytest.mark.parametrize(
    ("actor", "more", "expected"),
    [
        (Actor.ROLL, {}, "a roll is under way (why)"),
        (Actor.HEALTH, {"brokers": (BrokerId(1),)}, "health has taken broker 1"),
        (Actor.HEALTH, {"brokers": (BrokerId(2),)}, ""),
        (Actor.RESTORE, {"partitions": ("orders-0",)}, "restore works on orders-0"),
        (Actor.LINK, {"partitions": ("orders-1",)}, ""),
        (Actor.BALANCE, {"brokers": (BrokerId(1),)}, "balance works on orders-0"),
    ],
)
def test_other_interventions_come_first(actor: Actor, more: dict[str, Any], expected: str) -> None:
    memory = InMemoryControl.with_cells()
    request = OpenIntervention(actor, "key", "why", 0, **more)
    memory.accept(open_intervention(memory.registry, memory.context(), PHYSICAL, request))

    now_ms = int(time.time() * 1000)

    assert other_work(memory.registry, PHYSICAL, "orders-0", 1, now_ms) == expected


def test_actions_of_healing_count_and_those_of_others_do_not() -> None:
    memory = InMemoryControl.with_cells()
    for actor, broker in (("audit", 1), ("health", 1), ("audit", 2)):
        context = replace(memory.context(), actor=actor)
        memory.accept(set_status(memory.registry, context, PHYSICAL, broker, BrokerStatus.DEMOTED, ""))

    assert len(acted_ms(memory.registry, PHYSICAL)) == 2
    assert demoted_by_healing(memory.registry, PHYSICAL) == {1, 2}
    assert acted_ms(memory.registry, "pkc-zzzzzz") == ()


def test_a_mode_of_a_newer_control_plane_is_off() -> None:
    memory = InMemoryControl.with_cells()
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)
    assert mode_of(physical) is HealingMode.ASK
    memory.registry.accept([Put(physical.changed(1, healing_mode="from-the-future"))])
    assert mode_of(memory.registry.need(PhysicalCluster, PHYSICAL)) is HealingMode.OFF


FAILURES = [ValueError("a defect"), BrokerUnreachable(address="b1:9092", reason="gone")]


@pytest.mark.parametrize("error", FAILURES)
def test_a_failed_round_is_shown_until_one_succeeds(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one = Round(monkeypatch, HealingMode.ACT)
    attempt = one.service._try_round

    with monkeypatch.context() as broken:
        one.fail(broken, error)
        asyncio.run(attempt(PHYSICAL))
    shown = one.service.known[PHYSICAL].failure
    asyncio.run(attempt(PHYSICAL))

    assert str(error) in shown
    assert one.service.known[PHYSICAL].failure == ""
    assert one.demoted == {1}


def test_the_api_shows_what_healing_proposes_and_sets_its_mode(api: Api) -> None:
    path = f"/physical-clusters/{PHYSICAL}/healing"
    api.plane.healing.known = {
        PHYSICAL: ClusterHealing(Verdict(Demotion(1, (FINDING,)), {"4" * 16: "a roll is under way"}))
    }

    before = api("GET", path).json()
    changed = api("PUT", path, {"mode": "act"})

    assert changed.status_code == 202, changed.text
    assert before == {
        "physical_cluster": PHYSICAL, "mode": "ask", "demoted": [], "failure": "",
        "proposal": {
            "broker": 1, "findings": [FINDING.id],
            "commands": ['penstock broker demote 1 --reason "audit finding 3f9a0000"'],
        },
        "withheld": {"4" * 16: "a roll is under way"},
    }  # fmt: skip
    assert api("GET", path).json()["mode"] == "act"
