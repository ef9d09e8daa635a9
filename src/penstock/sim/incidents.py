"""A month of faults, judged and mitigated: what is detected, what is done needlessly, what clients get.

Each tick asks `health.detector.judge` for states, and `health.mitigation.decide` for the next step. What a
step changes in the registry is decided by `control.mitigations`, and the situation is read back from it with
`control.health_situation`: all as in the control plane, with its bounds. `sim.sick_brokers` has the brokers.

Simulated are the ticks around events, from shortly before one until the cluster is healthy again and nothing
is left to undo. While every broker stays in the same state for two minutes and nothing may be done, time
leaps to the next event, or to when a limit of the decisions changes. `calm` leaves out nothing.

Not simulated: how probes become evidence (`health.evidence`), checkers and their topics, the directory probe,
and takeovers. Assumptions:
- Two thirds of the faults stop clients' writes on one broker for as long as they last, such as a cut link.
  How many there are makes clients of an unattended cluster get about 99.95 %.
- Lengths are log-uniform, from 20 s to two days; those of slow brokers from `SLOW_SECONDS_MIN`.
- Steps take as long as measured on small local brokers. A third of storage faults and slow disks are healed
  by a restart of the broker.
- Noise: pauses, tenants that overload a broker at once, checkers that stall, controller failovers, zones
  that are cut for seconds, rolls with brokers that warm up.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.control.decisions import DecisionContext
from penstock.control.health import mitigations
from penstock.control.health.health_situation import restarted_on_purpose, situation_of
from penstock.control.health.interventions import close_intervention, open_intervention
from penstock.control.registry import Put, Registry
from penstock.health.detector import SICK, Finding, HealthState, Verdict, judge
from penstock.health.evidence import GRACE_SECONDS, TICK_SECONDS
from penstock.health.mitigation import (
    HOUR_SECONDS,
    IMPROVED_SECONDS,
    LATE_SECONDS,
    Abilities,
    Blocked,
    Release,
    Step,
    Take,
    decide,
)
from penstock.model.entities import (
    Actor,
    BrokerEndpoint,
    Incident,
    Intervention,
    Mitigation,
    OpenIntervention,
    Operation,
    PhysicalCluster,
)
from penstock.model.errors.fleet import InterventionRefused
from penstock.model.ids import BrokerId, Zone
from penstock.sim.sick_brokers import CATCH_UP_SECONDS, HARMLESS, Brokers, Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.control.decisions import Decision

NAME: Final = "pkc-000000"
DECIDE_SECONDS: Final = GRACE_SECONDS + 0.5  # from the end of a tick until it is decided
DEMOTE_SECONDS: Final = 3.0
EXCLUDE_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 12.0
RETURN_SECONDS: Final = 3.0
WRITABLE_SECONDS: Final = 3.0  # of successful writes, until a held broker starts
WARM_SECONDS: Final = 20.0  # after a restart
LOAD_SECONDS: Final = 60.0  # time constant of the reported load
STEADY_TICKS: Final = 24  # without any change, until time leaps
LEAP_SECONDS_MIN: Final = 60.0
BEFORE_TICKS: Final = 3  # of an event
HURT_TICKS: Final = 12
DAY_SECONDS: Final = 86_400.0
_MUTED: Final = frozenset((Operation,))  # the control plane's log of what was done


@dataclass(frozen=True, slots=True)
class Roll:
    """Every broker is restarted on purpose, one after the other."""

    since: float


@dataclass(frozen=True, slots=True)
class Stall:
    """No checker judges anything."""

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Failover:
    """Of the controller: sessions are unknown."""

    since: float
    until: float


Event = Fault | Roll | Stall | Failover


@dataclass
class Outcome:
    """Of one cluster, or of several."""

    broker_seconds: float = 0.0
    detected: list[tuple[Kind, float]] = field(default_factory=list)  # of planted faults; seconds, inf: never
    misnamed: int = 0
    needless: list[str] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    failed_seconds: float = 0.0  # of brokers' client probes, with health in `auto`
    unattended_seconds: float = 0.0  # likewise, with health `off`
    ticks: int = 0
    unfinished: int = 0  # clusters with something left to undo at the end

    def add(self, other: Outcome) -> None:
        self.broker_seconds += other.broker_seconds
        self.detected += other.detected
        self.misnamed += other.misnamed
        self.needless += other.needless
        self.actions += other.actions
        self.failed_seconds += other.failed_seconds
        self.unattended_seconds += other.unattended_seconds
        self.ticks += other.ticks
        self.unfinished += other.unfinished


SILENT_STATES: Final = frozenset(
    (HealthState.DOWN, HealthState.FENCED, HealthState.CUT_OFF, HealthState.STORAGE_STUCK)
)
_SLOW: Final = frozenset((HealthState.SLOW, HealthState.SLOW_FOLLOWER))
NAMED: Final[Mapping[Kind, frozenset[HealthState]]] = {
    Kind.FROZEN: SILENT_STATES,  # it is fenced only after nine seconds
    Kind.KILLED: SILENT_STATES,
    Kind.CUT: frozenset((HealthState.CUT_OFF,)),
    Kind.ONE_WAY: frozenset((HealthState.CUT_OFF,)),
    Kind.FLAPPING: frozenset((HealthState.CUT_OFF,)),
    Kind.HUNG_DISK: frozenset((HealthState.STORAGE_STUCK,)),
    Kind.FAILED_DISK: frozenset((HealthState.STORAGE_STUCK,)),
    Kind.FULL_DISK: frozenset((HealthState.STORAGE_STUCK,)),
    Kind.SLOW_DISK: _SLOW,
    Kind.SLOW_LINK: frozenset((HealthState.SLOW,)),
    Kind.SLOW_FOLLOWER: frozenset((HealthState.SLOW_FOLLOWER,)),
}


class Cluster:
    """One cluster, tick by tick."""

    def __init__(self, random: Random, brokers: int, zones: int, *, base_load: float = 0.4) -> None:
        names = {number: "abc"[number % zones] for number in range(1, brokers + 1)}
        self._random, self._base_load = random, base_load
        self.world = Brokers(names, Random(random.random()))
        self.unattended = Brokers(names, Random(random.random()))
        endpoints = tuple(BrokerEndpoint(BrokerId(b), Zone(z), "broker", 9092) for b, z in names.items())
        self.physical = PhysicalCluster(
            id=NAME, version=1, name="one", provider="local", brokers=endpoints, health_mode="auto"
        )
        self.registry = Registry()
        self.registry.accept([Put(self.physical)])
        self.verdict = Verdict()
        self.now = 0.0  # the start of the next tick
        self.outcome = Outcome()
        self.steps: list[tuple[float, Take]] = []
        self.states: list[tuple[float, int, HealthState]] = []  # that brokers became sick with
        self._hurt: deque[float] = deque(maxlen=HURT_TICKS)
        self._stalls: list[Stall] = []
        self._failovers: list[Failover] = []
        self._rolling: list[int] = []  # brokers left to restart
        self._undetected: list[Fault] = []
        self._begun: dict[int, int] = {}  # effects: broker → `step_ms` of what was begun
        self._steady, self._last = 0, (0.0, 0.0)

    # Running

    def run(self, events: Sequence[Event], seconds: float, *, every_tick: bool = False) -> Outcome:
        """All of the events; `every_tick` leaves out no time."""
        waiting = deque(sorted(events, key=lambda event: event.since))
        while self.now < seconds or self._is_busy():
            if not every_tick and not self._is_busy():
                if not waiting:
                    break
                self.now = max(self.now, _tick_of(waiting[0].since) - BEFORE_TICKS * TICK_SECONDS)
            while waiting and waiting[0].since < self.now + TICK_SECONDS:
                self._admit(waiting.popleft())
            self.tick()
            if not every_tick and self._steady >= STEADY_TICKS:
                self._leap(min(waiting[0].since if waiting else math.inf, seconds))
            if self.now > seconds + DAY_SECONDS:
                self.outcome.unfinished += 1
                break
        self.outcome.broker_seconds += seconds * len(self.world.nodes)
        self.outcome.detected += [(fault.kind, math.inf) for fault in self._undetected]
        return self.outcome

    def tick(self) -> None:
        now, self.outcome.ticks = self.now, self.outcome.ticks + 1
        self._carry_out()
        self._roll_on()
        evidence, hurt, failed = self.world.tick(now, self._loads())
        if any(each.since < now + TICK_SECONDS and each.until > now for each in self._failovers):
            evidence = {broker: replace(seen, fenced=None) for broker, seen in evidence.items()}
        unattended = self.unattended.failing(now)
        self._count(failed, unattended, TICK_SECONDS)
        self._hurt.append(hurt)
        before = self.verdict
        self.verdict = judge(
            before.brokers,
            evidence,
            now + TICK_SECONDS,
            zones=self.world.zones,
            restarted=restarted_on_purpose(self.registry, NAME, int(now * 1000)),
            stalled=any(each.since < now + TICK_SECONDS and each.until > now for each in self._stalls),
        )
        self._note_detections(before)
        changed = self._decide()
        same = all(
            (was := before.brokers.get(broker)) is not None and was.state is each.state
            for broker, each in self.verdict.brokers.items()
        )
        self._steady = self._steady + 1 if same and not changed else 0
        self.now += TICK_SECONDS
        self._forget()

    def _is_busy(self) -> bool:
        """Something is wrong, lasts, or is left to undo."""
        nodes = self.world.nodes.values()
        if self._rolling or self._stalls or self._failovers or any(node.faults for node in nodes):
            return True
        well = all(each.state is HealthState.HEALTHY for each in self.verdict.brokers.values())
        return not well or self.registry.count(Mitigation) > 0 or self.registry.count(Intervention) > 0

    def _admit(self, event: Event) -> None:
        match event:
            case Fault():
                for world in (self.world, self.unattended):
                    world.nodes[event.broker].faults.append(event)
                known = self.verdict.brokers.get(event.broker)
                well = known is None or known.state not in SICK
                if event.kind not in HARMLESS and well and event.broker not in self._mitigated():
                    self._undetected.append(event)
            case Stall():
                self._stalls.append(event)
            case Failover():
                self._failovers.append(event)
            case Roll():
                self._rolling = list(self.world.nodes)
        self._steady = 0

    def _forget(self) -> None:
        for world in (self.world, self.unattended):
            for node in world.nodes.values():
                if node.faults:
                    node.faults = [f for f in node.faults if f.until + 2 * CATCH_UP_SECONDS > self.now]
        self._stalls = [each for each in self._stalls if each.until > self.now]
        self._failovers = [each for each in self._failovers if each.until > self.now]
        ended = [f for f in self._undetected if f.until + LATE_SECONDS < self.now]
        for fault in ended:
            self._undetected.remove(fault)
            self.outcome.detected.append((fault.kind, math.inf))

    def _leap(self, limit: float) -> None:
        """To shortly before something changes: the evidence stays the same until then."""
        faults = [fault for node in self.world.nodes.values() for fault in node.faults]
        if self._rolling or self._stalls or self._failovers or any(f.kind is Kind.FLAPPING for f in faults):
            return
        known = mitigations.of_cluster(self.registry, NAME).values()
        changes = [limit, *(f.until for f in faults if f.until > self.now)]
        changes += [spell + HOUR_SECONDS for b in self.verdict.brokers.values() for spell in b.spells]
        for incident in self.registry.all(Incident):
            changes += [entry.time_ms / 1000 + HOUR_SECONDS for entry in incident.entries[-20:]]
        for each in known:
            changes += [each.changed_ms / 1000 + wait for wait in (IMPROVED_SECONDS, LATE_SECONDS)]
        target = min(at for at in changes if at > self.now)
        skipped = _tick_of(target) - TICK_SECONDS * BEFORE_TICKS - self.now
        if skipped >= LEAP_SECONDS_MIN and math.isfinite(skipped):
            self._count(*self._last, skipped)
            self.now += skipped
        self._steady = 0

    def _count(self, failed: float, unattended: float, seconds: float) -> None:
        """Clients' probes are those of all brokers: a broker's share of them counts for its time."""
        count = len(self.world.nodes)
        self.outcome.failed_seconds += failed * seconds * count
        self.outcome.unattended_seconds += unattended * seconds * count
        self._last = failed, unattended

    def _loads(self) -> dict[int, float]:
        """Those of overloaded brokers: the average follows what happens."""
        loads: dict[int, float] = {}
        for broker, node in self.world.nodes.items():
            for fault in node.faults:
                if fault.kind is Kind.HOT and fault.since < self.now:
                    since = min(self.now, fault.until) - fault.since
                    share = 1 - math.exp(-since / LOAD_SECONDS)
                    loads[broker] = self._base_load + (0.97 - self._base_load) * share
        return loads

    def _note_detections(self, before: Verdict) -> None:
        for broker, each in self.verdict.brokers.items():
            if each.state not in SICK:
                continue
            was = before.brokers.get(broker)
            if was is None or was.state is not each.state:
                self.states.append((self.now, broker, each.state))
            mine = [fault for fault in self._undetected if fault.broker == broker]
            for fault in mine:
                self._undetected.remove(fault)
                took = self.now + TICK_SECONDS + DECIDE_SECONDS - fault.since
                self.outcome.detected.append((fault.kind, took))
                self.outcome.misnamed += each.state not in NAMED[fault.kind]

    # Decisions

    def _decide(self) -> bool:
        """Whether anything was done."""
        sick = any(each.state in SICK for each in self.verdict.brokers.values())
        if not sick and not self.registry.count(Mitigation):
            return False
        now = self.now + TICK_SECONDS + DECIDE_SECONDS
        hurt = min(self._hurt, default=None)
        situation = situation_of(
            self.registry, self.physical, self.verdict, Abilities(True, True), hurt, int(now * 1000)
        )
        acted = False
        findings = {each.broker: each for each in self.verdict.findings}
        for decision in decide(situation, now):
            match decision:
                case Take():
                    acted = self._take(decision, findings[decision.broker], now)
                case Release():
                    key = mitigations.of_cluster(self.registry, NAME)[decision.broker].id
                    release = partial(mitigations.begin_release, key=key, gave_up=decision.gave_up)
                    self._commit(release, now)
                    self.outcome.actions["give up" if decision.gave_up else "release"] += 1
                    acted = True
                case Blocked():
                    self.outcome.actions["blocked"] += 1
        self._close_incidents(now)
        return acted

    def _take(self, take: Take, finding: Finding, now: float) -> bool:
        recent = list(self._hurt)[-2:]
        begin = partial(
            mitigations.begin_step, cluster=NAME, take=take, finding=finding, hurt=max(recent, default=0.0)
        )
        try:
            self._commit(begin, now)
        except InterventionRefused:
            return False
        self.steps.append((now, take))
        self.outcome.actions[str(take.step)] += 1
        faults = [f for f in self.world.nodes[take.broker].faults if f.kind not in HARMLESS]
        if not faults:
            self.outcome.needless.append(f"{take.step}: {take.state}, {take.reason}")
        return True

    def _close_incidents(self, now: float) -> None:
        for each in [one for one in self.registry.all(Incident) if one.resolved_ms is None]:
            broker = self.verdict.brokers[int(each.broker)]
            well = broker.state is HealthState.HEALTHY and not broker.flapping
            if well and int(each.broker) not in self._mitigated():
                close = partial(mitigations.close_incident, incident_id=each.id, text="it is healthy")
                self._commit(close, now)

    def _commit(self, decision: Callable[[Registry, DecisionContext], Decision], now: float) -> None:
        context = DecisionContext(mitigations.ACTOR, int(now * 1000), self._random.choice)
        changes = decision(self.registry, context).changes
        self.registry.accept([each for each in changes if type(each.entity) not in _MUTED])

    def _mitigated(self) -> Mapping[int, Mitigation]:
        return mitigations.of_cluster(self.registry, NAME)

    # Effects

    def _carry_out(self) -> None:
        for mitigation in list(self._mitigated().values()):
            node = self.world.nodes[int(mitigation.broker)]
            if mitigation.releasing:
                self._release(mitigation)
            elif not (mitigation.done or mitigation.failed):
                self._step(mitigation, Step(mitigation.steps[-1]))
            elif node.stopped[1] == math.inf:
                raise AssertionError("a broker stays stopped")

    def _step(self, mitigation: Mitigation, step: Step) -> None:
        broker = int(mitigation.broker)
        node, since = self.world.nodes[broker], mitigation.step_ms / 1000
        first = self._begun.get(broker) != mitigation.step_ms
        if step is not Step.DEMOTE and first:
            if self._harms(broker):
                return self._end(mitigation, "a partition would fall below its minimum")
            self._begun[broker] = mitigation.step_ms
        match step:
            case Step.DEMOTE if self.now >= since + DEMOTE_SECONDS:
                node.leads = False
            case Step.EXCLUDE if self.now >= since + EXCLUDE_SECONDS:
                node.excluded = True
            case Step.RESTART if first:
                return self._restart(broker, self.now + RESTART_SECONDS)
            case Step.HOLD if first:
                return self._restart(broker, math.inf)
            case Step.HOLD if node.stopped[1] == math.inf:
                if not any(effect.stuck or effect.offline for effect, _, _ in node.effects(self.now)):
                    node.stopped = (node.stopped[0], self.now + WRITABLE_SECONDS + RESTART_SECONDS)
                return None
            case Step.RESTART | Step.HOLD if self.now >= node.stopped[1]:
                self._warm(broker, node.stopped[1])
            case _:
                return None
        return self._end(mitigation)

    def _end(self, mitigation: Mitigation, failed: str = "") -> None:
        ended = partial(mitigations.end_step, key=mitigation.id, step_ms=mitigation.step_ms, failed=failed)
        self._commit(ended, self.now)
        self._steady = 0

    def _release(self, mitigation: Mitigation) -> None:
        broker, since = int(mitigation.broker), mitigation.changed_ms / 1000
        node = self.world.nodes[broker]
        if node.excluded:
            self._restart(broker, self.now + RESTART_SECONDS)
            self._warm(broker, node.stopped[1])
            return
        synced = node.in_sync(self.now) or mitigation.gave_up
        if synced and self.now >= max(since, node.stopped[1]) + RETURN_SECONDS:
            node.leads = True
            self._commit(partial(mitigations.end_release, key=mitigation.id), self.now)
            self._steady = 0

    def _restart(self, broker: int, until: float) -> None:
        node = self.world.nodes[broker]
        node.stopped, node.excluded = (self.now, until), False
        node.faults = [f for f in node.faults if not (f.heals and f.since <= self.now)]

    def _warm(self, broker: int, since: float) -> None:
        self.world.nodes[broker].faults.append(Fault(broker, Kind.WARMING, since, since + WARM_SECONDS))

    def _harms(self, broker: int) -> bool:
        """Without it, a partition would have one replica in sync. Each of three zones has one replica."""
        zones = self.world.zones
        several = len(set(zones.values())) > 1
        others = (node for other, node in self.world.nodes.items() if other != broker)
        return any(
            not node.in_sync(self.now) and not (several and zones[node.id] == zones[broker])
            for node in others
        )

    # Rolls

    def _roll_on(self) -> None:
        """The next broker, once the last one is back; nothing while health has taken one, or one is sick."""
        if not self._rolling and not self.registry.count(Intervention):
            return
        opened = self.registry.get(Intervention, NAME)
        rolling = [each for each in (opened.open if opened else ()) if each.actor is Actor.ROLL]
        for each in rolling:
            node = self.world.nodes[int(each.brokers[0])]
            if self.now >= node.stopped[1] + CATCH_UP_SECONDS and node.in_sync(self.now):
                self._commit(partial(_closed, key=each.key), self.now)
                rolling = []
        sick = any(each.state in SICK for each in self.verdict.brokers.values())
        if rolling or not self._rolling or sick or self.registry.count(Mitigation):
            return
        broker = self._rolling[0]
        if self._harms(broker):
            return
        request = OpenIntervention(
            Actor.ROLL, f"roll-{broker}", "a roll", int(self.now * 1000),
            brokers=(BrokerId(broker),), zones=(Zone(self.world.zones[broker]),),
        )  # fmt: skip
        try:
            self._commit(partial(_opened, request=request), self.now)
        except InterventionRefused:
            return
        self._rolling.pop(0)
        self._restart(broker, self.now + RESTART_SECONDS)
        self._warm(broker, self.now + RESTART_SECONDS)


def _opened(registry: Registry, context: DecisionContext, request: OpenIntervention) -> Decision:
    return open_intervention(registry, context, NAME, request)


def _closed(registry: Registry, context: DecisionContext, key: str) -> Decision:
    return close_intervention(registry, context, NAME, Actor.ROLL, key)


def _tick_of(at: float) -> float:
    return math.floor(at / TICK_SECONDS) * TICK_SECONDS
