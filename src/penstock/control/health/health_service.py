"""Judges the brokers of every known physical cluster, every five seconds, and acts on what is wrong.

All control planes follow `_penstock.health` and judge; only the active one acts. A control plane that starts
reads the last hour again, tick by tick: it then has the same states, spells and findings as its predecessor.
Ticks are those of the probes' own times, so that the same topic leads to the same judgement.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.control.health import mitigations
from penstock.control.health.health_settings import held, mode_of, target_for
from penstock.control.health.health_situation import filled_or_emptied, restarted_on_purpose, situation_of
from penstock.control.health.incidents import open_incident
from penstock.control.health.mitigations import ACTOR
from penstock.health.detector import SICK, Finding, HealthState, Verdict, judge
from penstock.health.evidence import (
    GRACE_SECONDS,
    TICK_SECONDS,
    Evidence,
    evidence_of,
    hurt_share,
    reliable,
    unique,
    with_context,
)
from penstock.health.history import ProbeReader
from penstock.health.mitigation import LEFT, Blocked, HealthMode, Release, Take, decide
from penstock.health.slo import RULES, Ledger, burn_during, slower_during
from penstock.kafka.partition_log import bounds, read
from penstock.model.entities import Incident, Mitigation, PhysicalCluster
from penstock.model.errors import PenstockError
from penstock.model.errors.fleet import InterventionRefused
from penstock.model.events import BrokerPressure, Phase, Probe, ProbeRole
from penstock.quota.topics import PRESSURE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.health.mitigating import Mitigating
    from penstock.control.physical.cluster_access import Clusters
    from penstock.control.registry import Registry
    from penstock.kafka.client import Client
    from penstock.model.entities import Entity
    from penstock.model.events import BrokerLoad, HealthProbe

TICK_MS: Final = int(TICK_SECONDS * 1000)
GRACE_MS: Final = int(GRACE_SECONDS * 1000)
REPLAY_TICKS: Final = 720  # an hour, which spells are counted in
TICKS_KEPT: Final = 24  # for explanations
HISTORY_MS: Final = 3 * 24 * 3600 * 1000  # of the error budget that is read again after a start
HURT_NOW_TICKS: Final = 2  # that show whether clients suffer now
HURT_TICKS: Final = 12  # that show whether they suffer all the time: a minute
SLOWER_MAX: Final = 10.0  # that clients may wait as long as before an operation
CLOCK_TICKS: Final = 1  # that the clock may be set back without notice
PRESSURE_SECONDS: Final = 30.0  # a gateway repeats while it lasts
LOOP_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 2.0

log = structlog.get_logger("penstock.health")


class Plane(Protocol):
    async def decide(
        self, decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def broker_loads(self) -> Mapping[str, tuple[BrokerLoad, ...]]: ...


@dataclass
class ClusterHealth:
    """What is known of one physical cluster."""

    ledger: Ledger
    verdict: Verdict = field(default_factory=Verdict)
    evidence: dict[int, Evidence] = field(default_factory=dict)  # of the last tick
    ticks: dict[int, list[HealthProbe]] = field(default_factory=lambda: defaultdict(list))
    judged: int = 0  # number of the last tick
    judged_ms: int = 0  # when
    checkers: frozenset[str] = frozenset()  # that are reliable in the last tick
    stages: dict[int, Mapping[str, int]] = field(default_factory=dict)  # of the last connection to a broker
    pressed: dict[tuple[int, str], float] = field(default_factory=dict)  # broker and gateway; last report
    detect_seconds: float = 0.0
    actions: Counter[str] = field(default_factory=Counter)
    blocked: dict[int, str] = field(default_factory=dict)
    suffered: tuple[int, int] = (0, 0)  # client probes that failed, and all, since an incident began
    # Share of client probes that suffered, by tick, the newest last; None: not known.
    hurt: deque[float | None] = field(default_factory=lambda: deque(maxlen=HURT_TICKS))

    def add(self, probes: Sequence[HealthProbe], now_ms: int) -> None:
        recent = now_ms // TICK_MS - REPLAY_TICKS
        for probe in probes:
            self.ledger.add(probe)
            number = probe.time_ms // TICK_MS
            if recent <= number <= now_ms // TICK_MS + 1:
                self.ticks[number].append(probe)
            if probe.role is ProbeRole.CONNECT and probe.stages:
                self.stages[int(probe.broker)] = probe.stages

    def due(self, now_ms: int) -> range:
        """The ticks to judge now."""
        last = (now_ms - GRACE_MS) // TICK_MS  # exclusive
        if self.judged > last + CLOCK_TICKS:
            log.warning("clock set back", seconds=(self.judged - last) * TICK_SECONDS)
            self.judged = last - 1
            for number in [each for each in self.ticks if each >= last]:
                del self.ticks[number]
        return range(max(self.judged + 1, last - REPLAY_TICKS), last)

    def hurt_now(self) -> float:
        return max((each for each in list(self.hurt)[-HURT_NOW_TICKS:] if each is not None), default=0.0)

    def hurt_least(self) -> float | None:
        """In the best tick of the last minute: whatever disturbs clients for a moment shows nothing."""
        return min((each for each in self.hurt if each is not None), default=None)

    def forget(self) -> None:
        for number in [each for each in self.ticks if each <= self.judged - TICKS_KEPT]:
            del self.ticks[number]


class HealthService:
    def __init__(
        self,
        plane: Plane,
        clusters: Clusters,
        mitigating: Mitigating,
        is_active: Callable[[], bool],
        notify: Callable[[Incident, str], None] = lambda incident, text: None,
    ) -> None:
        self._plane, self._clusters = plane, clusters
        self._mitigating, self._is_active, self._notify = mitigating, is_active, notify
        self.known: dict[str, ClusterHealth] = {}
        self._readers: dict[str, ProbeReader] = {}
        self._following: dict[str, asyncio.Future[tuple[None, None]]] = {}

    def pressure(self, cluster: str) -> str:
        """Which brokers clients' requests wait for, in words; empty if for none."""
        known = self.known.get(cluster)
        brokers = () if known is None else sorted(health_pressed(known, time.monotonic()))
        return f"clients wait for broker {', '.join(map(str, brokers))}" if brokers else ""

    def sick(self, cluster: str) -> dict[int, str]:
        """The brokers that are sick now, and why."""
        known = self.known.get(cluster)
        brokers = {} if known is None else known.verdict.brokers
        return {
            broker: f"{each.state}: {each.reason}" for broker, each in brokers.items() if each.state in SICK
        }

    def burning(self, cluster: str, since_ms: int) -> str:
        """Whether the error budget burns since an operation began, in words."""
        known = self.known.get(cluster)
        burn = 0.0 if known is None else burn_during(known.ledger, since_ms, int(time.time() * 1000))
        return f"the error budget burns {burn:.0f} times too fast" if burn >= RULES[0].burn else ""

    def slower(self, cluster: str, since_ms: int) -> str:
        """Whether clients wait much longer since an operation began, in words."""
        known = self.known.get(cluster)
        factor = 0.0 if known is None else slower_during(known.ledger, since_ms, int(time.time() * 1000))
        if factor < SLOWER_MAX:
            return ""
        return f"clients wait {factor:.0f} times as long as before (99th percentile)"

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._follow()
                for cluster in list(self._readers):
                    await self._try_round(cluster)
                await asyncio.sleep(LOOP_SECONDS)
        finally:
            for task in self._following.values():
                task.cancel()
            await asyncio.gather(*self._following.values(), return_exceptions=True)
            await self._mitigating.close()

    def _follow(self) -> None:
        known = {each.id for each in self._clusters.known}
        for cluster in self._following.keys() - known:
            self._following.pop(cluster).cancel()
            self._readers.pop(cluster, None)
            self.known.pop(cluster, None)
        try:
            registry = self._plane.registry
        except PenstockError:  # it is being read
            return
        for cluster in known - self._following.keys():
            physical = registry.get(PhysicalCluster, cluster)
            if physical is None:
                continue
            health = self.known[cluster] = ClusterHealth(Ledger(target_for(physical)))
            client = self._clusters.client(cluster)
            reader = self._readers[cluster] = ProbeReader(client, partial(_received, health))
            since = int(time.time() * 1000) - HISTORY_MS
            self._following[cluster] = asyncio.gather(reader.run(since), _follow_pressure(client, health))

    async def _try_round(self, cluster: str) -> None:
        try:
            if self._readers[cluster].caught_up:
                await self.run_round(cluster, time.time())
        except PenstockError as failure:
            log.warning("health not judged", cluster=cluster, error=str(failure))
        except Exception:  # it belongs to this cluster, not to the control plane
            log.exception("health round raised", cluster=cluster)

    async def run_round(self, cluster: str, now: float) -> None:
        """Judges the ticks that are over, and acts if there was a new one."""
        health, now_ms = self.known[cluster], int(now * 1000)
        numbers = health.due(now_ms)
        for number in numbers:
            self._judge(cluster, health, number)
            health.forget()
        if numbers:
            health.judged_ms = now_ms
        physical = self._plane.registry.need(PhysicalCluster, cluster)
        if health.ledger.target != target_for(physical):
            health.ledger.target = target_for(physical)
        if not self._is_active():
            self._mitigating.stop(cluster)
            return
        if numbers:
            await self._act(cluster, physical, health, now)
        self._mitigating.carry_out(cluster, held(self._plane.registry, cluster, now_ms))

    # Judging

    def _judge(self, cluster: str, health: ClusterHealth, number: int) -> None:
        registry = self._plane.registry
        physical = registry.need(PhysicalCluster, cluster)
        zones = {int(each.id): str(each.zone) for each in physical.brokers}
        probes = health.ticks.get(number, [])
        nearby = [*probes, *health.ticks.get(number + 1, ())]
        health.checkers = reliable(nearby, number * TICK_MS, (number + 1) * TICK_MS)
        trusted = [probe for probe in probes if probe.checker in health.checkers]
        health.hurt.append(hurt_share(trusted))
        loads = self._plane.broker_loads.get(cluster, ())
        evidence = with_context(evidence_of(trusted, zones), loads, health_pressed(health, time.monotonic()))
        before = health.verdict
        health.evidence, health.judged = evidence, number
        health.verdict = judge(
            before.brokers,
            evidence,
            (number + 1) * TICK_SECONDS,
            zones=zones,
            restarted=restarted_on_purpose(registry, cluster, number * TICK_MS),
            moved=filled_or_emptied(registry, cluster),
            stalled=not health.checkers and bool(probes),
        )
        for broker, each in health.verdict.brokers.items():
            was = before.brokers.get(broker)
            if each.state in SICK and (was is None or was.state not in SICK):
                health.detect_seconds = TICK_SECONDS * _sick_ticks(each.symptoms) + GRACE_SECONDS
            if was is not None and was.state is not each.state:
                facts = {"state": str(each.state), "reason": each.reason}
                log.info("health changed", cluster=cluster, broker=broker, **facts)

    # Acting

    async def _act(self, cluster: str, physical: PhysicalCluster, health: ClusterHealth, now: float) -> None:
        mode = mode_of(physical)
        self._count_impact(cluster, health)
        registry, hurt = self._plane.registry, health.hurt_least()
        abilities = self._mitigating.abilities(cluster)
        situation = situation_of(registry, physical, health.verdict, abilities, hurt, int(now * 1000))
        findings = {each.broker: each for each in health.verdict.findings}
        health.blocked = {}
        for decision in decide(situation, now):
            match decision:
                case Take():
                    await self._take(cluster, health, decision, findings[decision.broker])
                case Release():
                    await self._release(cluster, health, decision)
                case Blocked() if mode is not HealthMode.OFF:
                    finding = findings.get(decision.broker) or _finding(health, decision.broker)
                    await self._note(cluster, health, finding, decision)
        await self._close_incidents(cluster, health)

    def _count_impact(self, cluster: str, health: ClusterHealth) -> None:
        """What clients suffer while an incident is open."""
        every = self._plane.registry.all(Incident)
        if not any(each.cluster == cluster and each.resolved_ms is None for each in every):
            health.suffered = (0, 0)
            return
        failed, sent = client_impact(health.ticks.get(health.judged, ()))
        health.suffered = health.suffered[0] + failed, health.suffered[1] + sent

    async def _take(self, cluster: str, health: ClusterHealth, take: Take, finding: Finding) -> None:
        hurt = health.hurt_now()
        begin = partial(mitigations.begin_step, cluster=cluster, take=take, finding=finding, hurt=hurt)
        try:
            decided = await self._plane.decide(begin, Mitigation, actor=ACTOR)
        except InterventionRefused as refusal:
            await self._note(cluster, health, finding, Blocked(take.broker, take.step, str(refusal)))
            return
        health.actions[str(take.step)] += 1
        facts = {"step": str(take.step), "reason": take.reason}
        log.warning("step taken", cluster=cluster, broker=take.broker, **facts)
        assert isinstance(decided.subject, Mitigation)
        self._notify_operators(decided.subject.incident, f"{take.step} broker {take.broker}: {take.reason}")

    async def _release(self, cluster: str, health: ClusterHealth, release: Release) -> None:
        mine = mitigations.of_cluster(self._plane.registry, cluster).get(release.broker)
        if mine is None or mine.releasing:
            return
        begin = partial(
            mitigations.begin_release, key=mine.id, gave_up=release.gave_up, impact=health.suffered
        )
        await self._plane.decide(begin, Mitigation, actor=ACTOR)
        health.actions["release"] += 1
        text = release.gave_up or f"broker {release.broker} is healthy: what was done is undone"
        self._notify_operators(mine.incident, text)

    async def _note(self, cluster: str, health: ClusterHealth, finding: Finding, blocked: Blocked) -> None:
        """Opens the broker's incident, or adds to it, what automation does not do and why."""
        step = "" if blocked.step is None else f"{blocked.step}: "
        text = f"{step}{blocked.reason}"
        health.blocked[blocked.broker] = text
        known = open_incident(self._plane.registry, cluster, blocked.broker)
        repeated = known is not None and any(
            each.what == "blocked" and each.text == text for each in known.entries
        )
        if repeated:
            return
        note = partial(mitigations.note_finding, cluster=cluster, finding=finding, what="blocked", text=text)
        decided = await self._plane.decide(note, Incident, actor=ACTOR)
        assert isinstance(decided.subject, Incident)
        self._notify_operators(decided.subject.id, text)

    async def _close_incidents(self, cluster: str, health: ClusterHealth) -> None:
        """Those of brokers that are healthy or gone, and for which nothing has to be undone."""
        mitigated = mitigations.of_cluster(self._plane.registry, cluster)
        for each in list(self._plane.registry.all(Incident)):
            if each.cluster != cluster or each.resolved_ms is not None:
                continue
            broker = health.verdict.brokers.get(int(each.broker))
            well = broker is None or (broker.state is HealthState.HEALTHY and not broker.flapping)
            if well and int(each.broker) not in mitigated:
                text = LEFT if broker is None else "it is healthy"
                close = partial(
                    mitigations.close_incident, incident_id=each.id, text=text, impact=health.suffered
                )
                await self._plane.decide(close, Incident, actor=ACTOR)
                self._notify_operators(each.id, f"broker {each.broker}: {text}")

    def _notify_operators(self, incident: str, text: str) -> None:
        known = self._plane.registry.get(Incident, incident)
        if known is not None:
            self._notify(known, text)


def client_impact(probes: Sequence[HealthProbe]) -> tuple[int, int]:
    """Failed and sent probes of what clients get."""
    paths = [p for p in unique(probes) if p.role is ProbeRole.PATH and p.probe is Probe.PRODUCE]
    return sum(p.latency_us is None for p in paths), len(paths)


def health_pressed(health: ClusterHealth, now: float) -> frozenset[int]:
    """Brokers that clients' requests wait for, as gateways report."""
    current = {key for key, at in health.pressed.items() if now - at < PRESSURE_SECONDS}
    return frozenset(broker for broker, _ in current)


def _received(health: ClusterHealth, probes: Sequence[HealthProbe]) -> None:
    health.add(probes, int(time.time() * 1000))


def _finding(health: ClusterHealth, broker: int) -> Finding:
    """Of a broker that is not sick now, and something about it is blocked."""
    known = health.verdict.brokers[broker]
    return Finding(broker, known.state, known.reason or f"it is {known.state}")


def _sick_ticks(symptoms: Sequence[HealthState]) -> int:
    count = 0
    for each in reversed(symptoms):
        if each not in SICK:
            break
        count += 1
    return count


async def _follow_pressure(client: Client, health: ClusterHealth) -> None:
    """What gateways report of clients' requests that wait."""
    position: int | None = None
    while True:
        try:
            if position is None:
                position = (await bounds(client, PRESSURE))[1]
            chunk = await read(client, PRESSURE, position, wait_ms=1000, lane="health-pressure")
            for record in chunk.records:
                _apply_pressure(health, record.value or b"")
            position = chunk.position
        except PenstockError:
            position = None
            await asyncio.sleep(PAUSE_SECONDS)


def _apply_pressure(health: ClusterHealth, value: bytes) -> None:
    try:
        event = BrokerPressure.from_bytes(value)
    except PenstockError as failure:  # perhaps written by a newer gateway
        log.warning("pressure not understood", error=str(failure))
        return
    key = int(event.broker), event.gateway
    if event.phase is Phase.ENDED:
        health.pressed.pop(key, None)
    else:
        health.pressed[key] = time.monotonic()
