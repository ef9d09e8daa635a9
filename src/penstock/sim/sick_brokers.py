"""What faults of brokers do to probes and clients: the world that `sim.incidents` lets health judge.

Probes are drawn one by one at the times of a tick, with the numbers of `health.schedule` and its partitions.
Latencies, and how Kafka itself reacts, are assumptions:
- A broker without heartbeats is fenced after 9 s: others lead, and it is in no ISR.
- A follower that fetches nothing leaves the ISR after 30 s. Until then it delays writes of its leaders.
- A write without a response fails after 10 s. One that waited for less succeeds late.
- A broker that Kafka has fenced is in sync and leads again `CATCH_UP_SECONDS` after it is back.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.health.evidence import GRACE_SECONDS, IN_TIME_US, NONE, TICK_SECONDS, Evidence, Sample
from penstock.health.schedule import replicas_of
from penstock.model.events import ProbeRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

SESSION_SECONDS: Final = 9.0  # until the controller fences a broker without heartbeats
LAG_SECONDS: Final = 30.0  # until a follower that fetches nothing leaves the ISR
PROBE_SECONDS: Final = 10.0  # until a write without a response has failed
CATCH_UP_SECONDS: Final = 8.0  # of a broker that is back, until it is in every ISR: measured
FLAP_SECONDS: Final = 20.0
WRITE_US, WRITE_SPREAD = 6_000.0, 0.5  # median latency of a write, and deviation of its logarithm
ALONE, PATH, PAIR, CALLS = 2, 4, 2, 5  # probes in a tick


class Kind(StrEnum):
    FROZEN = "frozen"
    KILLED = "killed"
    CUT = "link cut"
    ONE_WAY = "link cut one way"
    FLAPPING = "link cut every 20 s"
    SLOW_DISK = "disk +200 ms"
    SLOW_FOLLOWER = "disk +200 ms, follower only"
    HUNG_DISK = "disk hung"
    FAILED_DISK = "disk error"
    FULL_DISK = "disk full"
    SLOW_LINK = "link +100 ms"
    # What is no fault of a broker
    PAUSE = "pause"  # garbage collection, or the host
    HOT = "hot tenant"
    WARMING = "warming up"  # after a restart


@dataclass(frozen=True, slots=True)
class Effect:
    silent: bool = False  # it responds to nothing, and sends no heartbeat
    unreachable: bool = False  # through the gateways
    stuck: bool = False  # no write ends
    works_us: float = 0.0  # that the broker itself works longer on each write
    offline: bool = False  # the directory of `alone` has failed, and others have not
    leads_us: float = 0.0  # more for each write that it leads
    follows_us: float = 0.0  # more for each write that it follows
    calls_us: float = 0.0


_SILENT, _CUT = Effect(silent=True), Effect(unreachable=True)
_STUCK = Effect(stuck=True)
EFFECTS: Final[Mapping[Kind, Effect]] = {
    Kind.FROZEN: _SILENT,
    Kind.KILLED: _SILENT,
    Kind.PAUSE: _SILENT,
    Kind.CUT: _CUT,
    Kind.ONE_WAY: _CUT,
    Kind.FLAPPING: _CUT,
    Kind.SLOW_DISK: Effect(leads_us=200_000.0, follows_us=200_000.0, works_us=200_000.0),
    Kind.SLOW_FOLLOWER: Effect(follows_us=200_000.0),
    Kind.HUNG_DISK: _STUCK,
    Kind.FULL_DISK: _STUCK,
    Kind.FAILED_DISK: Effect(offline=True),
    Kind.SLOW_LINK: Effect(leads_us=200_000.0, calls_us=200_000.0),  # there and back
    Kind.HOT: Effect(leads_us=150_000.0, follows_us=20_000.0, calls_us=100_000.0),
    Kind.WARMING: Effect(leads_us=80_000.0, calls_us=20_000.0),
}
_BLOCKS: Final = {kind: each.silent or each.unreachable or each.stuck for kind, each in EFFECTS.items()}
HARMLESS: Final = frozenset((Kind.PAUSE, Kind.HOT, Kind.WARMING))


@dataclass(frozen=True, slots=True)
class Fault:
    broker: int
    kind: Kind
    since: float
    until: float
    heals: bool = False  # a restart heals it

    def blocks_until(self, at: float) -> float:
        """The end of its effect at this time; the time itself if it has none."""
        if not self.since <= at < self.until:
            return at
        if self.kind is Kind.FLAPPING:
            phase, rest = divmod(at - self.since, FLAP_SECONDS)
            return at if phase % 2 else min(self.until, at + FLAP_SECONDS - rest)
        return self.until


@dataclass
class Node:
    """A broker as Kafka and the platform have it."""

    id: int
    leads: bool = True  # the platform lets it
    excluded: bool = False
    stopped: tuple[float, float] = (math.inf, -math.inf)  # on purpose: in no ISR from its beginning on
    returned: float = -math.inf  # when it was back from its last absence
    faults: list[Fault] = field(default_factory=list)
    silent_since: float = math.inf  # of the absence that lasts or was the last

    def is_stopped(self, at: float) -> bool:
        return self.stopped[0] <= at < self.stopped[1]

    def effects(self, at: float) -> Iterable[tuple[Effect, Fault, float]]:
        for fault in self.faults:
            if (end := fault.blocks_until(at)) > at:
                yield EFFECTS[fault.kind], fault, end

    def silent_until(self, at: float) -> float:
        """Until when it responds to nothing; the time itself if it does."""
        end = self.stopped[1] if self.is_stopped(at) else at
        if not self.faults:
            return end
        return max([end, *(until for effect, _, until in self.effects(at) if effect.silent)])

    def is_fenced(self, at: float) -> bool:
        if self.is_stopped(at):
            return True
        if not self.faults:
            return False
        onsets = [fault.since for effect, fault, _ in self.effects(at) if effect.silent]
        return bool(onsets) and at >= min(onsets) + SESSION_SECONDS

    def is_catching_up(self, at: float) -> bool:
        """It was fenced or stopped a moment ago."""
        ends = [self.stopped[1]] if self.stopped[1] > self.stopped[0] else []
        ends += [
            fault.until
            for fault in self.faults
            if EFFECTS[fault.kind].silent and fault.until - fault.since > SESSION_SECONDS
        ]
        return any(end <= at < end + CATCH_UP_SECONDS for end in ends)

    def in_sync(self, at: float) -> bool:
        if self.excluded or self.is_fenced(at) or self.is_catching_up(at):
            return False
        stuck = (fault.since for effect, fault, _ in self.effects(at) if effect.stuck)
        return all(at < since + LAG_SECONDS for since in stuck)

    def can_lead(self, at: float) -> bool:
        """Its partitions of several replicas."""
        if not self.leads or self.excluded or self.is_fenced(at) or self.is_catching_up(at):
            return False
        return not any(effect.offline for effect, _, _ in self.effects(at))


class Brokers:
    """All of a cluster, and what is drawn from them."""

    def __init__(self, zones: Mapping[int, str], random: Random) -> None:
        self.zones, self._random = zones, random
        self.nodes = {broker: Node(broker) for broker in zones}
        self.rings = {broker: replicas_of(broker, zones, ProbeRole.PATH) for broker in zones}
        self.pairs = {broker: replicas_of(broker, zones, ProbeRole.PAIR) for broker in zones}
        self._followed = {b: [leader for leader, pair in self.pairs.items() if b in pair[1:]] for b in zones}
        self._near = {b: frozenset(one for one, ring in self.rings.items() if b in ring) for b in zones}
        self._well = [self._healthy() for _ in range(200)]

    def affected(self, since: float) -> set[int]:
        """Brokers whose next tick is drawn probe by probe: with faults, or with partitions in common."""
        until = since + TICK_SECONDS
        direct = {
            node.id
            for node in self.nodes.values()
            if not node.leads
            or node.excluded
            or (node.stopped[0] < until and since < node.stopped[1] + CATCH_UP_SECONDS)
            or any(f.since < until and since < f.until + CATCH_UP_SECONDS for f in node.faults)
        }
        return direct.union(*(self._near[broker] for broker in direct)) if direct else direct

    def tick(self, since: float, loads: Mapping[int, float]) -> tuple[dict[int, Evidence], float, float]:
        """The evidence of a tick, the share of client probes that suffered, and of those that failed."""
        drawn = self.affected(since)
        evidence, hurt, failed = {}, 0.0, 0.0
        for broker in self.nodes:
            if broker in drawn:
                seen, broker_hurt, broker_failed = self._draw(broker, since, loads.get(broker))
                hurt, failed = hurt + broker_hurt, failed + broker_failed
            else:
                seen = self._well[int(self._random.random() * 200)]
            evidence[broker] = seen
        return evidence, hurt / len(evidence), failed / len(evidence)

    def failing(self, since: float) -> float:
        """The share of client probes that fail, and nothing else: faster."""
        if not any(_BLOCKS[fault.kind] for node in self.nodes.values() for fault in node.faults):
            return 0.0
        drawn = self.affected(since)
        return sum(self._paths(broker, since)[2] for broker in drawn) / len(self.nodes)

    # Drawing

    def _healthy(self) -> Evidence:
        def sample(count: int) -> Sample:
            return Sample(count, count, statistics.median(self._latency() for _ in range(count)))

        return Evidence(
            sample(ALONE), sample(PATH), sample(PAIR), sample(PAIR), sample(CALLS), sample(CALLS),
            fenced=False, directory=NONE, **self._calm_telemetry(),
        )  # fmt: skip

    def _latency(self) -> float:
        return WRITE_US * self._random.lognormvariate(0.0, WRITE_SPREAD)

    def _calm_telemetry(self) -> dict[str, Any]:
        load = self._random.uniform(0.1, 0.6)
        return {
            "load": load,
            "busy": load * self._random.uniform(0.7, 1.3),
            "local_us": 2_000.0,
            "wait_us": 500.0,
        }

    def _telemetry(self, node: Node, since: float, load: float | None) -> dict[str, Any]:
        """Of the newest scrape, which is up to two ticks old; nothing of a broker that does not respond."""
        at = since - TICK_SECONDS * (1 + self._random.random())
        if node.silent_until(at) > at:
            return {}
        known = self._calm_telemetry()
        for effect, fault, _ in node.effects(at):
            known["local_us"] += effect.works_us
            if fault.kind is Kind.HOT:
                known |= {"busy": self._random.uniform(0.9, 1.0), "wait_us": effect.leads_us}
            if effect.works_us:
                known["busy"] = self._random.uniform(0.5, 1.0)
        return known | ({} if load is None else {"load": load})

    def _times(self, since: float, count: int) -> list[float]:
        step, first = TICK_SECONDS / count, self._random.random() * TICK_SECONDS / count
        return [since + first + step * number for number in range(count)]

    def _draw(self, broker: int, since: float, load: float | None) -> tuple[Evidence, float, float]:
        node, end = self.nodes[broker], since + TICK_SECONDS
        path, hurt, failed = self._paths(broker, since)
        alone = [
            (at, self._write(broker, (), at))
            for at in self._times(since, ALONE)
            if not (node.is_fenced(at) or any(e.offline for e, _, _ in node.effects(at)))
        ]
        own = [
            (at, self._write(broker, self.pairs[broker][1:], at))
            for at in self._times(since, PAIR)
            if node.can_lead(at)
        ]
        followed = [
            (at, self._write(leader, self.pairs[leader][1:], at))
            for leader in self._followed[broker]
            for at in self._times(since, PAIR)
            if self.nodes[leader].can_lead(at)
        ]
        times = self._times(since, CALLS)
        seen = Evidence(
            _sample(alone, end),
            _sample(path, end),
            _sample(own, end),
            _sample(followed, end),
            _sample([(at, self._call(node, at, outside=True)) for at in times], end),
            _sample([(at, self._call(node, at, outside=False)) for at in times], end),
            fenced=node.is_fenced(end - 1.0),
            leaderless=not alone,
            **self._telemetry(node, since, load),
            leaders=frozenset(self._followed[broker]),
        )
        return seen, hurt, failed

    def _paths(self, broker: int, since: float) -> tuple[list[tuple[float, float | None]], float, float]:
        """Client probes of the broker's partition that it led; the shares that suffered, and failed."""
        led, hurt, failed = [], 0, 0
        ring = self.rings[broker]
        for at in self._times(since, PATH):
            able = [each for each in ring if self.nodes[each].can_lead(at)]
            leader = able[0] if able else broker
            latency = self._write(leader, [each for each in ring if each != leader], at)
            if leader == broker:
                led.append((at, latency))
            hurt += latency is None or latency > 100_000
            failed += latency is None
        return led, hurt / PATH, failed / PATH

    def _write(self, leader: int, followers: Sequence[int], at: float) -> float | None:
        """Microseconds; None: it failed."""
        own = self.nodes[leader]
        until, added = own.silent_until(at), 0.0
        if not own.is_fenced(at) and until > at:  # another leads once it is fenced
            until = min(until, self._fenced_at(own, at))
        for effect, _, end in own.effects(at):
            until = max(until, end if effect.unreachable or effect.stuck else at)
            added += effect.leads_us
        slowest = 0.0
        for follower in followers:
            node = self.nodes[follower]
            if not node.in_sync(at):
                continue
            if (silent := node.silent_until(at)) > at:
                until = max(until, min(silent, self._fenced_at(node, at)))
            for effect, fault, end in node.effects(at):
                if effect.stuck:
                    until = max(until, min(end, fault.since + LAG_SECONDS))
                slowest = max(slowest, effect.follows_us)
        waited = until - at
        if waited >= PROBE_SECONDS:
            return None
        return waited * 1e6 + self._latency() + (added + slowest) * self._random.uniform(0.8, 1.4)

    @staticmethod
    def _fenced_at(node: Node, at: float) -> float:
        onsets = [fault.since for effect, fault, _ in node.effects(at) if effect.silent]
        return min(onsets) + SESSION_SECONDS if onsets else at

    def _call(self, node: Node, at: float, *, outside: bool) -> float | None:
        until, added = node.silent_until(at), 0.0
        for effect, _, end in node.effects(at):
            until = max(until, end if outside and effect.unreachable else at)
            added += effect.calls_us if outside else 0.0
        waited = until - at
        return None if waited >= 2.0 else waited * 1e6 + self._latency() / 4 + added


def _sample(probes: Sequence[tuple[float, float | None]], end: float) -> Sample:
    """As known when the tick is judged: a probe without a result by then waits."""
    if not probes:
        return NONE
    limit = end + GRACE_SECONDS
    latencies = [us for at, us in probes if us is not None and at + us / 1e6 <= limit]
    median = statistics.median(latencies) if latencies else None
    return Sample(len(probes), sum(us <= IN_TIME_US for us in latencies), median)
