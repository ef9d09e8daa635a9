"""Mitigations in the registry: intents, outcomes, releases, incidents, holds; and their routes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.executing import Observation, PartitionState
from penstock.control.health import health_settings, incidents, mitigations
from penstock.control.health.broker_states import set_status
from penstock.control.health.interventions import open_intervention
from penstock.control.health.mitigating import demotion, in_sync
from penstock.control.registry import Drop, Put
from penstock.health.detector import Finding, HealthState
from penstock.health.mitigation import LATE_SECONDS, HealthMode, Step, Take
from penstock.model.entities import (
    Actor,
    BrokerHold,
    BrokerStatus,
    Incident,
    IncidentState,
    Intervention,
    Mitigation,
    OpenIntervention,
    PhysicalCluster,
)
from penstock.model.errors.balance import BrokerMissing
from penstock.model.errors.fleet import InterventionRefused
from penstock.model.errors.health import ActionUnknown, HoldInvalid, IncidentClosed, NotHeld, TargetInvalid
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.in_memory_control import PHYSICAL
from tests.control.in_memory_plane import InMemoryPlane, code

if TYPE_CHECKING:
    from penstock.control.decisions import DecisionContext
    from tests.control.in_memory_plane import Api

FINDING = Finding(2, HealthState.SLOW, "its writes take 9 times as long", ("down: it responds",))
KEY = f"{PHYSICAL}/2"


def take(step: Step, state: HealthState = HealthState.SLOW) -> Take:
    return Take(2, step, state, "its writes take 9 times as long")


def context(plane: InMemoryPlane, now_ms: int = 1_000_000) -> DecisionContext:
    return replace(plane.memory.context(), actor=mitigations.ACTOR, now_ms=now_ms)


def begin(plane: InMemoryPlane, step: Step, *, now_ms: int = 1_000_000, hurt: float = 1.0) -> None:
    decided = mitigations.begin_step(
        plane.registry, context(plane, now_ms), PHYSICAL, take(step), FINDING, hurt
    )
    plane.memory.accept(decided)


def statuses(plane: InMemoryPlane) -> tuple[BrokerStatus, ...]:
    state = plane.registry.broker_states(PHYSICAL).get(BrokerId(2))
    return () if state is None else state.statuses


def test_a_step_commits_everything_that_belongs_to_it_and_a_release_ends_it() -> None:
    plane = InMemoryPlane()

    begin(plane, Step.EXCLUDE)

    mine = plane.registry.need(Mitigation, KEY)
    assert (mine.steps, mine.done, statuses(plane)) == (("exclude",), False, (BrokerStatus.EXCLUDED,))
    (opened,) = plane.registry.need(Intervention, PHYSICAL).open
    assert (opened.actor, opened.brokers) == (Actor.HEALTH, (BrokerId(2),))
    incident = plane.registry.need(Incident, mine.incident)
    assert [each.what for each in incident.entries] == ["finding", "exclude"]
    assert incident.ruled_out == FINDING.ruled_out

    plane.memory.accept(mitigations.end_step(plane.registry, context(plane), KEY, mine.step_ms))
    assert plane.registry.need(Mitigation, KEY).done
    plane.memory.accept(mitigations.begin_release(plane.registry, context(plane), KEY, impact=(3, 40)))
    plane.memory.accept(mitigations.end_release(plane.registry, context(plane), KEY))

    assert (plane.registry.get(Mitigation, KEY), statuses(plane)) == (None, ())
    assert plane.registry.get(Intervention, PHYSICAL) is None
    closed = plane.registry.need(Incident, incident.id)
    assert (closed.state, closed.probes_failed, closed.probes_sent) == (IncidentState.RESOLVED, 3, 40)


def test_a_restart_after_an_exclusion_leaves_the_broker_demoted() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.EXCLUDE)
    begin(plane, Step.RESTART, now_ms=1_060_000)
    assert statuses(plane) == (BrokerStatus.DEMOTED,)
    assert plane.registry.need(Mitigation, KEY).steps == ("exclude", "restart")
    assert len(mitigations.acted(plane.registry, PHYSICAL, 1_070_000)) == 2
    assert mitigations.acted(plane.registry, PHYSICAL, 6_000_000) == ()


def test_an_outcome_of_an_earlier_step_changes_nothing() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.EXCLUDE)
    begin(plane, Step.RESTART, now_ms=1_060_000)
    assert mitigations.end_step(plane.registry, context(plane), KEY, 1_000_000).changes == ()


def test_what_did_not_help_is_undone_and_remembered() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.EXCLUDE)
    mine = plane.registry.need(Mitigation, KEY)
    failed = mitigations.end_step(plane.registry, context(plane), KEY, mine.step_ms, "below its minimum")
    plane.memory.accept(failed)
    assert mitigations.as_open(plane.registry.need(Mitigation, KEY), 1.0, 2_000_000).failed
    plane.memory.accept(
        mitigations.begin_release(plane.registry, context(plane), KEY, "clients saw no improvement")
    )
    plane.memory.accept(mitigations.end_release(plane.registry, context(plane), KEY))
    assert mitigations.given_up(plane.registry, PHYSICAL, 1_100_000) == {2}
    assert mitigations.given_up(plane.registry, PHYSICAL, 9_000_000) == frozenset()
    assert plane.registry.need(Incident, mine.incident).state is IncidentState.OPEN


def test_a_broker_that_becomes_sick_during_its_release_starts_over_and_the_old_release_ends_nothing() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.EXCLUDE)
    plane.memory.accept(mitigations.end_step(plane.registry, context(plane), KEY, 1_000_000))
    plane.memory.accept(mitigations.begin_release(plane.registry, context(plane), KEY))
    begin(plane, Step.DEMOTE, now_ms=1_060_000)

    mine = plane.registry.need(Mitigation, KEY)
    assert (mine.steps, mine.releasing, mine.done) == (("exclude", "demote"), False, False)
    assert mitigations.end_release(plane.registry, context(plane), KEY).changes == ()
    plane.memory.accept(mitigations.begin_release(plane.registry, context(plane, 1_400_000), KEY))
    assert mitigations.end_step(plane.registry, context(plane), KEY, mine.step_ms).changes == ()


def test_the_mitigation_of_a_broker_that_left_the_cluster_ends() -> None:
    """Otherwise its intervention would block rolls, and health in other zones, without end."""
    plane = InMemoryPlane()
    begin(plane, Step.DEMOTE)
    physical = plane.registry.need(PhysicalCluster, PHYSICAL)
    state = plane.registry.broker_states(PHYSICAL)[BrokerId(2)]
    smaller = physical.changed(2, brokers=tuple(each for each in physical.brokers if each.id != 2))
    plane.registry.accept([Put(smaller), Drop(state)])

    plane.memory.accept(mitigations.begin_release(plane.registry, context(plane), KEY, "it has left"))
    plane.memory.accept(mitigations.end_release(plane.registry, context(plane), KEY))

    assert (plane.registry.count(Mitigation), plane.registry.get(Intervention, PHYSICAL)) == (0, None)
    (incident,) = plane.registry.all(Incident)
    assert incident.state is IncidentState.RESOLVED


def test_a_step_after_an_operator_resolved_the_incident_is_noted_in_the_new_one() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.EXCLUDE)
    first = plane.registry.need(Mitigation, KEY).incident
    plane.memory.accept(
        incidents.change_incident(plane.registry, context(plane), first, IncidentState.RESOLVED, "")
    )
    begin(plane, Step.RESTART, now_ms=1_060_000)
    mine = plane.registry.need(Mitigation, KEY)
    assert mine.incident != first
    plane.memory.accept(mitigations.end_step(plane.registry, context(plane), KEY, mine.step_ms))
    entries = plane.registry.need(Incident, mine.incident).entries
    assert [each.what for each in entries] == ["finding", "restart", "done"]


def test_a_broker_that_an_operator_has_demoted_too_does_not_lead_after_the_release() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.DEMOTE)
    mine = plane.registry.need(Mitigation, KEY)
    assert mitigations.others_let_lead(plane.registry, mine)
    operator = replace(context(plane), actor="operator/root")
    demoted = BrokerStatus.DEMOTED
    plane.memory.accept(set_status(plane.registry, operator, PHYSICAL, 2, demoted, "its disk"))
    assert not mitigations.others_let_lead(plane.registry, mine)


def test_only_a_restart_on_purpose_excuses_a_broker_and_not_for_ever() -> None:
    late_ms = int(LATE_SECONDS * 1000)
    mine = Mitigation(
        id=KEY, cluster=PhysicalClusterId(PHYSICAL), broker=BrokerId(2), state="slow",
        steps=("exclude", "restart"), changed_ms=1_000,
    )  # fmt: skip
    assert mitigations.restarts(mine, 1_000 + 2 * late_ms)
    assert not mitigations.restarts(replace(mine, done=True), 2_000)
    assert not mitigations.restarts(replace(mine, failed="unsafe"), 2_000)
    releasing = replace(mine, done=True, releasing=True)
    assert mitigations.restarts(releasing, 2_000)
    assert not mitigations.restarts(releasing, 1_000 + late_ms)
    assert not mitigations.restarts(replace(releasing, steps=("demote",)), 2_000)


def test_improvement_is_judged_from_the_effect_of_a_step_and_not_from_its_intent() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.HOLD, hurt=0.4)
    late = context(plane, 5_000_000)  # the storage could be written again then
    plane.memory.accept(mitigations.end_step(plane.registry, late, KEY, 1_000_000))
    mine = plane.registry.need(Mitigation, KEY)
    assert mitigations.as_open(mine, 0.4, 5_001_000).improved is None
    assert mitigations.as_open(mine, 0.4, 5_001_000).since == 5_000.0


def test_improvement_is_judged_once_the_step_has_settled() -> None:
    plane = InMemoryPlane()
    begin(plane, Step.DEMOTE, hurt=0.4)
    mine = plane.registry.need(Mitigation, KEY)
    plane.memory.accept(mitigations.end_step(plane.registry, context(plane), KEY, mine.step_ms))
    mine = plane.registry.need(Mitigation, KEY)

    def improved(hurt: float | None, after_ms: int) -> bool | None:
        return mitigations.as_open(mine, hurt, 1_000_000 + after_ms).improved

    assert (improved(0.0, 1_000), improved(None, 60_000)) == (None, None)
    assert (improved(0.2, 60_000), improved(0.3, 60_000)) == (True, False)


def test_beside_a_roll_in_another_zone_no_step_begins() -> None:
    """Without the shared record, brokers of two zones would be down at once."""
    plane = InMemoryPlane()
    physical = plane.registry.need(PhysicalCluster, PHYSICAL)
    zones = {int(each.id): each.zone for each in physical.brokers}
    other = next(broker for broker, zone in zones.items() if zone != zones[2])
    roll = OpenIntervention(
        Actor.ROLL, "op-1", "a roll", 1, brokers=(BrokerId(other),), zones=(Zone(zones[other]),)
    )
    plane.memory.accept(open_intervention(plane.registry, context(plane), PHYSICAL, roll))
    with pytest.raises(InterventionRefused):
        begin(plane, Step.DEMOTE)
    assert plane.registry.get(Mitigation, KEY) is None
    assert PHYSICAL in {p.id for p in plane.registry.all(PhysicalCluster)}


def test_a_repeated_note_is_one_entry_and_old_incidents_expire() -> None:
    plane = InMemoryPlane()

    def note(text: str) -> None:
        decided = mitigations.note_finding(plane.registry, context(plane), PHYSICAL, FINDING, "blocked", text)
        plane.memory.accept(decided)

    for text in ("the mode is advise", "the mode is advise", "an operator holds it"):
        note(text)
    (incident,) = plane.registry.all(Incident)
    assert [each.what for each in incident.entries] == ["finding", "blocked", "blocked"]
    plane.memory.accept(mitigations.close_incident(plane.registry, context(plane), incident.id, "healthy"))
    late = 1_000_000 + incidents.RETENTION_MS + 1
    assert len(incidents.expired(plane.registry, late)) == 1
    assert incidents.expired(plane.registry, 1_000_001) == ()


def test_an_incident_keeps_a_bounded_number_of_entries() -> None:
    incident = Incident(id="inc-1", cluster=PhysicalClusterId(PHYSICAL), broker=BrokerId(2), health="slow")
    for number in range(incidents.ENTRIES_MAX + 50):
        incident = incidents.with_entry(incident, "failed", str(number), number)
    assert len(incident.entries) == incidents.ENTRIES_MAX
    assert (incident.entries[0].text, incident.entries[-1].text) == ("0", str(incidents.ENTRIES_MAX + 49))


def partition(replicas: tuple[int, ...], isr: tuple[int, ...], leader: int | None) -> PartitionState:
    return PartitionState("id", replicas, isr, leader)


def test_demotion_puts_the_broker_last_where_another_replica_is_in_sync() -> None:
    seen = Observation(
        {
            ("a", 0): partition((2, 1, 3), (1, 2, 3), 2),
            ("a", 1): partition((1, 2, 3), (1, 2, 3), 2),
            ("a", 2): partition((1, 2, 3), (1, 2, 3), 1),
            ("alone", 0): partition((2,), (2,), 2),
            ("b", 0): partition((2, 1, 3), (2,), 2),
            ("c", 0): partition((2, 1, 3), (2, 3), 2),
        },
        frozenset({1, 2, 3}),
    )
    moves = {move.name: move.after for move in demotion(seen, 2)}
    assert moves == {"a-0": (1, 3, 2), "a-1": (1, 3, 2), "c-0": (3, 1, 2)}
    assert not in_sync(seen, 1)
    assert in_sync(seen, 2)


def test_holds_and_settings_check_what_they_are_given() -> None:
    plane = InMemoryPlane()
    given = plane.registry, context(plane), PHYSICAL
    for seconds in (0.0, -1.0, 86_401.0):
        with pytest.raises(HoldInvalid):
            health_settings.hold(*given, 2, seconds, "")
    with pytest.raises(BrokerMissing):
        health_settings.hold(*given, 99, 60.0, "")
    with pytest.raises(NotHeld):
        health_settings.unhold(*given, 2)
    with pytest.raises(ActionUnknown):
        health_settings.set_health(*given, actions={"explode": HealthMode.AUTO})
    with pytest.raises(TargetInvalid):
        health_settings.set_health(*given, target=1.0)
    plane.memory.accept(health_settings.hold(*given, 2, 60.0, "disk"))
    assert health_settings.held(plane.registry, PHYSICAL, 1_000_001) == {2: "disk"}
    assert health_settings.held(plane.registry, PHYSICAL, 1_060_001) == {}
    plane.memory.accept(health_settings.unhold(*given, 2))
    assert plane.registry.count(BrokerHold) == 0


def test_the_routes_show_and_change_health(api: Api) -> None:
    def call(method: str, path: str, body: Any = None, status: int = 202) -> Any:
        response = api(method, path, body)
        assert response.status_code == status, response.text
        return response.json()

    base = f"/physical-clusters/{PHYSICAL}"
    call("PUT", f"{base}/health", {"mode": "auto", "actions": {"exclude": "advise"}, "target": 0.999})
    call("PUT", f"{base}/brokers/2/hold", {"seconds": 60, "reason": "disk"})
    begin(api.plane, Step.DEMOTE)
    (shown,) = call("GET", "/health", status=200)
    assert (shown["mode"], shown["actions"], shown["target"]) == ("auto", {"exclude": "advise"}, 0.999)
    broker = next(each for each in shown["brokers"] if each["broker"] == 2)
    assert (broker["health"], broker["held"], broker["steps"]) == ("unknown", "disk", ["demote"])
    assert call("GET", f"{base}/health", status=200) == shown
    explained = call("GET", f"{base}/brokers/2/health", status=200)
    assert (explained["broker"], explained["evidence"]) == (broker, {})
    assert call("GET", "/slo", status=200)[0]["target"] == 0.999
    (incident,) = call("GET", "/incidents", status=200)["items"]
    call("PUT", f"/incidents/{incident['id']}", {"state": "acknowledged", "note": "mine"})
    call("PUT", f"/incidents/{incident['id']}", {"state": "resolved"})
    assert call("GET", f"/incidents/{incident['id']}", status=200)["state"] == "resolved"
    again = api("PUT", f"/incidents/{incident['id']}", {"state": "resolved"})
    assert code(again, 409 if again.status_code == 409 else again.status_code) == IncidentClosed.code
    call("DELETE", f"{base}/brokers/2/hold")
