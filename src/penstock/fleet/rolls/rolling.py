"""The next step of a roll, decided from what the cluster shows. Pure.

A roll restarts nodes so that they run what the fleet file describes. `next_step` is called in every round.
What has been done is observed, not remembered, so any control plane continues a roll. Its rules:

1. Controllers come before brokers, and the active controller comes last. A controller stops only if a
   majority of voters without it is caught up.
2. A node that is down is started first. A live node that is not ready may be recovering its logs: it is
   waited for, and never stopped.
3. Brokers stop zone by zone: while a broker is down, no broker of another zone stops.
4. A broker stops only if no partition then falls below its minimum of in-sync replicas. The ISR is the
   controller's; replicas that are being removed, or whose broker is down, do not count. Partitions that can
   never meet this rule (`at_risk`) are listed and do not block.
5. The next batch waits until this one is unfenced, in sync and leads again, and its probes show no fault.
6. Anything unexpected pauses the roll, with the evidence. Nodes that were ordered to restart still do.

It promises that an observation which does not change leads to the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.fleet.rolls.roll_batches import Partition, at_risk, harm_of, safe_batch, zone_cap
from penstock.model.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.fleet.rolls.roll_batches import PartitionKey

SHOWN_MAX: Final = 3  # partitions or nodes that a reason names


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster."""

    id: int
    zone: str
    broker: bool = True
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    members: tuple[Member, ...]  # all nodes of the cluster
    scope: frozenset[int]  # those that must run in a process of this roll
    allow_downtime: bool = False  # the only controller, and the only broker, may restart


@dataclass(frozen=True, slots=True)
class NodeSeen:
    alive: bool  # its process runs
    ready: bool  # it serves: unfenced, or a voter that responds
    current: bool = False  # its process was started for this roll
    ordered: bool = False  # its restart was ordered for this roll
    ordered_seconds: float = 0.0  # since then
    wrong: str = ""  # what is wrong with the process that came back, in words
    load: float = 0.0  # of the broker, 0 to 1


@dataclass(frozen=True, slots=True)
class QuorumSeen:
    leader: int
    voters: frozenset[int]
    caught_up: frozenset[int]  # voters that have fetched within the fetch timeout; the leader is one


@dataclass(frozen=True, slots=True)
class Observation:
    nodes: Mapping[int, NodeSeen]
    partitions: Mapping[PartitionKey, Partition]
    quorum: QuorumSeen | None = None
    taken: frozenset[int] = frozenset()  # brokers that health has taken: it decides when they restart
    demoted: frozenset[int] = frozenset()  # brokers that others have demoted: leadership does not return
    sick: Mapping[int, str] = field(default_factory=dict)  # brokers whose probes show a fault, and which
    burning: str = ""  # which error budget burns, in words
    slow: str = ""  # which latency is above its baseline, in words
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    restart_seconds: float = 30.0  # of one batch, as measured
    start_seconds_max: float = 300.0  # until an ordered node must be back
    seconds_max: float = 8 * 3600.0  # of the whole roll; more brokers at once if need be
    load_max: float = 0.8  # that the remaining brokers may carry
    deadline: float = float("inf")  # as `Observation.now`
    batch_max: int = 1_000


@dataclass(frozen=True, slots=True)
class Stop:
    """Restart these nodes, with a controlled shutdown."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Start these nodes, which are down."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Elect:
    """Leadership returns to these brokers."""

    brokers: tuple[int, ...]
    partitions: tuple[PartitionKey, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    risked: tuple[PartitionKey, ...] = field(default=())  # partitions that could not be kept available


Step = Stop | Start | Wait | Elect | Pause | Done


def next_step(desired: Desired, observed: Observation, bounds: Bounds) -> Step:
    """What the roll does now."""
    roll = _Roll(desired, observed, bounds)
    if (pause := roll.pause()) is not None:
        return pause
    if (step := roll.settle()) is not None:
        return step
    if (step := roll.start()) is not None:
        return step
    return roll.controllers() or roll.brokers() or Done(at_risk(observed.partitions))


def planned_order(
    desired: Desired, observed: Observation, bounds: Bounds
) -> tuple[tuple[tuple[int, ...], ...], str]:
    """The batches of the roll if every restart succeeds, and what blocks the first one that cannot begin."""
    nodes, batches = dict(observed.nodes), []
    for _ in range(2 * len(desired.members) + 1):
        now = replace(observed, nodes=nodes)
        match next_step(desired, now, bounds):
            case Stop(batch) | Start(batch):
                batches.append(batch)
                back = NodeSeen(alive=True, ready=True, current=True)
                nodes |= {node: replace(back, load=nodes[node].load) for node in batch}
            case Wait(reason) | Pause(reason):
                return tuple(batches), reason
            case Elect() | Done():
                break
    return tuple(batches), ""


class _Roll:
    """One decision. A class so that each phase can be read by itself."""

    def __init__(self, desired: Desired, observed: Observation, bounds: Bounds) -> None:
        self.desired, self.observed, self.bounds = desired, observed, bounds
        self.members = {member.id: member for member in desired.members}
        self.pending = [
            member
            for member in desired.members
            if member.id in desired.scope and not self._seen(member.id).current
        ]
        self.leader = None if observed.quorum is None else observed.quorum.leader
        self.down = [m for m in desired.members if m.broker and not self._seen(m.id).ready]
        self.ready = frozenset(m.id for m in desired.members if m.broker and self._seen(m.id).ready)

    def _seen(self, node: int) -> NodeSeen:
        return self.observed.nodes.get(node, NodeSeen(alive=False, ready=False))

    # Phases

    def pause(self) -> Pause | None:
        seen, desired = self.observed, self.desired
        unfinished = bool(self.pending) or bool(self._unsettled())
        if unfinished and seen.now > self.bounds.deadline:
            return Pause("the deadline has passed", (f"{counted(len(self.pending), 'node')} left",))
        for member in desired.members:
            node = self._seen(member.id)
            if node.wrong:
                return Pause(f"node {member.id} came back wrong", (node.wrong,))
            late = node.ordered and not (node.current and node.ready)
            if late and node.ordered_seconds > self.bounds.start_seconds_max:
                limit = f"{self.bounds.start_seconds_max:.0f} s"
                return Pause(f"node {member.id} is not back after {limit}", (_state(node),))
            if node.ordered_seconds > self.bounds.start_seconds_max and (fault := self._sick(member.id)):
                return Pause(f"broker {member.id} is sick since its restart", (fault,))
        if not unfinished:
            return None
        if seen.burning or seen.slow:
            return Pause(seen.burning or seen.slow, tuple(filter(None, (seen.burning, seen.slow))))
        stray = [m.id for m in self.down if m.id not in desired.scope and m.id not in seen.taken]
        if stray:
            return Pause(f"broker {stray[0]} is down, and not because of this roll", _named(stray))
        return None

    def settle(self) -> Step | None:
        """What the nodes that were restarted still lack."""
        for member in self.desired.members:
            node = self._seen(member.id)
            if node.ordered and not node.current:
                return Wait(f"node {member.id} restarts")
        unsettled = self._unsettled()
        for node_id in unsettled:
            if not self._seen(node_id).ready:
                return Wait(f"node {node_id} starts")
        behind = {
            key: partition
            for key, partition in self.observed.partitions.items()
            if any(b in unsettled and b not in partition.isr for b in partition.settled)
        }
        if behind:
            topic, number = min(behind)
            return Wait(f"{counted(len(behind), 'partition')} not in sync yet, {topic}-{number} among them")
        if unsettled and (keys := self._returning(unsettled)):
            return Elect(tuple(sorted(unsettled)), keys)
        for member in self.desired.members:
            if fault := self._sick(member.id):
                return Wait(f"broker {member.id} is restarted: {fault}")
        return None

    def start(self) -> Step | None:
        """Unready nodes come first; those that health holds stopped are its own to start."""
        taken = self.observed.taken
        dead = [m.id for m in self.pending if not self._seen(m.id).alive and m.id not in taken]
        if dead:
            return Start(tuple(sorted(dead)))
        for member in self.pending:
            node = self._seen(member.id)
            if not node.ready and member.id not in taken:
                return Wait(f"node {member.id} is not ready; it may be recovering its logs")
        return None

    def controllers(self) -> Step | None:
        """One at a time, the active one last. Combined nodes stop as brokers do."""
        pending = [m for m in self.pending if m.controller and not m.broker]
        if not pending:
            return None
        quorum = self.observed.quorum
        if quorum is None:
            return Wait("the quorum cannot be described")
        for member in sorted(pending, key=lambda m: (m.id == quorum.leader, m.id)):
            if not self._majority_without(frozenset((member.id,))):
                return Wait(f"without controller {member.id}, no majority of the voters is caught up")
            return Stop((member.id,))
        return None

    def brokers(self) -> Step | None:
        pending = [m for m in self.pending if m.broker]
        if not pending:
            return None
        zone = self._zone(pending)
        if zone is None:
            zones = sorted({m.zone for m in self.down})
            return Wait(f"brokers are down in zone {', '.join(zones)}")
        taken = self.observed.taken
        candidates = [m.id for m in self._ordered(pending, zone) if m.id not in taken]
        if not candidates:
            return Wait(f"health has taken the brokers of zone {zone} that are left")
        down = frozenset(m.id for m in self.down)
        limit = max(1, min(self._cap(zone, pending) - len(down), self.bounds.batch_max))
        batch = safe_batch(
            candidates, limit, self.observed.partitions, self.ready, down, safe=self._majority_without
        )
        if batch:
            return Stop(batch)
        return Wait(self._obstacle(candidates, down))

    # Parts

    def _sick(self, node: int) -> str:
        """What the probes of a restarted broker show; empty if that is for health to repair."""
        seen = self._seen(node)
        restarted = seen.ordered and seen.current and node not in self.observed.taken
        return self.observed.sick.get(node, "") if restarted else ""

    def _unsettled(self) -> frozenset[int]:
        """Brokers and controllers of this roll's processes that lack something."""
        current = [m for m in self.desired.members if self._seen(m.id).current]
        brokers = frozenset(m.id for m in current if m.broker)
        behind = {
            broker
            for partition in self.observed.partitions.values()
            for broker in partition.settled
            if broker in brokers and (broker not in partition.isr or self._returns(partition, broker))
        }
        return frozenset(behind) | {m.id for m in current if not self._seen(m.id).ready}

    def _returning(self, brokers: Collection[int]) -> tuple[PartitionKey, ...]:
        return tuple(
            sorted(
                key
                for key, partition in self.observed.partitions.items()
                if any(self._returns(partition, broker) for broker in brokers)
            )
        )

    def _returns(self, partition: Partition, broker: int) -> bool:
        return broker not in self.observed.demoted and partition.returns_to(broker)

    def _majority_without(self, nodes: frozenset[int]) -> bool:
        quorum = self.observed.quorum
        if quorum is None:
            return not any(self.members[node].controller for node in nodes)
        stopping = nodes & quorum.voters
        if not stopping:
            return True
        if len(quorum.voters) == 1:
            return self.desired.allow_downtime
        left = quorum.caught_up - stopping
        return len(left) > len(quorum.voters) // 2

    def _zone(self, pending: Sequence[Member]) -> str | None:
        """The zone in which a broker is down; else one that has begun; else the first."""
        zones = {m.zone for m in self.down}
        if len(zones) > 1:
            return None
        if zones:
            (zone,) = zones
            return zone if any(m.zone == zone for m in pending) else None
        left: dict[str, int] = {}
        for member in pending:
            left[member.zone] = left.get(member.zone, 0) + 1
        scoped = [m for m in self.desired.members if m.broker and m.id in self.desired.scope]
        begun = {m.zone for m in scoped if self._seen(m.id).current}
        last = {m.zone for m in pending if m.id == self.leader}
        return min(left, key=lambda zone: (zone not in begun, zone in last, zone))

    def _ordered(self, pending: Sequence[Member], zone: str) -> list[Member]:
        """Of this zone; a combined node that is the active controller comes last."""
        inside = [m for m in pending if m.zone == zone and self._seen(m.id).ready]
        return sorted(inside, key=lambda m: (m.id == self.leader, m.id))

    def _cap(self, zone: str, pending: Sequence[Member]) -> int:
        brokers = [m for m in self.desired.members if m.broker]
        return zone_cap(
            zone_size=sum(m.zone == zone for m in brokers),
            brokers=len(brokers),
            left=len(pending),
            load=sum(self._seen(m.id).load for m in brokers),
            batch_seconds=self.bounds.restart_seconds,
            seconds_left=min(self.bounds.seconds_max, self.bounds.deadline - self.observed.now),
            load_max=self.bounds.load_max,
        )

    def _obstacle(self, candidates: Sequence[int], down: frozenset[int]) -> str:
        for broker in candidates:
            if not self._majority_without(frozenset((broker,))):
                return f"without controller {broker}, no majority of the voters is caught up"
        broker = candidates[0]
        harmed = harm_of(frozenset((broker,)) | down, self.observed.partitions, self.ready)
        if not harmed:
            return f"broker {broker} cannot stop now"
        key, reason = min(harmed.items())
        more = f", and {len(harmed) - 1} more" if len(harmed) > 1 else ""
        return f"broker {broker} cannot stop: {key[0]}-{key[1]} {reason}{more}"


def _named(nodes: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"broker {node}" for node in nodes[:SHOWN_MAX])


def _state(node: NodeSeen) -> str:
    if not node.alive:
        return "its process is not alive"
    if not node.current:
        return "its old process still runs"
    return "it runs, and is not ready"
