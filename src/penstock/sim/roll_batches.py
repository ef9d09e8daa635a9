"""A roll of a large cluster: how long does it take, and is any partition ever below its minimum?

Each step asks `fleet.rolling` what to do: the function of the control plane, with its bounds. `serial` is the
time of one restart after the other, as most operators do it. Assumptions:
- Partitions have three replicas in three zones and `min.insync.replicas=2`, placed at random within zones.
- A restart takes `RESTART_SECONDS` on the median, with a log-normal spread; one in a hundred recovers its
  logs and takes ten times as long. The median is that of small local brokers: give your own with `--restart`.
- Between two batches a broker crashes with probability `CRASHES`, and is back after `REPAIR_SECONDS`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.fleet.rolls.roll_batches import Partition
from penstock.fleet.rolls.rolling import (
    Bounds,
    Desired,
    Done,
    Elect,
    Member,
    NodeSeen,
    Observation,
    Start,
    Stop,
    next_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

ZONES: Final = 3
MIN_ISR: Final = 2
BROKERS_MIN, BROKERS_MAX = 6, 1_000
PARTITIONS_PER_BROKER: Final = 4
RESTART_SECONDS: Final = 12.0
SPREAD: Final = 0.25  # of the logarithm of a restart's time
RECOVERING: Final = 0.01  # share of restarts that recover logs
RECOVERY_FACTOR: Final = 10.0
CRASHES: Final = 0.05
REPAIR_SECONDS: Final = 60.0
STEPS_MAX: Final = 20_000

_UP: Final = NodeSeen(alive=True, ready=True)
_BACK: Final = NodeSeen(alive=True, ready=True, current=True, ordered=True)


@dataclass(frozen=True, slots=True)
class RollOutcome:
    brokers: int
    batches: int
    seconds: float
    serial_seconds: float
    zones_at_once: int  # with a broker that the roll has stopped
    under_minimum_seconds: float  # of partitions, because of brokers that the roll has stopped

    @property
    def ratio(self) -> float:
        return self.seconds / self.serial_seconds


def simulate(seed: int, brokers: int, restart_seconds: float = RESTART_SECONDS) -> RollOutcome:
    """One roll of all brokers."""
    cluster = _Cluster(Random(seed), brokers, restart_seconds)
    desired = Desired(cluster.members, frozenset(range(brokers)))
    bounds = Bounds(restart_seconds=restart_seconds)
    for _ in range(STEPS_MAX):
        step = next_step(desired, cluster.observation(), bounds)
        match step:
            case Done():
                break
            case Stop(nodes) | Start(nodes):
                cluster.restart(nodes)
            case Elect(_, keys):
                cluster.elect(keys)
            case _:
                cluster.wait()
    else:
        raise AssertionError(f"the roll does not end: {step}")
    return cluster.outcome()


class _Cluster:
    def __init__(self, random: Random, brokers: int, restart_seconds: float) -> None:
        self.random, self.brokers, self._median = random, brokers, restart_seconds
        self.members = tuple(Member(n, f"z{n % ZONES}") for n in range(brokers))
        self.seen = dict.fromkeys(range(brokers), _UP)
        self.partitions: dict[tuple[str, int], Partition] = {}
        by_zone = [[m.id for m in self.members if m.zone == f"z{z}"] for z in range(ZONES)]
        for number in range(PARTITIONS_PER_BROKER * brokers):
            replicas = [random.choice(zone) for zone in by_zone]
            random.shuffle(replicas)
            self.partitions["t", number] = Partition(
                tuple(replicas), frozenset(replicas), replicas[0], MIN_ISR
            )
        self.now = self.serial = self.under = 0.0
        self.batches = self.zones = 0
        self.crashed: int | None = None

    def observation(self) -> Observation:
        return Observation(dict(self.seen), self.partitions, now=self.now)

    def restart(self, nodes: Iterable[int]) -> None:
        """The whole batch: stopped, started, in sync, until the slowest is back."""
        batch = set(nodes)
        self.batches += 1
        self.zones = max(self.zones, len({node % ZONES for node in batch - {self.crashed}}))
        times = {node: self._restart_seconds() for node in batch}
        for key, p in self.partitions.items():
            stopped = batch.intersection(p.replicas)
            left = p.isr - stopped
            if stopped and len(left) < min(MIN_ISR, len(p.isr)):
                self.under += max(times[node] for node in stopped)
            if stopped and p.leader in stopped:
                self.partitions[key] = replace(p, leader=min(left, default=p.leader))
        self.now += max(times.values())
        self.serial += sum(times.values())
        self.seen |= dict.fromkeys(batch, _BACK)
        self.crashed = None if self.crashed in batch else self.crashed
        self._maybe_crash()

    def elect(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            p = self.partitions[key]
            self.partitions[key] = replace(p, leader=p.replicas[0], isr=frozenset(p.replicas))

    def wait(self) -> None:
        """A crashed broker is repaired."""
        self.now += REPAIR_SECONDS
        if self.crashed is not None:
            self.seen[self.crashed] = replace(self.seen[self.crashed], alive=True, ready=True)
            self._in_sync(self.crashed, inside=True)
            self.crashed = None

    def _maybe_crash(self) -> None:
        done = [node for node, seen in self.seen.items() if seen.current]
        if self.crashed is None and self.random.random() < CRASHES and len(done) < self.brokers:
            self.crashed = self.random.choice(done)
            self.seen[self.crashed] = replace(self.seen[self.crashed], ready=False)
            self._in_sync(self.crashed, inside=False)

    def _in_sync(self, broker: int, *, inside: bool) -> None:
        for key, p in self.partitions.items():
            if broker in p.replicas:
                isr = p.isr | {broker} if inside else p.isr - {broker}
                self.partitions[key] = replace(p, isr=isr)

    def _restart_seconds(self) -> float:
        slow = RECOVERY_FACTOR if self.random.random() < RECOVERING else 1.0
        return self._median * self.random.lognormvariate(0.0, SPREAD) * slow

    def outcome(self) -> RollOutcome:
        return RollOutcome(self.brokers, self.batches, self.now, self.serial, self.zones, self.under)
