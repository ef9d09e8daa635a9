"""Which brokers are sick, judged from the evidence of each tick. Pure.

Each tick of a broker gets one symptom, from the first rule that holds:

1. Nothing was probed: unknown.
2. The controller has fenced it: `fenced` if it responds on its own listener, else `down`.
3. No probe through the gateway reaches it, and it responds on its own listener: `cut-off`.
4. Most requests without data succeed, and the same way no write to the partition that only it has; or none
   to a file in its log directory; or that partition has no leader, though the broker is alive:
   `storage-stuck`.
5. It is overloaded, and its peers are not: `suspect`. That is the balancer's problem. Its load is high, or
   its request handlers have been busy in the last seconds: load is an average, and lags behind. A broker
   that itself works long on requests, or flushes its log slowly, is not overloaded: a slow disk keeps
   handlers busy, too.
6. Writes to that partition take three times as long as on its peers, and longer than the floor: `slow`. If
   none has a result, the time counts that the broker itself works on produce requests, and that of flushes.
7. Those are fast, and pairs that it follows are slow, though their leaders are fast alone: `slow-follower`.
8. Some probes failed: `suspect`.

A state follows from the last minute of symptoms: at once after two ticks without any response, or two of
stuck storage, after six of twelve slow ticks, and back to `healthy` after twelve ticks without a symptom.
That is why a state is the same after a restart of the judge, as soon as it has read the last minute again.

A tick in which every checker stalled or was refused has no symptom. A broker that is sick or recovers stays
so, in such a tick and in one without probes; any other is unknown. Neither is a reason to act.

If several brokers and more than a tenth are sick, or two zones are, the fault is the cluster's: acting on
single brokers would make it worse. What is expected is no symptom: anything of a broker that is restarted
on purpose, and slowness of one that is being filled or emptied.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.health.evidence import Evidence, Sample

TICKS_MAX: Final = 12  # that are remembered: a minute
TICKS_SILENT: Final = 2  # without any response, until the state changes
TICKS_SLOW: Final = 6  # of the last twelve
TICKS_WELL: Final = 12  # until a broker is healthy again
SLOW_RATIO: Final = 3.0  # to the median of its peers
SLOW_MADS: Final = 5.0  # median absolute deviations above that median
SLOW_FLOOR_US: Final = 100_000.0
CLUSTER_RATIO: Final = 0.1
SPELL_SECONDS: Final = 3600.0
SPELLS_MAX: Final = 3  # in an hour; then the broker is flapping
PEERS_MIN: Final = 2  # to compare with
SAMPLES_MIN: Final = 2  # probes of a tick, to be compared
LOAD_HIGH: Final = 0.8


class HealthState(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"
    RECOVERING = "recovering"
    CUT_OFF = "cut-off"
    STORAGE_STUCK = "storage-stuck"
    SLOW = "slow"
    SLOW_FOLLOWER = "slow-follower"
    DOWN = "down"
    FENCED = "fenced"


SILENT: Final = frozenset(
    (HealthState.CUT_OFF, HealthState.STORAGE_STUCK, HealthState.DOWN, HealthState.FENCED)
)
SLOWNESS: Final = frozenset((HealthState.SLOW, HealthState.SLOW_FOLLOWER))
SICK: Final = SILENT | SLOWNESS
LASTING: Final = SICK | {HealthState.RECOVERING}  # until a minute without a symptom


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    state: HealthState = HealthState.UNKNOWN
    since: float = 0.0
    symptoms: tuple[HealthState, ...] = ()  # of the last ticks, newest last
    spells: tuple[float, ...] = ()  # when it became sick, within the last hour
    reason: str = ""  # of the last symptom
    judged: bool = True  # there was evidence in the last tick

    @property
    def flapping(self) -> bool:
        return len(self.spells) >= SPELLS_MAX


@dataclass(frozen=True, slots=True)
class Finding:
    """A sick broker, with what shows it and what was ruled out."""

    broker: int
    state: HealthState
    evidence: str
    ruled_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    brokers: Mapping[int, BrokerHealth] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    cluster: str = ""  # why the fault is the cluster's; empty: it is not


def judge(
    before: Mapping[int, BrokerHealth],
    evidence: Mapping[int, Evidence],
    now: float,
    *,
    zones: Mapping[int, str],
    restarted: Collection[int] = (),
    moved: Collection[int] = (),
    stalled: bool = False,
) -> Verdict:
    """The states after one tick. Brokers may be `restarted` on purpose, or `moved`: filled or emptied."""
    brokers: dict[int, BrokerHealth] = {}
    findings = []
    for broker, seen in evidence.items():
        known = before.get(broker, BrokerHealth(since=now))
        if stalled:
            brokers[broker] = _unjudged(known, now)
            continue
        symptom, reason = _symptom(broker, evidence)
        if broker in restarted and symptom is not HealthState.HEALTHY:
            symptom, reason = HealthState.UNKNOWN, "it is restarted on purpose"
        if broker in moved and symptom in SLOWNESS:
            symptom, reason = HealthState.UNKNOWN, "partitions are moved to it or away from it"
        brokers[broker] = after = _after(known, symptom, reason, now)
        if after.state in SICK:
            findings.append(Finding(broker, after.state, after.reason, _ruled_out(seen, after.state)))
    return Verdict(brokers, tuple(findings), _cluster_fault(brokers, zones))


def _symptom(broker: int, evidence: Mapping[int, Evidence]) -> tuple[HealthState, str]:
    seen = evidence[broker]
    through = (seen.reach, seen.path, seen.alone)
    if not seen.known:
        return HealthState.UNKNOWN, "no probe was sent"
    if seen.fenced:
        inside = seen.inner.succeeded > 0
        state = HealthState.FENCED if inside else HealthState.DOWN
        return state, "the controller has fenced it" + (", and it responds" if inside else "")
    if seen.inner.all_failed and seen.reach.all_failed:
        return HealthState.DOWN, "it responds neither through the gateway nor on its own listener"
    if all(each.succeeded == 0 for each in through) and seen.reach.sent and seen.inner.succeeded:
        return HealthState.CUT_OFF, "no probe through the gateway reaches it, and it responds inside"
    responds = seen.reach.succeeded or seen.inner.succeeded
    # While a link is cut or heals within the tick, writes fail with the requests without data.
    reached = 2 * seen.reach.succeeded > seen.reach.sent or not seen.reach.sent
    if seen.alone.all_failed and responds and reached:
        return HealthState.STORAGE_STUCK, "no write succeeds, and requests without data do"
    if seen.directory.all_failed and not seen.alone.succeeded and responds:
        return HealthState.STORAGE_STUCK, "its log directory cannot be written"
    if seen.leaderless and seen.fenced is False and responds:
        return HealthState.STORAGE_STUCK, "the partition that only it has is offline, and it is alive"
    peers = [other for other in evidence if other != broker]
    if _overloaded(seen, [evidence[other] for other in peers]):
        return HealthState.SUSPECT, f"it is {_strain(seen):.0%} loaded, which is for the balancer to change"
    if ratio := _slow_alone(broker, evidence):
        return HealthState.SLOW, f"its writes take {ratio:.0f} times as long as those of its peers"
    ratio = _slow_inside(seen, [evidence[other] for other in peers])
    if ratio and seen.alone.median_us is None:
        return HealthState.SLOW, f"it works {ratio:.0f} times as long on produce requests as its peers"
    ratio = _slow(seen.followed, (evidence[other].followed for other in peers))
    if ratio and not any(_slow_alone(leader, evidence) for leader in seen.leaders):
        return HealthState.SLOW_FOLLOWER, f"pairs that it follows take {ratio:.0f} times as long as others"
    if any(each.sent > each.succeeded for each in through):
        return HealthState.SUSPECT, "some probes failed"
    return HealthState.HEALTHY, ""


def _overloaded(own: Evidence, peers: Sequence[Evidence]) -> bool:
    strain = _strain(own)
    if strain is None or strain < LOAD_HIGH:
        return False
    others = [each for each in map(_strain, peers) if each is not None]
    if not others or statistics.median(others) >= LOAD_HIGH:
        return False
    return not _slow_inside(own, peers)


def _strain(seen: Evidence) -> float | None:
    """0 to 1; None: unknown."""
    if seen.load is None or seen.busy is None:
        return seen.busy if seen.load is None else seen.load
    return max(seen.load, seen.busy)


def _slow_inside(own: Evidence, peers: Sequence[Evidence]) -> float:
    """How many times longer than its peers it works on produce requests, or flushes; 0: not much longer."""
    local = _times_slower(own.local_us, [each.local_us for each in peers])
    return max(local, _times_slower(own.flush_us, [each.flush_us for each in peers]))


def _slow_alone(broker: int, evidence: Mapping[int, Evidence]) -> float:
    if broker not in evidence:
        return 0.0
    return _slow(evidence[broker].alone, (each.alone for other, each in evidence.items() if other != broker))


def _slow(own: Sample, peers: Iterable[Sample]) -> float:
    """How many times slower than its peers; 0 if it is not, or if there are too few to compare with."""
    if own.sent < SAMPLES_MIN or (own.median_us or 0.0) < SLOW_FLOOR_US:
        return 0.0
    return _times_slower(own.median_us, [each.median_us for each in peers])


def _times_slower(own: float | None, peers: Sequence[float | None]) -> float:
    if own is None or own < SLOW_FLOOR_US:
        return 0.0
    others = [each for each in peers if each is not None]
    if len(others) < PEERS_MIN:
        return 0.0
    middle = statistics.median(others)
    deviation = statistics.median(abs(each - middle) for each in others)
    if own < SLOW_RATIO * middle or own < middle + SLOW_MADS * deviation:
        return 0.0
    return own / max(middle, 1.0)


def _after(known: BrokerHealth, symptom: HealthState, reason: str, now: float) -> BrokerHealth:
    symptoms = (*known.symptoms, symptom)[-TICKS_MAX:]
    spells = tuple(at for at in known.spells if abs(now - at) < SPELL_SECONDS)  # the clock may be set back
    state = _state(known.state, symptoms)
    if state in SICK and known.state not in SICK:
        spells = (*spells, now)
    shown = reason if symptom in SICK or state not in SICK else known.reason
    since = known.since if state is known.state else now
    return BrokerHealth(state, since, symptoms, spells, shown, judged=symptom is not HealthState.UNKNOWN)


def _unjudged(known: BrokerHealth, now: float) -> BrokerHealth:
    if known.state in LASTING or known.state is HealthState.UNKNOWN:
        return replace(known, judged=False)
    reason = "every checker stalled or was refused"
    return replace(known, state=HealthState.UNKNOWN, since=now, reason=reason, judged=False)


def _state(before: HealthState, symptoms: tuple[HealthState, ...]) -> HealthState:
    last = symptoms[-TICKS_SILENT:]
    if len(last) == TICKS_SILENT and all(each in SILENT for each in last):
        if last[-1] is not HealthState.STORAGE_STUCK or len(set(last)) == 1:
            return last[-1]
        # One that was down responds before it can be written: a restart now would only delay it.
        return before if before in SILENT else last[0]
    slow = [each for each in symptoms if each in SLOWNESS]
    if len(slow) >= TICKS_SLOW:
        return statistics.mode(slow)
    if symptoms[-1] is HealthState.UNKNOWN:
        return before if before in LASTING else HealthState.UNKNOWN
    well = 0
    for each in reversed(symptoms):
        if each is not HealthState.HEALTHY:
            break
        well += 1
    if before in LASTING:
        if well >= TICKS_WELL:
            return HealthState.HEALTHY
        return HealthState.RECOVERING if well else before
    return HealthState.HEALTHY if symptoms[-1] is HealthState.HEALTHY else HealthState.SUSPECT


def _cluster_fault(brokers: Mapping[int, BrokerHealth], zones: Mapping[int, str]) -> str:
    """Judged by the newest symptoms, too, and until all recover: brokers of one fault begin and end apart."""
    sick = [
        broker
        for broker, each in brokers.items()
        if each.state in LASTING or (each.symptoms and each.symptoms[-1] in SICK)
    ]
    if len(sick) > 1 and len(sick) > CLUSTER_RATIO * len(brokers):
        return f"{len(sick)} of {len(brokers)} brokers are sick"
    affected = {zones.get(broker, "") for broker in sick}
    return f"zones {', '.join(sorted(affected))} are affected" if len(affected) > 1 else ""


def _ruled_out(seen: Evidence, state: HealthState) -> tuple[str, ...]:
    out = []
    if seen.inner.succeeded and state is not HealthState.FENCED:
        out.append("down: it responds on its own listener")
    if seen.fenced is False:
        out.append("fenced: the controller receives its heartbeats")
    if seen.reach.succeeded:
        out.append("cut-off: requests through the gateway succeed")
    if seen.alone.succeeded:
        out.append("storage-stuck: writes succeed")
    if seen.directory.succeeded:
        out.append("storage: its log directory can be written")
    strain = _strain(seen)
    if seen.load is not None and strain is not None and strain < LOAD_HIGH:
        out.append(f"overload: its load is {seen.load:.0%}")
    if state is HealthState.SLOW and seen.local_us is not None and seen.local_us < SLOW_FLOOR_US:
        out.append(f"storage: it works {seen.local_us / 1000:.0f} ms on a produce request")
    if state is HealthState.CUT_OFF and not seen.pressed:
        out.append("clients: no gateway reports requests that wait for it")
    return tuple(out)
