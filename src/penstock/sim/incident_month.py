"""Months of `sim.incidents`: which faults and noise a fleet has, the scripted cases, and calm days."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.health.detector import HealthState
from penstock.health.mitigation import Step
from penstock.model.entities import Incident, IncidentState, Mitigation
from penstock.sim.incidents import DAY_SECONDS, NAMED, Cluster, Failover, Outcome, Roll, Stall
from penstock.sim.sick_brokers import Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.sim.incidents import Event

BROKERS_MIN, BROKERS_MAX = 6, 24
ZONES: Final = 3
CLUSTERS_MAX, DAYS_MAX = 1_000, 90
SECONDS_MIN, SECONDS_MAX = 20.0, 2 * DAY_SECONDS  # of faults
SLOW_SECONDS_MIN: Final = 90.0  # a broker is slow after half a minute at the earliest
FLAPPING_SECONDS_MAX: Final = 3_600.0
HEALED_SHARE: Final = 1 / 3  # of storage faults and slow disks
FAULTS_PER_BROKER_DAY: Final = 0.0037
BLOCKING_SHARE: Final = 2 / 3
BLOCKING: Final = (Kind.CUT, Kind.ONE_WAY, Kind.HUNG_DISK, Kind.FULL_DISK)
OTHERS: Final = (
    Kind.FROZEN, Kind.KILLED, Kind.FLAPPING, Kind.FAILED_DISK,
    Kind.SLOW_DISK, Kind.SLOW_FOLLOWER, Kind.SLOW_LINK,
)  # fmt: skip
SLOW: Final = frozenset((Kind.SLOW_DISK, Kind.SLOW_FOLLOWER, Kind.SLOW_LINK))
STORAGE: Final = frozenset((Kind.HUNG_DISK, Kind.FULL_DISK, Kind.SLOW_DISK))
# Noise, of each broker or cluster and day
PAUSES_PER_DAY: Final = 0.02  # longer than a second
HOT_PER_DAY: Final = 0.01
STALLS_PER_DAY: Final = 0.14
FAILOVERS_PER_DAY: Final = 0.14
BLIPS_PER_DAY: Final = 0.02  # of a zone
# Seconds within which the detector shows a fault on real clusters; twice as many are allowed here.
DETECT_SECONDS: Final[Mapping[Kind, float]] = {
    Kind.FROZEN: 15, Kind.KILLED: 15, Kind.CUT: 15, Kind.ONE_WAY: 15, Kind.FLAPPING: 15,
    Kind.HUNG_DISK: 20, Kind.FAILED_DISK: 20, Kind.FULL_DISK: 20,
    Kind.SLOW_DISK: 75, Kind.SLOW_FOLLOWER: 75, Kind.SLOW_LINK: 75,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    clusters: int = 300
    days: float = 30.0


def month(seed: int, scale: Scale) -> Outcome:
    """All clusters with faults and noise."""
    total = Outcome()
    for number in range(scale.clusters):
        random = Random(f"{seed}/{number}")
        brokers, seconds = random.randint(BROKERS_MIN, BROKERS_MAX), scale.days * DAY_SECONDS
        events = [*faults(random, brokers, seconds), *noise(random, brokers, seconds)]
        total.add(Cluster(random, brokers, ZONES).run(events, seconds))
    return total


def calm(seed: int, days: float = 1.0, brokers: int = BROKERS_MIN) -> Outcome:
    """One cluster without a fault, tick by tick, with as much noise on a day as others have in a month."""
    random, seconds = Random(f"calm/{seed}"), days * DAY_SECONDS
    events = list(noise(random, brokers, seconds, times=30 / days))
    return Cluster(random, brokers, ZONES).run(events, seconds, every_tick=True)


def detected_share(outcome: Outcome) -> float:
    """Of the planted faults, within twice the real time."""
    due = [took <= 2 * DETECT_SECONDS[kind] for kind, took in outcome.detected]
    return sum(due) / len(due) if due else 1.0


def faults(random: Random, brokers: int, seconds: float) -> Iterator[Fault]:
    count = _poisson(random, FAULTS_PER_BROKER_DAY * brokers * seconds / DAY_SECONDS)
    for _ in range(count):
        kind = random.choice(BLOCKING if random.random() < BLOCKING_SHARE else OTHERS)
        least = SLOW_SECONDS_MIN if kind in SLOW else SECONDS_MIN
        length = math.exp(random.uniform(math.log(least), math.log(SECONDS_MAX)))
        if kind is Kind.FLAPPING:
            length = min(length, FLAPPING_SECONDS_MAX)
        since = random.uniform(0, seconds)
        heals = kind in STORAGE and random.random() < HEALED_SHARE
        yield Fault(random.randint(1, brokers), kind, since, min(seconds, since + length), heals)


def noise(random: Random, brokers: int, seconds: float, times: float = 1.0) -> Iterator[Event]:
    days = seconds / DAY_SECONDS * times

    def moments(per_day: float) -> Iterator[float]:
        for _ in range(_poisson(random, per_day * days)):
            yield random.uniform(0, seconds)

    for at in moments(PAUSES_PER_DAY * brokers):
        yield Fault(
            random.randint(1, brokers), Kind.PAUSE, at, at + min(8.0, random.lognormvariate(0.7, 0.5))
        )
    for at in moments(HOT_PER_DAY * brokers):
        length = random.lognormvariate(math.log(240.0), 0.7)
        yield Fault(random.randint(1, brokers), Kind.HOT, at, at + length)
    for at in moments(STALLS_PER_DAY):
        yield Stall(at, at + random.uniform(1.0, 60.0))
    for at in moments(FAILOVERS_PER_DAY):
        yield Failover(at, at + random.uniform(1.0, 10.0))
    for at in moments(BLIPS_PER_DAY):
        zone, length = random.randrange(ZONES), random.uniform(2.0, 8.0)
        for broker in range(1, brokers + 1):
            if broker % ZONES == zone:
                yield Fault(broker, Kind.PAUSE, at, at + length)
    if seconds * times >= 7 * DAY_SECONDS:
        yield Roll(random.uniform(0, seconds * 0.9))


def _poisson(random: Random, mean: float) -> int:
    count, left = 0, random.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + random.expovariate(1.0)
    return count


# Scripted cases


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: Kind
    first: Step | None  # that must be taken first; None: nothing may be done
    seconds: float = 600.0
    brokers: tuple[int, ...] = (2,)


CASES: Final = (
    Case("broker frozen", Kind.FROZEN, Step.DEMOTE),
    Case("broker killed", Kind.KILLED, Step.DEMOTE),
    Case("link cut", Kind.CUT, Step.DEMOTE),
    Case("link cut one way", Kind.ONE_WAY, Step.DEMOTE),
    Case("link cut every 20 s", Kind.FLAPPING, Step.DEMOTE),
    Case("disk +200 ms", Kind.SLOW_DISK, Step.EXCLUDE),
    Case("disk +200 ms, follower only", Kind.SLOW_FOLLOWER, Step.EXCLUDE),
    Case("disk hung", Kind.HUNG_DISK, Step.DEMOTE),
    Case("disk error in one directory", Kind.FAILED_DISK, Step.DEMOTE),
    Case("disk full", Kind.FULL_DISK, Step.DEMOTE),
    Case("link +100 ms", Kind.SLOW_LINK, Step.EXCLUDE),
    Case("zone cut", Kind.CUT, None, brokers=(2, 5)),
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    name: str
    failures: tuple[str, ...]
    detected_seconds: float  # inf: never
    steps: tuple[str, ...] = field(default=())

    @property
    def handled(self) -> bool:
        return not self.failures


def play(case: Case, seed: int) -> CaseResult:
    """On six brokers in three zones, until everything is healthy again and nothing is left to undo."""
    cluster, since = Cluster(Random(f"{case.name}/{seed}"), BROKERS_MIN, ZONES), 61.0
    planted = [Fault(broker, case.kind, since, since + case.seconds) for broker in case.brokers]
    outcome = cluster.run(planted, since + case.seconds)
    took = max((seconds for _, seconds in outcome.detected), default=math.inf)
    steps = tuple(str(take.step) for _, take in cluster.steps)
    return CaseResult(case.name, tuple(_failures(case, cluster, took)), took, steps)


def _failures(case: Case, cluster: Cluster, took: float) -> Iterator[str]:
    taken = [take for _, take in cluster.steps]
    if took > 2 * DETECT_SECONDS[case.kind]:
        yield f"detected after {took:g} s"
    if case.first is None:
        if taken:
            yield f"{taken[0].step} broker {taken[0].broker}, which is a fault of the cluster"
    elif not taken or taken[0].step is not case.first:
        yield f"the first step is {taken[0].step if taken else 'missing'}"
    if any(take.broker not in case.brokers for take in taken):
        yield "another broker was acted on"
    if any(state not in NAMED[case.kind] for at, _, state in cluster.states if at < 61.0 + case.seconds):
        yield f"judged {', '.join(sorted({str(state) for _, _, state in cluster.states}))}"
    yield from _left_over(cluster)


def _left_over(cluster: Cluster) -> Iterator[str]:
    if cluster.registry.count(Mitigation):
        yield "a mitigation is left"
    if any(each.state is not IncidentState.RESOLVED for each in cluster.registry.all(Incident)):
        yield "an incident is open"
    if any(not node.leads or node.excluded for node in cluster.world.nodes.values()):
        yield "a broker does not lead"
    if any(each.state is not HealthState.HEALTHY for each in cluster.verdict.brokers.values()):
        yield "a broker is not healthy"
