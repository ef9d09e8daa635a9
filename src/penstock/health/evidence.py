"""What the probes of one tick show about each broker. Pure.

Everything comes from `_penstock.health`, `_penstock.load` and `_penstock.pressure`, so that a decision can be
replayed from the topics. What no probe shows is unknown, never healthy. If several checkers probe a broker
and only one of them fails, the fault is on that checker's side, and its failures do not count. Neither do
probes of a checker that stalled, or that the gateways refused, in that tick.

A probe without a result after two seconds counts as failed, whether or not it succeeds later. One of a
partition without a leader was sent to no broker, and shows nothing about its storage.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.model.events import Probe, ProbeRole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.model.events import BrokerLoad, HealthProbe

TICK_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 2.5  # from when a probe is due until its result, or that it waits, is known
IN_TIME_US: Final = 2_000_000
STALL_US: Final = 1_000_000  # of the checker's own loop
NOT_ALIVE: Final = "FENCED"  # the error of a `session` probe of a broker without a session
FOLLOWED: Final = "followed"  # pairs in which the broker is the follower
LEADERLESS: Final = "leaderless"
HURT_US: Final = 100_000  # latency from which a client notices
_PINNED: Final = frozenset((ProbeRole.ALONE, ProbeRole.PAIR, ProbeRole.PATH))
_NO_BROKER: Final = frozenset((ProbeRole.SELF, ProbeRole.CONNECT))


@dataclass(frozen=True, slots=True)
class Sample:
    """Probes of one kind."""

    sent: int = 0
    succeeded: int = 0  # in time
    median_us: float | None = None  # of those with a result, late or not

    @property
    def all_failed(self) -> bool:
        return self.sent > 0 and self.succeeded == 0


NONE: Final = Sample()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One broker in one tick."""

    alone: Sample = NONE
    path: Sample = NONE
    pair: Sample = NONE  # that it leads
    followed: Sample = NONE  # pairs that it follows
    reach: Sample = NONE
    inner: Sample = NONE
    fenced: bool | None = None  # None: unknown
    directory: Sample = NONE  # of local brokers
    leaderless: bool = False  # the partition that only it has had no leader all the time
    load: float | None = None  # 0 to 1; None: unknown, as the next four
    busy: float | None = None  # 0 to 1, of the request handlers in the last seconds
    wait_us: float | None = None  # of a request in the broker's queues
    local_us: float | None = None  # in which the broker itself worked on a produce request
    flush_us: float | None = None  # of a flush of a log
    pressed: bool = False  # clients' requests wait at a gateway
    leaders: frozenset[int] = frozenset()  # of the pairs that it follows

    @property
    def known(self) -> bool:
        return any(s.sent for s in (self.alone, self.path, self.reach, self.inner))


def evidence_of(probes: Iterable[HealthProbe], brokers: Collection[int]) -> dict[int, Evidence]:
    """The evidence of one tick, for each of these brokers."""
    rows: dict[tuple[int, str], dict[str, list[HealthProbe]]] = defaultdict(lambda: defaultdict(list))
    for probe in unique(probes):
        role = role_of(probe)
        if probe.probe is Probe.CONSUME or role in _NO_BROKER:
            continue  # shows nothing about a broker that its produce probe does not
        broker = int(probe.broker)
        if role in _PINNED and probe.leader is None:
            if role is ProbeRole.ALONE:
                rows[broker, LEADERLESS][probe.checker].append(probe)
            continue
        if probe.moved:
            continue
        rows[broker, str(role)][probe.checker].append(probe)
        if role is ProbeRole.PAIR and probe.follower is not None:
            rows[probe.follower, FOLLOWED][probe.checker].append(probe)
    return {broker: _evidence(broker, rows) for broker in brokers}


def role_of(probe: HealthProbe) -> ProbeRole:
    """The role; of a probe that waits, the one that waits."""
    return ProbeRole(probe.error or "") if probe.role is ProbeRole.WAITING else probe.role


def unique(probes: Iterable[HealthProbe]) -> list[HealthProbe]:
    """A probe that was reported as waiting counts once, with its result if that is known."""
    newest: dict[tuple[str, int, str, str, int], HealthProbe] = {}
    for probe in probes:
        key = (probe.checker, int(probe.broker), str(role_of(probe)), str(probe.probe), probe.sequence)
        if key not in newest or newest[key].role is ProbeRole.WAITING:
            newest[key] = probe
    return list(newest.values())


def reliable(probes: Sequence[HealthProbe], since_ms: int, until_ms: int) -> frozenset[str]:
    """Checkers that reported on themselves, and neither stalled nor were refused, in this time."""
    reporting, disturbed = set(), set()
    for probe in probes:
        if probe.role is not ProbeRole.SELF:
            continue
        late_ms = (probe.latency_us or 0) // 1000
        if probe.time_ms < since_ms or probe.time_ms - late_ms > until_ms:
            continue
        if probe.time_ms <= until_ms:
            reporting.add(probe.checker)
        if probe.error is not None or (probe.latency_us or 0) > STALL_US:
            disturbed.add(probe.checker)
    return frozenset(reporting - disturbed)


def with_context(
    evidence: Mapping[int, Evidence], loads: Iterable[BrokerLoad], pressed: Collection[int]
) -> dict[int, Evidence]:
    """Adds what metrics and gateways show."""
    by_broker = {int(each.broker): each for each in loads}
    return {b: replace(_with_load(e, by_broker.get(b)), pressed=b in pressed) for b, e in evidence.items()}


def _with_load(evidence: Evidence, load: BrokerLoad | None) -> Evidence:
    if load is None:
        return evidence
    return replace(
        evidence,
        load=load.load,
        busy=load.recent_handlers_busy,
        wait_us=_microseconds(load.recent_wait_ms),
        local_us=_microseconds(load.recent_local_ms),
        flush_us=_microseconds(load.recent_flush_ms),
    )


def _microseconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds * 1000


def hurt_share(probes: Iterable[HealthProbe]) -> float | None:
    """The share of `path` probes that failed or took long, whichever broker led; None without any."""
    paths = [p for p in unique(probes) if role_of(p) is ProbeRole.PATH and p.probe is Probe.PRODUCE]
    if not paths:
        return None
    return sum(p.latency_us is None or p.latency_us > HURT_US for p in paths) / len(paths)


def _evidence(broker: int, rows: dict[tuple[int, str], dict[str, list[HealthProbe]]]) -> Evidence:
    def sample(role: str) -> Sample:
        return _sample(list(rows.get((broker, role), {}).values()))

    session = [p for each in rows.get((broker, str(ProbeRole.SESSION)), {}).values() for p in each]
    # Probes come from several partitions, in an order that differs from reading to reading.
    newest = max(session, key=lambda p: (p.time_ms, p.checker, p.sequence), default=None)
    fenced = None if newest is None else newest.error == NOT_ALIVE
    alone = sample(str(ProbeRole.ALONE))
    return Evidence(
        alone,
        sample(str(ProbeRole.PATH)),
        sample(str(ProbeRole.PAIR)),
        sample(FOLLOWED),
        sample(str(ProbeRole.REACH)),
        sample(str(ProbeRole.INNER)),
        fenced,
        sample(str(ProbeRole.DIRECTORY)),
        leaderless=not alone.sent and (broker, LEADERLESS) in rows,
        leaders=frozenset(int(p.broker) for each in rows.get((broker, FOLLOWED), {}).values() for p in each),
    )


def _sample(by_checker: Sequence[Sequence[HealthProbe]]) -> Sample:
    succeeding = [probes for probes in by_checker if any(_in_time(p) for p in probes)]
    counted = [p for probes in (succeeding or by_checker) for p in probes]
    latencies = [p.latency_us for p in counted if p.latency_us is not None]
    median = statistics.median(latencies) if latencies else None
    return Sample(len(counted), sum(_in_time(p) for p in counted), median)


def _in_time(probe: HealthProbe) -> bool:
    return probe.latency_us is not None and (
        probe.latency_us <= IN_TIME_US or probe.role is ProbeRole.DIRECTORY
    )
