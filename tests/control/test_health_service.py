"""Judging and acting: rounds over an in-memory control plane, with probes as a checker writes them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.control.health import health_settings, mitigations
from penstock.control.health.health_service import TICK_MS, ClusterHealth, HealthService
from penstock.control.health.mitigating import Mitigating
from penstock.control.registry import Drop, Put
from penstock.health.detector import HealthState
from penstock.health.mitigation import Abilities, HealthMode
from penstock.health.slo import MINUTE_MS, Ledger
from penstock.model.entities import BrokerStatus, Incident, Intervention, Mitigation, PhysicalCluster
from penstock.model.errors.health import CheckerRefused, NotRestartable, ProbeTopicsMissing
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.in_memory_control import PHYSICAL
from tests.control.in_memory_plane import InMemoryPlane

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

START = 1_000_000 * TICK_MS  # a tick begins
GOOD = frozenset(ProbeRole) - {ProbeRole.WAITING, ProbeRole.SELF, ProbeRole.CONNECT}


class Recorded(Mitigating):
    """Carries out nothing, and remembers that it should."""

    rounds = 0
    held: tuple[int, ...] = ()
    stopped = 0

    def abilities(self, cluster: str) -> Abilities:
        del cluster
        return Abilities(excludes=True, restarts=True)

    def carry_out(self, cluster: str, held: Collection[int] = ()) -> None:
        del cluster
        self.rounds += 1
        self.held = tuple(held)

    def stop(self, cluster: str) -> None:
        del cluster
        self.stopped += 1


class Fixture:
    def __init__(self, mode: HealthMode = HealthMode.AUTO, brokers: int | None = None) -> None:
        self.plane = InMemoryPlane()
        context = self.plane.memory.context()
        self.plane.memory.accept(
            health_settings.set_health(self.plane.registry, context, PHYSICAL, mode=mode)
        )
        self.notices: list[str] = []
        self.active = True
        self.mitigating = Recorded(self.plane, cast("Any", None), cast("Any", None))
        self.service = HealthService(
            self.plane,
            cast("Any", None),
            self.mitigating,
            lambda: self.active,
            lambda _, text: self.notices.append(text),
        )
        self.health = self.service.known[PHYSICAL] = ClusterHealth(Ledger(0.999))
        physical = self.plane.registry.need(PhysicalCluster, PHYSICAL)
        self.zones = {int(each.id): str(each.zone) for each in physical.brokers[:brokers]}
        self.tick = START // TICK_MS
        self.health.judged = self.tick - 1

    async def run(
        self, count: int, works: Callable[[int, ProbeRole], bool] = lambda b, r: True, **values: Any
    ) -> None:
        """So many ticks, in which these probes succeed."""
        for _ in range(count):
            self.health.add(self.probes(works, **values), self.tick * TICK_MS)
            self.tick += 1
            self.plane.memory.now_ms = self.tick * TICK_MS + 2_600
            await self.service.run_round(PHYSICAL, (self.tick * TICK_MS + 2_600) / 1000)

    def probes(
        self,
        works: Callable[[int, ProbeRole], bool],
        *,
        late_ms: int = 0,
        moved: tuple[int, ...] = (),
    ) -> list[HealthProbe]:
        """`moved` are brokers whose client partitions are led by another one."""
        made = [self.probe(-1, ProbeRole.SELF, 0, works=True, latency_us=late_ms * 1000)]
        for broker in self.zones:
            for role in GOOD:
                leader = 1 if role is ProbeRole.PATH and broker in moved else broker
                sent = [self.probe(broker, role, n, works=works(leader, role)) for n in range(3)]
                pinned = sent[0].leader is not None
                made += [replace(each, leader=leader) if pinned else each for each in sent]
        return made

    def probe(
        self, broker: int, role: ProbeRole, number: int, *, works: bool, latency_us: int = 5_000
    ) -> HealthProbe:
        pinned = role in (ProbeRole.ALONE, ProbeRole.PAIR, ProbeRole.PATH)
        return HealthProbe(
            cluster=PhysicalClusterId(PHYSICAL), broker=BrokerId(broker), zone=Zone(""), partition=broker,
            probe=Probe.PRODUCE if pinned else Probe.CALL, checker="one", sequence=self.tick * 10 + number,
            time_ms=self.tick * TICK_MS + 100 + number * 1000, latency_us=latency_us if works else None,
            error=None if works else "TIMED_OUT", role=role, leader=broker if pinned else None,
        )  # fmt: skip

    async def silent(self, count: int) -> None:
        """So many ticks without any probe."""
        for _ in range(count):
            self.tick += 1
            await self.service.run_round(PHYSICAL, (self.tick * TICK_MS + 2_600) / 1000)

    def mitigation(self, broker: int = 2) -> Mitigation:
        return self.plane.registry.need(Mitigation, f"{PHYSICAL}/{broker}")

    def end_step(self) -> None:
        mine = self.mitigation()
        context = replace(self.plane.memory.context(), actor=mitigations.ACTOR)
        self.plane.memory.accept(mitigations.end_step(self.plane.registry, context, mine.id, mine.step_ms))

    def end_release(self) -> None:
        context = replace(self.plane.memory.context(), actor=mitigations.ACTOR)
        self.plane.memory.accept(mitigations.end_release(self.plane.registry, context, f"{PHYSICAL}/2"))

    def state(self, broker: int) -> HealthState:
        return self.health.verdict.brokers[broker].state


def cut(broker: int) -> Callable[[int, ProbeRole], bool]:
    inside = (ProbeRole.INNER, ProbeRole.SESSION, ProbeRole.DIRECTORY)
    return lambda b, role: b != broker or role in inside


def stuck(broker: int) -> Callable[[int, ProbeRole], bool]:
    writes = (ProbeRole.ALONE, ProbeRole.PATH, ProbeRole.PAIR, ProbeRole.DIRECTORY)
    return lambda b, role: b != broker or role not in writes


async def test_a_broker_that_is_cut_off_is_demoted_at_once_and_released_when_it_is_healthy() -> None:
    one = Fixture()
    await one.run(2)
    assert one.state(2) is HealthState.HEALTHY

    await one.run(2, cut(2))

    mine = one.plane.registry.need(Mitigation, f"{PHYSICAL}/2")
    assert (one.state(2), mine.steps) == (HealthState.CUT_OFF, ("demote",))
    assert one.service.sick(PHYSICAL).keys() == {2}
    state = one.plane.registry.broker_states(PHYSICAL)[BrokerId(2)]
    assert state.statuses == (BrokerStatus.DEMOTED,)
    assert one.plane.registry.get(Intervention, PHYSICAL) is not None
    (incident,) = one.plane.registry.all(Incident)
    assert "down: it responds on its own listener" in incident.ruled_out
    assert one.notices
    assert one.notices[0].startswith("demote broker 2")

    done = mitigations.end_step(one.plane.registry, one.plane.memory.context(), mine.id, mine.step_ms)
    one.plane.memory.accept(done)
    await one.run(14)

    assert one.plane.registry.need(Mitigation, f"{PHYSICAL}/2").releasing
    assert one.mitigating.rounds == 18


async def test_the_same_probes_lead_to_the_same_states_after_a_restart() -> None:
    one = Fixture(HealthMode.OFF)
    await one.run(3)
    await one.run(3, cut(2))
    other = Fixture(HealthMode.OFF)
    other.health.add([p for each in one.health.ticks.values() for p in each], one.tick * TICK_MS)
    await other.service.run_round(PHYSICAL, (one.tick * TICK_MS + 2_600) / 1000)
    assert other.health.verdict == one.health.verdict


async def test_advice_is_an_incident_and_no_action() -> None:
    one = Fixture(HealthMode.ADVISE)
    await one.run(2)
    await one.run(3, cut(2))
    assert one.plane.registry.count(Mitigation) == 0
    (incident,) = one.plane.registry.all(Incident)
    assert incident.entries[-1].text == "demote: the mode is advise"
    assert one.health.blocked == {2: "demote: the mode is advise"}
    await one.run(13)
    (incident,) = one.plane.registry.all(Incident)
    assert incident.resolved_ms is not None


@pytest.mark.parametrize("mode", [HealthMode.AUTO, HealthMode.ADVISE])
async def test_a_checker_that_stalls_or_falls_silent_causes_no_action(mode: HealthMode) -> None:
    one = Fixture(mode)
    await one.run(2)
    await one.run(6, lambda b, r: False, late_ms=4_000)
    assert one.state(2) is HealthState.UNKNOWN
    await one.silent(4)
    assert one.state(2) is HealthState.UNKNOWN
    assert one.plane.registry.count(Incident) == 0


async def test_from_the_first_symptom_to_the_end_of_the_release_and_again() -> None:
    one = Fixture()
    await one.run(2)
    for spell in (1, 2):
        await one.run(2, cut(2))
        one.end_step()
        await one.run(12)
        assert one.mitigation().releasing
        one.end_release()
        (*_, incident) = one.plane.registry.all(Incident)
        assert (one.plane.registry.count(Incident), incident.resolved_ms is not None) == (spell, True)
        assert one.plane.registry.get(Intervention, PHYSICAL) is None
        assert BrokerId(2) not in one.plane.registry.broker_states(PHYSICAL)


async def test_a_flapping_broker_stays_out_until_its_spells_are_an_hour_old() -> None:
    one = Fixture()
    await one.run(2)
    for _ in range(2):
        await one.run(2, cut(2))
        one.end_step()
        await one.run(12)
        one.end_release()
    await one.run(2, cut(2))
    one.end_step()
    await one.run(12)
    assert (one.state(2), one.mitigation().releasing) == (HealthState.HEALTHY, False)
    assert one.health.blocked == {2: "it became sick 3 times within an hour"}
    one.tick += 3600 * 1000 // TICK_MS
    await one.run(1)
    assert one.mitigation().releasing


async def test_a_broker_that_dies_during_its_release_is_mitigated_again() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    one.end_step()
    await one.run(12)
    assert one.mitigation().releasing

    await one.run(2, lambda b, role: b != 2)

    assert (one.state(2), one.mitigation().releasing) == (HealthState.DOWN, False)
    assert one.mitigation().steps == ("demote",)


async def test_the_checker_dies_while_a_broker_is_mitigated_and_nothing_follows() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, stuck(2))
    one.end_step()
    await one.silent(60)
    assert (one.state(2), one.mitigation().steps) == (HealthState.STORAGE_STUCK, ("demote",))
    await one.run(1, stuck(2))
    assert one.mitigation().steps == ("demote", "hold")


async def test_a_moment_in_which_clients_suffer_does_not_undo_what_helps() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    one.end_step()
    await one.run(24, cut(2), moved=(2,))
    none = lambda b, role: role is not ProbeRole.PATH and cut(2)(b, role)  # noqa: E731
    await one.run(3, none, moved=(2,))
    assert (one.mitigation().steps, one.mitigation().releasing) == (("demote",), False)
    await one.run(12, none, moved=(2,))
    assert one.mitigation().gave_up


async def test_a_second_sick_broker_in_another_zone_is_left_alone() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    one.end_step()
    both = lambda b, role: cut(2)(b, role) and cut(3)(b, role)  # noqa: E731
    await one.run(30, both)
    assert one.plane.registry.count(Mitigation) == 1
    assert not one.mitigation().releasing
    assert "whole cluster" in one.health.blocked[3]


async def test_when_the_first_recovers_the_second_waits_for_its_release() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    one.end_step()
    await one.run(11)
    await one.run(3, cut(3))
    assert one.mitigation().releasing
    assert one.plane.registry.count(Mitigation) == 1
    one.end_release()
    await one.run(1, cut(3))
    assert one.mitigation(3).steps == ("demote",)


async def test_a_broker_that_was_removed_is_let_go_and_its_incident_ends() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    registry = one.plane.registry
    physical = registry.need(PhysicalCluster, PHYSICAL)
    smaller = physical.changed(1, brokers=tuple(b for b in physical.brokers if b.id != 2))
    registry.accept([Put(smaller), Drop(registry.broker_states(PHYSICAL)[BrokerId(2)])])
    del one.zones[2]
    await one.run(1)
    assert one.mitigation().releasing
    one.end_release()
    (incident,) = registry.all(Incident)
    assert (registry.count(Mitigation), incident.resolved_ms is not None) == (0, True)


async def test_what_was_begun_ends_in_mode_off_too_but_not_for_a_held_broker() -> None:
    one = Fixture()
    await one.run(2)
    await one.run(2, cut(2))
    one.end_step()
    given = one.plane.registry, one.plane.memory.context(), PHYSICAL
    one.plane.memory.accept(health_settings.set_health(*given, mode=HealthMode.OFF))
    one.plane.memory.accept(health_settings.hold(*given, 2, 120.0, "its disk"))
    await one.run(13)
    assert (one.mitigation().releasing, one.mitigating.held) == (False, (2,))
    await one.run(15)
    assert (one.mitigation().releasing, one.mitigating.held) == (True, ())


async def test_a_clock_that_is_set_back_stops_no_judgement() -> None:
    one = Fixture()
    await one.run(3)
    one.tick -= 3600 * 1000 // TICK_MS
    await one.run(1)
    await one.run(2, cut(2))
    assert one.state(2) is HealthState.CUT_OFF
    one.tick += 2 * 3600 * 1000 // TICK_MS
    await one.run(1)
    assert one.state(1) is HealthState.HEALTHY


async def test_a_control_plane_that_is_not_active_any_more_ends_its_effects() -> None:
    one = Fixture()
    await one.run(2)
    one.active = False
    await one.run(2, cut(2))
    assert (one.mitigating.rounds, one.mitigating.stopped) == (2, 2)
    assert one.plane.registry.count(Mitigation) == 0


async def test_a_fault_everywhere_is_the_clusters_and_causes_no_action() -> None:
    one = Fixture()
    await one.run(2)
    inside = (ProbeRole.INNER, ProbeRole.SESSION, ProbeRole.DIRECTORY)
    await one.run(3, lambda b, role: role in inside)
    assert one.health.verdict.cluster
    assert one.plane.registry.count(Mitigation) == 0
    assert {each.entries[-1].what for each in one.plane.registry.all(Incident)} == {"blocked"}


async def test_off_judges_and_does_nothing() -> None:
    one = Fixture(HealthMode.OFF)
    await one.run(2)
    await one.run(3, cut(2))
    assert one.state(2) is HealthState.CUT_OFF
    assert one.plane.registry.count(Incident) == 0


async def test_without_a_restarter_and_without_rights_the_error_names_it() -> None:
    plane = InMemoryPlane()
    mitigating = Mitigating(plane, cast("Any", None), cast("Any", None))
    mitigation = Mitigation(
        id=f"{PHYSICAL}/2",
        cluster=PhysicalClusterId(PHYSICAL),
        broker=BrokerId(2),
        state="slow",
        steps=("restart",),
    )
    with pytest.raises(NotRestartable):
        mitigating._need_restarter(mitigation)
    await mitigating.close()
    assert not mitigating.abilities(PHYSICAL).restarts
    assert {CheckerRefused.code, ProbeTopicsMissing.code} == {"PEN-5615", "PEN-5614"}
    await asyncio.sleep(0)


def test_rolls_and_moves_learn_what_clients_suffer() -> None:
    service, now = Fixture().service, int(time.time() * 1000)
    assert (service.pressure("other"), service.burning("other", 0), service.slower("other", 0)) == (
        "",
        "",
        "",
    )
    ledger, minute = Ledger(0.9999), now // MINUTE_MS
    for number in range(minute - 30, minute + 2):
        recent = number >= minute - 5
        for sequence in range(10):
            failed = recent and sequence == 0
            latency = 5_000_000 if recent else 10_000
            ledger.add(
                HealthProbe(
                    PhysicalClusterId(PHYSICAL), BrokerId(1), Zone("a"), partition=0, probe=Probe.CONSUME,
                    checker="one", sequence=sequence, time_ms=number * MINUTE_MS + sequence,
                    latency_us=None if failed else latency, error="TIMED_OUT" if failed else None,
                )
            )  # fmt: skip
    service.known[PHYSICAL] = ClusterHealth(ledger)
    service.known[PHYSICAL].pressed = {(3, "gateway"): time.monotonic()}
    began = (minute - 10) * MINUTE_MS

    assert service.pressure(PHYSICAL) == "clients wait for broker 3"
    assert service.sick(PHYSICAL) == service.sick("other") == {}
    assert service.burning(PHYSICAL, began) == "the error budget burns 1000 times too fast"
    assert service.slower(PHYSICAL, began) == "clients wait 500 times as long as before (99th percentile)"
    assert service.burning(PHYSICAL, now) == ""
