"""Judging and acting: rounds over an in-memory control plane, with probes as a checker writes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.control import health_settings, mitigations
from penstock.control.health_service import TICK_MS, ClusterHealth, HealthService
from penstock.control.mitigating import Mitigating
from penstock.health.detector import HealthState
from penstock.health.mitigation import Abilities, Mode
from penstock.health.slo import Ledger
from penstock.model.entities import BrokerStatus, Incident, Intervention, Mitigation, PhysicalCluster
from penstock.model.errors.health import CheckerRefused, NotRestartable, ProbeTopicsMissing
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.in_memory_control import PHYSICAL
from tests.control.in_memory_plane import InMemoryPlane

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1_000_000 * TICK_MS  # a tick begins
GOOD = frozenset(ProbeRole) - {ProbeRole.WAITING, ProbeRole.SELF, ProbeRole.CONNECT}


class Recorded(Mitigating):
    """Carries out nothing, and remembers that it should."""

    rounds = 0

    def abilities(self, cluster: str) -> Abilities:
        del cluster
        return Abilities(excludes=True, restarts=True)

    def carry_out(self, cluster: str) -> None:
        del cluster
        self.rounds += 1


class Fixture:
    def __init__(self, mode: Mode = Mode.AUTO, brokers: int | None = None) -> None:
        self.plane = InMemoryPlane()
        context = self.plane.memory.context()
        self.plane.memory.accept(
            health_settings.set_health(self.plane.registry, context, PHYSICAL, mode=mode)
        )
        self.notices: list[str] = []
        self.mitigating = Recorded(self.plane, cast("Any", None), cast("Any", None))
        self.service = HealthService(
            self.plane,
            cast("Any", None),
            self.mitigating,
            lambda: True,
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
            await self.service.run_round(PHYSICAL, (self.tick * TICK_MS + 2_600) / 1000)

    def probes(self, works: Callable[[int, ProbeRole], bool], *, late_ms: int = 0) -> list[HealthProbe]:
        made = [self.probe(-1, ProbeRole.SELF, 0, works=True, latency_us=late_ms * 1000)]
        for broker in self.zones:
            for role in GOOD:
                made += [self.probe(broker, role, n, works=works(broker, role)) for n in range(3)]
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

    def state(self, broker: int) -> HealthState:
        return self.health.verdict.brokers[broker].state


def cut(broker: int) -> Callable[[int, ProbeRole], bool]:
    inside = (ProbeRole.INNER, ProbeRole.SESSION, ProbeRole.DIRECTORY)
    return lambda b, role: b != broker or role in inside


async def test_a_broker_that_is_cut_off_is_demoted_at_once_and_released_when_it_is_healthy() -> None:
    one = Fixture()
    await one.run(2)
    assert one.state(2) is HealthState.HEALTHY

    await one.run(2, cut(2))

    mine = one.plane.registry.need(Mitigation, f"{PHYSICAL}/2")
    assert (one.state(2), mine.steps) == (HealthState.CUT_OFF, ("demote",))
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
    one = Fixture(Mode.OFF)
    await one.run(3)
    await one.run(3, cut(2))
    other = Fixture(Mode.OFF)
    other.health.add([p for each in one.health.ticks.values() for p in each], one.tick * TICK_MS)
    await other.service.run_round(PHYSICAL, (one.tick * TICK_MS + 2_600) / 1000)
    assert other.health.verdict == one.health.verdict


async def test_advice_is_an_incident_and_no_action() -> None:
    one = Fixture(Mode.ADVISE)
    await one.run(2)
    await one.run(3, cut(2))
    assert one.plane.registry.count(Mitigation) == 0
    (incident,) = one.plane.registry.all(Incident)
    assert incident.entries[-1].text == "demote: the mode is advise"
    assert one.health.blocked == {2: "demote: the mode is advise"}
    await one.run(13)
    (incident,) = one.plane.registry.all(Incident)
    assert incident.resolved_ms is not None


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.ADVISE])
async def test_a_checker_that_stalls_or_falls_silent_causes_no_action(mode: Mode) -> None:
    one = Fixture(mode)
    await one.run(2)
    await one.run(6, lambda b, r: False, late_ms=4_000)
    for _ in range(4):
        one.tick += 1
        await one.service.run_round(PHYSICAL, (one.tick * TICK_MS + 2_600) / 1000)
    assert one.plane.registry.count(Incident) == 0


async def test_a_fault_everywhere_is_the_clusters_and_causes_no_action() -> None:
    one = Fixture()
    await one.run(2)
    inside = (ProbeRole.INNER, ProbeRole.SESSION, ProbeRole.DIRECTORY)
    await one.run(3, lambda b, role: role in inside)
    assert one.health.verdict.cluster
    assert one.plane.registry.count(Mitigation) == 0
    assert {each.entries[-1].what for each in one.plane.registry.all(Incident)} == {"blocked"}


async def test_off_judges_and_does_nothing() -> None:
    one = Fixture(Mode.OFF)
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
