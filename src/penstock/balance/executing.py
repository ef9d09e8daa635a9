"""The next actions of all moves on one cluster, decided from what the cluster shows. Pure.

Plans, tenant moves and the return of leaders are `Work`: lists of moves. `decide` gets all work of a cluster
at once, so that everything shares one budget and one pace. A move's progress is not remembered but seen:

    waiting → copying → placed → done        or dropped, with the reason

What `decide` remembers from round to round (`Memory`) only makes it patient or polite: a process that lost it
continues correctly. It promises:

- No partition is moved twice, and none whose topic or replicas were changed by others.
- No replica is elected that lacks the beginning of the leader's log: the followers would delete theirs.
- The budget is never exceeded: partitions and bytes in flight by broker and direction, starts and leader
  changes a second, records that one call makes the controller write.
- It becomes slower when brokers are slow or followers fall behind (additive increase, multiplicative
  decrease), and copies nothing while a partition is below its minimum of in-sync replicas, except for moves
  away from a dead broker, which repair that. Leaders still change: a sick one may be the cause.
- A move to a broker that died is cancelled; a reassignment of another client is awaited or taken over.
- During a roll no copy starts, and a broker that is away is restarting rather than dead.
- Work that stops ends, whatever other clients and brokers do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.balance.plan_document import PlannedMove

TopicPartition = tuple[str, int]  # topic and number; compatible with the one of `penstock.kafka`

SETTLE_SECONDS: Final = 10.0  # brokers learn of a change later than the controller
DEAD_SECONDS: Final = 30.0  # a broker that restarts is waited for
ELECTED_SECONDS: Final = 5.0  # until an election that changed nothing is tried again
PACE_SECONDS: Final = 10.0  # between two changes of the pace
SHARE_MIN: Final = 1 / 16
SHARE_STEP: Final = 0.1


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds for everything that moves on a cluster at the same time."""

    broker_partitions_max: int = 20  # in flight to one broker, and from one
    broker_bytes_max: int = 4 << 30  # likewise; a larger partition moves alone
    starts_per_second: float = 50.0  # so also completions: metadata changes are load, too
    leader_changes_per_second: float = 50.0
    records_max: int = 10_000  # that the controller writes for one call
    dead_seconds: float = DEAD_SECONDS  # that a broker is absent before moves to it are cancelled


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as the cluster has it."""

    topic_id: str
    replicas: tuple[int, ...]  # while it is reassigned: new and old ones, those that leave last
    isr: tuple[int, ...]
    leader: int | None
    size_bytes: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    reassigning: bool = False
    copied_bytes: int = 0  # of the slowest added replica

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once no reassignment is under way any more."""
        return tuple(b for b in self.replicas if b not in self.removing) or self.replicas


@dataclass(frozen=True, slots=True)
class Health:
    """Signs that the cluster has no room for moves, apart from what moves cause themselves."""

    under_min_isr: tuple[TopicPartition, ...] = ()
    at_min_isr: int = 0
    lagging: int = 0  # partitions with a live follower that is not in sync
    slow: str = ""  # what is slow, in words


@dataclass(frozen=True, slots=True)
class Observation:
    partitions: Mapping[TopicPartition, PartitionState]  # at least those of all work
    alive: frozenset[int]
    under_way: frozenset[TopicPartition] = frozenset()  # every reassignment on the cluster
    health: Health = field(default_factory=Health)
    unfit: Mapping[TopicPartition, str] = field(
        default_factory=dict
    )  # to be led by the preferred leader: why
    hold: str = ""  # why no copy may start now, in words
    mirrors: Mapping[TopicPartition, tuple[int, ...]] = field(
        default_factory=dict
    )  # the brokers that hold partitions which a shadow leads: nothing here moves those


@dataclass(frozen=True, slots=True)
class Work:
    """Moves of one plan, one tenant, or leaders that return."""

    moves: Sequence[PlannedMove]
    persistent: bool = False  # derived from the cluster in every round: moves wait and are never dropped
    needs: tuple[int, ...] = ()  # nothing starts while one of these brokers is down
    stopping: bool = False  # nothing starts, and what is being copied is cancelled
    undoing: bool = False  # moves are reversed: reassignments to `before` are cancelled
    take_over: bool = False
    demoted: frozenset[int] = frozenset()  # brokers that lead nothing: never elected


class Status(StrEnum):
    WAITING = "waiting"
    COPYING = "copying"
    PLACED = "placed"  # led by another replica than the preferred one
    DONE = "done"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Standing:
    status: Status
    reason: str = ""

    @property
    def ended(self) -> bool:
        return self.status in (Status.DONE, Status.DROPPED)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token bucket that holds one second, and at least one token: a slow pace starts something, too."""

    level: float = 0.0
    time: float = float("-inf")

    def refilled(self, rate: float, now: float) -> Tokens:
        return Tokens(min(max(1.0, rate), self.level + rate * (now - self.time)), now)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a round leaves to the next one."""

    share: float = 1.0  # of the budget and of the rate
    paced: float = float("-inf")  # when the share last changed
    starts: Tokens = field(default_factory=Tokens)
    elections: Tokens = field(default_factory=Tokens)
    started: Mapping[TopicPartition, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    elected: Mapping[TopicPartition, float] = field(default_factory=dict)
    unsettled: Mapping[TopicPartition, tuple[object, float]] = field(default_factory=dict)
    absent: Mapping[int, float] = field(default_factory=dict)  # brokers, since when
    cancelled: Mapping[TopicPartition, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """What to do now: throttle and start, elect, cancel; and how each move of each work stands."""

    memory: Memory
    start: tuple[PlannedMove, ...]
    elect: tuple[TopicPartition, ...]
    cancel: Mapping[TopicPartition, tuple[int, ...] | None]  # or, once cancelled, the order to restore
    standings: tuple[tuple[Standing, ...], ...]
    external: tuple[TopicPartition, ...]  # reassigned by other clients
    waiting: str = ""  # why nothing starts although moves wait

    @property
    def done(self) -> bool:
        return all(each.ended for standings in self.standings for each in standings)


def decide(works: Sequence[Work], seen: Observation, budget: Budget, memory: Memory, now: float) -> Round:
    """One round over all work of a cluster."""
    memory = _remembered(memory, works, seen, budget, now)
    round_ = _Round(works, seen, budget, memory, now)
    round_.classify()
    round_.cancel_moves()
    round_.start_moves()
    round_.elect_leaders()
    return round_.result()


def health_of(
    partitions: Mapping[TopicPartition, PartitionState],
    alive: frozenset[int],
    min_isr: Mapping[str, int],
    slow: str = "",
) -> Health:
    """`min_isr` by topic. Partitions that are being reassigned do not count: their new replicas lag."""
    under, at, lagging = [], 0, 0
    for key, each in partitions.items():
        if each.reassigning or len(each.isr) >= len(each.replicas):
            continue
        least = min_isr.get(key[0], 1)
        if least > len(each.replicas):
            continue  # it cannot be written to at all, whatever moves
        under += [key] if len(each.isr) < least else []
        at += len(each.isr) == least
        lagging += any(broker in alive and broker not in each.isr for broker in each.replicas)
    return Health(tuple(under), at, lagging, slow)


class _Round:
    """The state of one round. A class so that each phase can be read by itself."""

    def __init__(
        self, works: Sequence[Work], seen: Observation, budget: Budget, memory: Memory, now: float
    ) -> None:
        self.works, self.seen, self.budget, self.memory, self.now = works, seen, budget, memory, now
        self.standings: list[list[Standing]] = []
        self.claimed: dict[TopicPartition, Work] = {}
        self.ours: set[TopicPartition] = set()  # being reassigned for some work
        self.partitions = {"in": Counter[int](), "out": Counter[int]()}
        self.bytes = {"in": Counter[int](), "out": Counter[int]()}
        self.starts: list[PlannedMove] = []
        self.cancels: dict[TopicPartition, tuple[int, ...] | None] = {}
        self.elections: list[TopicPartition] = []
        self.unsettled: dict[TopicPartition, tuple[object, float]] = {}
        self.waiting = ""

    # Phases

    def classify(self) -> None:
        for work in self.works:
            rows = []
            for move in work.moves:
                key = (move.topic, move.partition)
                if self.claimed.setdefault(key, work) is not work:
                    rows.append(Standing(Status.WAITING, "another plan moves it"))
                    continue
                standing = self._standing(move, work, key)
                if standing.status is Status.COPYING:
                    self.ours.add(key)
                    self._occupy(move, key)
                rows.append(standing)
            self.standings.append(rows)

    def cancel_moves(self) -> None:
        """Cancels what is copied to dead brokers, for work that ends, and against the direction.

        Kafka's cancellation (KIP-455, null replicas) leaves the replicas in another order, and so another
        preferred leader: `_standing` restores it in the next round. Reassigning to the replicas of before
        instead never ends if the new replica's broker is dead (Kafka 4.3).
        """
        reasons = dict(self.memory.cancelled)
        for work, rows in zip(self.works, self.standings, strict=True):
            for number, move in enumerate(work.moves):
                key = (move.topic, move.partition)
                state = self.seen.partitions.get(key)
                if rows[number].status is not Status.COPYING or state is None or not state.reassigning:
                    continue
                dead = [broker for broker in state.adding if self._is_dead(broker)]
                if dead and not work.undoing:
                    reasons.setdefault(key, f"broker {dead[0]} is down")
                if dead or work.stopping or (work.undoing and state.target == move.before):
                    self.cancels[key] = None
        self.memory = replace(self.memory, cancelled=reasons)

    def start_moves(self) -> None:
        pending = [list(self._pending(*pair)) for pair in zip(self.works, self.standings, strict=True)]
        waiting = [move for moves in pending for move in moves]
        if not waiting:
            return
        starts = self.memory.starts
        limit = min(int(starts.level), self.budget.records_max)
        repairing_only = bool(self.seen.health.under_min_isr)
        for move in _interleaved(waiting):
            if len(self.starts) >= limit:
                break
            if self.seen.hold and move.adding:
                self.waiting = self.seen.hold
            elif repairing_only and move.adding and not any(b not in self.seen.alive for b in move.before):
                topic, number = self.seen.health.under_min_isr[0]
                self.waiting = f"{topic}-{number} is below its minimum of in-sync replicas"
            elif self._fits(move):
                self._occupy(move, (move.topic, move.partition))
                self.starts.append(move)
        now = {(move.topic, move.partition): (move.after, self.now) for move in self.starts}
        started = {**self.memory.started, **now}
        spent = Tokens(starts.level - len(self.starts), starts.time)
        self.memory = replace(self.memory, started=started, starts=spent)

    def elect_leaders(self) -> None:
        tokens = self.memory.elections
        limit = min(int(tokens.level), self.budget.records_max)
        elected = dict(self.memory.elected)
        for work, rows in zip(self.works, self.standings, strict=True):
            for move, standing in zip(work.moves, rows, strict=True):
                key = (move.topic, move.partition)
                if standing.status is not Status.PLACED or len(self.elections) >= limit:
                    continue
                if move.after[0] not in self.seen.partitions[key].isr or key in self.seen.unfit:
                    continue
                if self.now - elected.get(key, float("-inf")) >= ELECTED_SECONDS:
                    elected[key] = self.now
                    self.elections.append(key)
        spent = Tokens(tokens.level - len(self.elections), tokens.time)
        self.memory = replace(self.memory, elections=spent, elected=elected)

    def result(self) -> Round:
        memory = replace(self.memory, unsettled=self.unsettled)
        standings = tuple(tuple(rows) for rows in self.standings)
        return Round(
            memory, tuple(self.starts), tuple(self.elections), self.cancels, standings,
            self._external(), "" if self.starts else self.waiting,
        )  # fmt: skip

    # Parts

    def _standing(self, move: PlannedMove, work: Work, key: TopicPartition) -> Standing:
        state = self.seen.partitions.get(key)
        if state is None:
            return self._once_settled(key, None, work, f"{move.name} does not exist any more")
        if move.topic_id and state.topic_id != move.topic_id:
            return self._once_settled(key, state.topic_id, work, f"topic {move.topic} was created again")
        if state.reassigning:
            if state.target == move.after or (work.undoing and state.target == move.before):
                return Standing(Status.COPYING)
            reason = f"another client is moving it to {list(state.target)}"
            return Standing(Status.DROPPED if work.stopping else Status.WAITING, reason)
        if state.replicas == move.after:
            preferred = move.after[0]
            if state.leader == preferred or preferred in work.demoted or self._is_dead(preferred):
                return Standing(Status.DONE)
            if work.stopping:
                return Standing(Status.DONE)  # leadership returns once its preferred leader is able
            if key in self.seen.unfit and not work.persistent:
                return Standing(Status.DROPPED, self.seen.unfit[key])
            return Standing(Status.PLACED, f"{move.name} is not led by its preferred leader")
        if state.replicas != move.before:
            if (order := _order_before(move, state, work)) is not None:
                self.cancels[key] = order
                return Standing(Status.COPYING, "its replicas return to their order")
            reason = f"{move.name} has replicas {list(state.replicas)}, not {list(move.before)}"
            return self._once_settled(key, state.replicas, work, reason)
        if key in self.memory.cancelled and not work.persistent:
            return Standing(Status.DROPPED, self.memory.cancelled[key])
        if work.stopping:
            return Standing(Status.DROPPED, "the plan was cancelled")
        if self.memory.started.get(key, ((), 0.0))[0] == move.after:
            reason = "its reassignment was cancelled by another client"
            return self._once_settled(key, "started", work, reason)
        return self._not_started(move, work)

    def _not_started(self, move: PlannedMove, work: Work) -> Standing:
        absent = [broker for broker in move.adding if broker not in self.seen.alive]
        if absent and not work.persistent and self._is_dead(absent[0]):
            return Standing(Status.DROPPED, f"broker {absent[0]} is down")
        return Standing(Status.WAITING, f"broker {absent[0]} is down" if absent else "")

    def _once_settled(self, key: TopicPartition, what: object, work: Work, reason: str) -> Standing:
        """Dropped once it has looked the same for a while: a broker may lag behind the controller."""
        before, since = self.memory.unsettled.get(key, (what, self.now))
        since = since if before == what else self.now
        self.unsettled[key] = (what, since)
        if self.now - since < SETTLE_SECONDS:
            return Standing(Status.COPYING, reason)
        if work.persistent:
            started = {one: at for one, at in self.memory.started.items() if one != key}
            self.memory = replace(self.memory, started=started)
            return Standing(Status.WAITING, reason)
        return Standing(Status.DROPPED, reason)

    def _pending(self, work: Work, rows: Sequence[Standing]) -> Iterator[PlannedMove]:
        """The moves that may start, the budget aside; records why the others wait."""
        if work.stopping:
            return
        missing = [broker for broker in work.needs if broker not in self.seen.alive]
        external = self._external()
        for move, standing in zip(work.moves, rows, strict=True):
            if standing.status is not Status.WAITING:
                continue
            key = (move.topic, move.partition)
            if missing:
                self.waiting = f"broker {missing[0]} of the target cell is down"
            elif external and not work.take_over:
                name = f"{external[0][0]}-{external[0][1]}"
                self.waiting = f"other clients are reassigning {len(external)} partitions, {name} among them"
            elif self.claimed[key] is not work:
                self.waiting = self.waiting or f"another plan moves {move.name}"
            elif any(broker not in self.seen.alive for broker in move.adding):
                self.waiting = standing.reason
            else:
                yield move

    def _external(self) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.seen.under_way - self.ours))

    def _is_dead(self, broker: int) -> bool:
        """Absent for so long that it is not just restarting."""
        absent = self.now - self.memory.absent.get(broker, self.now)
        return absent >= self.budget.dead_seconds and not self.seen.hold

    def _flows(self, move: PlannedMove, key: TopicPartition) -> Iterator[tuple[str, int, int]]:
        """Direction, broker and bytes of what a move makes brokers send and receive."""
        state = self.seen.partitions.get(key)
        adding = state.adding if state is not None and state.reassigning else move.adding
        if not adding:
            return
        size = state.size_bytes if state is not None and state.size_bytes else move.bytes
        leader = state.leader if state is not None else None
        yield "out", (move.before or move.after)[0] if leader is None else leader, size * len(adding)
        for broker in adding:
            yield "in", broker, size

    def _occupy(self, move: PlannedMove, key: TopicPartition) -> None:
        for direction, broker, size in self._flows(move, key):
            self.partitions[direction][broker] += 1
            self.bytes[direction][broker] += size

    def _fits(self, move: PlannedMove) -> bool:
        share, budget = self.memory.share, self.budget
        partitions_max = max(1, int(budget.broker_partitions_max * share))
        for direction, broker, size in self._flows(move, (move.topic, move.partition)):
            count, moving = self.partitions[direction][broker], self.bytes[direction][broker]
            if count and (count >= partitions_max or moving + size > budget.broker_bytes_max * share):
                return False
        return True


def _order_before(move: PlannedMove, state: PartitionState, work: Work) -> tuple[int, ...] | None:
    """The order to restore if these are the replicas that a cancelled reassignment has left."""
    if work.persistent:
        return None  # it is moved again anyway
    for each in (move, move.reversed) if work.undoing else (move,):
        left = tuple(b for b in each.after if b in each.before)
        left += tuple(b for b in each.before if b not in each.after)
        if state.replicas == left != each.before and each.adding:
            return each.before
    return None


def _remembered(
    memory: Memory, works: Sequence[Work], seen: Observation, budget: Budget, now: float
) -> Memory:
    """The memory at the start of a round: without what is over, with tokens and pace of this time."""
    involved = {broker for work in works for move in work.moves for broker in move.after}
    share, paced = _pace(memory, seen.health, now)
    open_moves = {(move.topic, move.partition) for work in works for move in work.moves}
    return replace(
        memory,
        share=share,
        paced=paced,
        starts=memory.starts.refilled(budget.starts_per_second * share, now),
        elections=memory.elections.refilled(budget.leader_changes_per_second, now),
        started={key: at for key, at in memory.started.items() if key in open_moves},
        elected={key: at for key, at in memory.elected.items() if key in open_moves},
        cancelled={key: why for key, why in memory.cancelled.items() if key in open_moves},
        absent={broker: memory.absent.get(broker, now) for broker in involved - seen.alive},
    )


def _pace(memory: Memory, health: Health, now: float) -> tuple[float, float]:
    """Half as fast after each bad interval, a little faster after each good one."""
    if now - memory.paced < PACE_SECONDS:
        return memory.share, memory.paced
    if health.slow or health.at_min_isr or health.lagging or health.under_min_isr:
        return max(SHARE_MIN, memory.share / 2), now
    return min(1.0, memory.share + SHARE_STEP), now


def _interleaved(moves: Iterable[PlannedMove]) -> Iterator[PlannedMove]:
    """Alternating over the brokers that send, so that no batch drains one broker."""
    by_source: dict[int, list[PlannedMove]] = {}
    for move in moves:
        leaving = [broker for broker in move.before if broker not in move.after]
        by_source.setdefault((leaving or move.before or move.after)[0], []).append(move)
    for row in zip_longest(*by_source.values()):
        yield from (move for move in row if move is not None)
