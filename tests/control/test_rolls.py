"""Rolls in the registry: what is recorded before nodes restart, while they do, and when the roll ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.control.health.broker_states import set_status, state_of
from penstock.control.health.interventions import obstacles_to, open_intervention
from penstock.control.metrics import _add_roll
from penstock.control.operations import Step, next_step
from penstock.control.registry import Registry
from penstock.control.rolling import rolls
from penstock.control.rolling.roll_service import restart_seconds
from penstock.control.size import resizing
from penstock.control.size.resizing import GrowRequest
from penstock.metric_families import Samples
from penstock.model.entities import (
    Actor,
    BrokerStatus,
    ConditionKind,
    Intervention,
    OpenIntervention,
    PhysicalCluster,
    Roll,
    RolledNode,
    RollState,
)
from penstock.model.errors.fleet import (
    InterventionRefused,
    RollMissing,
    RollRefused,
    RollRunning,
    RollStateConflict,
)
from penstock.model.ids import BrokerId, Zone
from penstock.model.metric_catalogue import ROLLS
from tests.control.in_memory_control import PHYSICAL, InMemoryControl

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = rolls.RollRequest(PHYSICAL, (1, 2, 3), document="new", document_before="old")


@pytest.fixture
def memory() -> InMemoryControl:
    return InMemoryControl.with_cells()


def started(memory: InMemoryControl, request: rolls.RollRequest = REQUEST) -> Roll:
    memory.accept(rolls.start_roll(memory.registry, memory.context(), request))
    return current(memory)


def current(memory: InMemoryControl) -> Roll:
    return rolls.need_roll(memory.registry, PHYSICAL)


def ordered(memory: InMemoryControl, *nodes: int) -> Roll:
    roll = current(memory)
    incarnations = {node: f"process of {node}" for node in nodes}
    memory.accept(rolls.order_restart(memory.registry, memory.context(), roll, incarnations))
    return current(memory)


def changed(memory: InMemoryControl, change: str) -> Roll:
    memory.accept(rolls.change_roll(memory.registry, memory.context(), PHYSICAL, change))
    return current(memory)


def ended(memory: InMemoryControl) -> Roll:
    memory.registry.accept(rolls.end_roll(memory.registry, current(memory), memory.now_ms))
    return current(memory)


def condition(memory: InMemoryControl) -> str:
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)
    each = physical.condition(ConditionKind.ROLL_PAUSED)
    return "" if each is None else each.detail


def test_a_roll_is_an_operation_whose_settings_come_first(memory: InMemoryControl) -> None:
    decision = rolls.start_roll(memory.registry, memory.context(), REQUEST)
    assert decision.operation.action == "fleet.roll"
    assert next_step(decision.operation) is Step.SETTINGS


def test_a_cluster_has_one_roll_at_a_time(memory: InMemoryControl) -> None:
    started(memory)
    with pytest.raises(RollRunning):
        rolls.start_roll(memory.registry, memory.context(), REQUEST)
    ended(memory)
    assert started(memory).state is RollState.RUNNING


def test_a_restart_is_recorded_with_its_intervention_and_the_state_demoted(memory: InMemoryControl) -> None:
    started(memory)
    roll = ordered(memory, 2)

    assert [(node.id, node.incarnation) for node in roll.nodes] == [(2, "process of 2")]
    (extent,) = memory.registry.need(Intervention, PHYSICAL).open
    assert (extent.actor, extent.brokers, extent.zones) == (Actor.ROLL, (2,), ("b",))
    assert state_of(memory.registry, PHYSICAL, 2).statuses == (BrokerStatus.DEMOTED,)
    assert obstacles_to(memory.registry, PHYSICAL, Actor.BALANCE, memory.now_ms)


def test_a_roll_waits_for_health_in_another_zone(memory: InMemoryControl) -> None:
    started(memory)
    health = OpenIntervention(Actor.HEALTH, "1", "sick", 0, (BrokerId(1),), (Zone("a"),))
    memory.accept(open_intervention(memory.registry, memory.context(), PHYSICAL, health))

    with pytest.raises(InterventionRefused):
        ordered(memory, 2)
    assert current(memory).nodes == ()


def test_a_broker_in_sync_is_not_demoted_any_more_unless_by_others(memory: InMemoryControl) -> None:
    context = memory.context()
    memory.accept(set_status(memory.registry, context, PHYSICAL, 1, BrokerStatus.DEMOTED, "slow"))
    started(memory)
    ordered(memory, 1, 2)
    rows = [RolledNode(n, "", 1, 2, 3, 4, 5) for n in (1, 2)]

    memory.accept(rolls.record_progress(memory.registry, current(memory), rows, memory.now_ms))

    assert [claim.actor for claim in state_of(memory.registry, PHYSICAL, 1).claims] == ["test"]
    assert state_of(memory.registry, PHYSICAL, 2).leads


def test_a_pause_is_a_condition_with_evidence_until_it_ends(memory: InMemoryControl) -> None:
    roll = started(memory)
    paused = rolls.pause_roll(memory.registry, roll, "node 1 came back wrong", ["it ended"], memory.now_ms)
    memory.accept(paused)
    assert condition(memory) == f"{roll.id}: node 1 came back wrong; it ended"
    with pytest.raises(RollStateConflict):
        changed(memory, "pause")

    assert changed(memory, "resume").state is RollState.RUNNING
    assert condition(memory) == ""


def test_what_a_roll_observed_before_an_operator_changed_it_changes_nothing(memory: InMemoryControl) -> None:
    started(memory)
    seen = ordered(memory, 2)
    rows = [RolledNode(2, "", 1, 2, 3)]
    changed(memory, "pause")
    with pytest.raises(RollStateConflict):
        rolls.order_restart(memory.registry, memory.context(), seen, {3: "process of 3"})
    changed(memory, "back")

    late: Callable[[], object]
    for late in (
        lambda: rolls.record_progress(memory.registry, seen, rows, memory.now_ms),
        lambda: rolls.pause_roll(memory.registry, seen, "node 2 came back wrong", [], memory.now_ms),
        lambda: rolls.end_roll(memory.registry, seen, memory.now_ms),
    ):
        with pytest.raises(RollStateConflict):
            late()
    assert (current(memory).state, current(memory).nodes) == (RollState.RUNNING, ())


def test_an_abort_is_not_overwritten_by_a_pause(memory: InMemoryControl) -> None:
    seen = started(memory)
    changed(memory, "abort")
    with pytest.raises(RollStateConflict):
        rolls.pause_roll(memory.registry, seen, "the deadline has passed", [], memory.now_ms)


def test_brokers_that_lead_again_are_given_back_to_health(memory: InMemoryControl) -> None:
    started(memory)
    roll = ordered(memory, 1)
    rows = [RolledNode(1, "", 1, 2, 3, 4, 5, 6)]
    memory.accept(rolls.record_progress(memory.registry, roll, rows, memory.now_ms))

    health = OpenIntervention(Actor.HEALTH, "3", "sick", 0, (BrokerId(3),), (Zone("c"),))
    memory.accept(open_intervention(memory.registry, memory.context(), PHYSICAL, health))

    with pytest.raises(InterventionRefused):  # and the roll waits for health
        ordered(memory, 2)
    assert obstacles_to(memory.registry, PHYSICAL, Actor.BALANCE, memory.now_ms)


def test_a_cluster_is_not_rolled_while_it_is_resized_nor_resized_while_it_is_rolled() -> None:
    memory = InMemoryControl.with_cells()
    roll = started(memory)
    change: Callable[[], object]
    for change in (
        lambda: resizing.grow(memory.registry, memory.context(), PHYSICAL, GrowRequest(3)),
        lambda: resizing.shrink(memory.registry, memory.context(), PHYSICAL, [3]),
    ):
        with pytest.raises(RollRunning, match=roll.id):
            change()
    ended(memory)
    memory.accept(resizing.grow(memory.registry, memory.context(), PHYSICAL, GrowRequest(3)))
    with pytest.raises(RollRefused, match=r"fleet\.grow is under way"):
        rolls.start_roll(memory.registry, memory.context(), REQUEST)


def test_a_roll_back_restarts_what_was_restarted_with_what_it_ran_before(memory: InMemoryControl) -> None:
    started(memory)
    ordered(memory, 2)
    back = changed(memory, "back")

    assert (back.scope, back.nodes) == ((2,), ())
    assert (back.document, back.document_before) == ("old", "new")
    assert back.request != back.id
    with pytest.raises(RollStateConflict):
        changed(memory, "back")


def test_nothing_of_an_ended_roll_is_left_but_its_times(memory: InMemoryControl) -> None:
    started(memory)
    ordered(memory, 2)
    changed(memory, "abort")
    roll = ended(memory)

    assert roll.state is RollState.ABORTED
    assert memory.registry.get(Intervention, PHYSICAL) is None
    assert not memory.registry.broker_states(PHYSICAL)
    for change in ("pause", "resume", "abort", "back"):
        with pytest.raises(RollStateConflict):
            changed(memory, change)


def test_a_cluster_without_a_roll_has_none_to_change(memory: InMemoryControl) -> None:
    with pytest.raises(RollMissing):
        changed(memory, "pause")


def test_old_rolls_are_dropped(memory: InMemoryControl) -> None:
    for _ in range(rolls.ROLLS_KEPT + 3):
        started(memory)
        ended(memory)
    assert len(rolls.rolls_of(memory.registry, PHYSICAL)) == rolls.ROLLS_KEPT


def test_phases_end_one_after_the_other() -> None:
    node = RolledNode(1, ordered_ms=10)
    once = rolls.with_phases(node, stopped=True, started=False, ready=True, in_sync=True, led=True, now_ms=20)
    assert once.spans == (0.01, None, None, None, None)
    after = rolls.with_phases(
        once, stopped=False, started=True, ready=True, in_sync=True, led=False, now_ms=30
    )
    assert after.spans == (0.01, 0.01, 0.0, 0.0, None)


def test_estimates_use_the_times_of_this_clusters_rolls(memory: InMemoryControl) -> None:
    assert restart_seconds(Registry(), PHYSICAL) > 0
    started(memory)
    rows = [RolledNode(1, "", 1_000, 2_000, 3_000, 4_000, 5_000, 6_000)]
    memory.accept(rolls.record_progress(memory.registry, current(memory), rows, memory.now_ms))
    assert restart_seconds(memory.registry, PHYSICAL) == 5.0

    samples = Samples(ROLLS)
    _add_roll(samples, ended(memory))
    values = {s.labels.get("phase", s.name): s.value for family in samples for s in family.samples}
    assert values["penstock_fleet_roll_nodes_done"] == 1
    assert values["leaders"] == 1.0
