"""A month of balancing within one cluster: how long are brokers overloaded, and what does avoiding it copy?

Each step asks `balance.goals` what is violated, `balance.rounds` whether a plan may run now and within which
allowance, and `balance.planner` for the plan: the functions of the control plane, with its bounds. The seed
fixes traffic and losses; policies differ only in what they balance. `count-only` is the same planner with
no other knowledge than how many replicas and leaders a broker has; `all goals` are the control plane's; and
`overload only` is its load goal alone, for brokers that are more than `OVERLOAD_FLOOR` loaded. Assumptions:
- Topics' rates follow a power law, drift over days, and follow the time of day with a phase for each topic.
  Some topics are deleted and created again elsewhere, placed at random in distinct zones as Kafka does.
- A partition's size is what it received within the retention time. Load is linear in bytes.
- Copying takes time: each broker sends and receives at most `COPY_BYTES_PER_SECOND`, which costs load.
- A broker that is lost never returns. After `EMPTY_SECONDS` its replicas are copied to others, then, after
  `REPLACE_SECONDS`, an empty broker takes its place and is filled. All policies repair in the same way.
- Leaders fail over at once and replicas are in sync unless their broker is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.actions import Purpose, Request
from penstock.balance.goals import GOALS, LOAD_FULL, violations
from penstock.balance.model import ABSENT, RESOURCES, Brokers, ClusterModel, Costs, Resource
from penstock.balance.planner import plan
from penstock.balance.rounds import (
    DAY_SECONDS,
    HOUR_SECONDS,
    BalancerMode,
    ClusterCondition,
    RecentPlan,
    RoundDecision,
    decide,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.balance.actions import Action
    from penstock.balance.goals import Goal
    from penstock.balance.model import Floats, Ints

FACTOR, ZONES = 3, 3
BROKERS_MAX, REPLICAS_MAX = 1_000, 1_000_000
PARTITIONS_PER_TOPIC: Final = 20
STEP_SECONDS: Final = 1_800.0
SHAPE, CAPPED = 1.4, 0.999  # of the topics' power law, and the quantile above which it is cut
DRIFT_DAYS, DRIFT = 5.0, 0.7  # time constant and deviation of the logarithm of a topic's rate
SWING: Final = 0.4  # of a topic's rate over the day
FANOUT_MEAN: Final = 2.0  # consumers of a topic
REPLACED_PER_DAY: Final = 0.01  # of the topics
LOST_PER_MONTH: Final = 0.05  # of the brokers
PRODUCED_BYTES: Final = 5e6  # a second, on average for each broker
RETENTION_SECONDS: Final = 12 * HOUR_SECONDS
COPY_BYTES_PER_SECOND: Final = 50e6  # that a broker sends, and receives
COPY_LOAD: Final = 0.10  # of a broker that copies at this rate
EMPTY_SECONDS: Final = HOUR_SECONDS
REPLACE_SECONDS: Final = 24 * HOUR_SECONDS
PARTITION_LOAD_MAX: Final = 0.15  # of a broker: larger topics have more partitions


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of the simulation."""

    brokers: int = 300
    replicas: int = 90_000
    days: float = 30.0
    load_mean: float = 0.5

    @property
    def partitions(self) -> int:
        return self.replicas // FACTOR

    @property
    def steps(self) -> int:
        return int(self.days * DAY_SECONDS / STEP_SECONDS)


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    goals: Sequence[Goal]
    sees_loads: bool = True  # otherwise replicas and leaders are only counted


OVERLOAD_FLOOR: Final = 0.6  # of a broker: below, the third policy tolerates any imbalance
COUNTED: Final = frozenset(("leaders", "replicas"))
POLICIES: Final = (
    Policy("count-only", [replace(g, triggering=True) for g in GOALS if g.name in COUNTED], sees_loads=False),
    Policy("all goals", GOALS),
    Policy("overload only", [replace(g, floor=OVERLOAD_FLOOR) for g in GOALS if g.name == "load"]),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    policy: str
    hours_over: float  # broker-hours above LOAD_FULL
    hours_over_share: float  # of all broker-hours
    hottest_to_mean: float  # load, median over the steps
    bytes_balanced: float  # copied for goals
    bytes_repaired: float  # copied from lost brokers, and to those that replace them
    moves: int
    plans: int

    @property
    def bytes(self) -> float:
        return self.bytes_balanced + self.bytes_repaired


class Population:
    """The traffic of a cluster, step by step: the same for every policy."""

    def __init__(self, seed: int, scale: Scale) -> None:
        self._dice = dice = np.random.default_rng([seed, 1])
        count, self.scale = scale.partitions, scale
        self.topic_count = max(1, count // PARTITIONS_PER_TOPIC)
        self.topics = np.sort(dice.integers(0, self.topic_count, count)).astype(np.int32)
        popular = dice.pareto(SHAPE, self.topic_count) + 0.1
        self._popular = np.minimum(popular, np.quantile(popular, CAPPED))
        self._share = dice.gamma(4.0, 0.25, count)  # keys are not spread evenly
        self._fanout = dice.exponential(FANOUT_MEAN, self.topic_count)
        self._phase = dice.choice([2.0, 10.0, 18.0], self.topic_count) + dice.normal(0, 2, self.topic_count)
        self._drift = dice.normal(0, DRIFT, self.topic_count)
        mean = (self._popular[self.topics] * self._share).mean()
        self._unit = PRODUCED_BYTES * scale.brokers / count / mean
        self._load_unit = 1.0
        self.ingress = self._rates(0.0)
        leader, follower = self._loads()
        self._load_unit = scale.load_mean * scale.brokers / float((leader + (FACTOR - 1) * follower).sum())
        heaviest = float(self._loads()[0].max())
        if heaviest > PARTITION_LOAD_MAX:  # as if its topic had more partitions
            self._limit = self.ingress.max() * PARTITION_LOAD_MAX / heaviest
            self.ingress = np.minimum(self.ingress, self._limit)
            leader, follower = self._loads()
            again = scale.load_mean * scale.brokers / float((leader + (FACTOR - 1) * follower).sum())
            self._load_unit *= again
        else:
            self._limit = float("inf")
        self.size = self.ingress * RETENTION_SECONDS
        self.replaced: Ints = np.empty(0, np.int32)  # partitions created again in this step
        self.placed: Ints = np.empty((0, FACTOR), np.int32)

    def placement(self, partitions: int) -> Ints:
        """Random brokers in distinct zones, the preferred leader first."""
        dice, per_zone = self._dice, self.scale.brokers // ZONES
        chosen = dice.integers(0, per_zone, (partitions, ZONES)) * ZONES
        order = dice.permuted(np.tile(np.arange(ZONES), (partitions, 1)), axis=1)
        return np.asarray(chosen + order, np.int32)

    def step(self, now: float) -> None:
        dice, kept = self._dice, float(np.exp(-STEP_SECONDS / (DRIFT_DAYS * DAY_SECONDS)))
        noise = dice.normal(0, DRIFT * np.sqrt(1 - kept * kept), self.topic_count)
        self._drift = kept * self._drift + noise
        self.ingress = np.minimum(self._rates(now), self._limit)
        gone = np.flatnonzero(dice.random(self.topic_count) < REPLACED_PER_DAY * STEP_SECONDS / DAY_SECONDS)
        self.replaced = np.flatnonzero(np.isin(self.topics, gone)).astype(np.int32)
        self.placed = self.placement(len(self.replaced))
        share = STEP_SECONDS / RETENTION_SECONDS
        self.size += share * (self.ingress * RETENTION_SECONDS - self.size)
        self.size[self.replaced] = self.ingress[self.replaced] * STEP_SECONDS

    def costs(self) -> Costs:
        leader, follower = (np.zeros((len(self.ingress), RESOURCES)) for _ in range(2))
        egress = self.ingress * self._fanout[self.topics]
        for cost in (leader, follower):
            cost[:, Resource.DISK], cost[:, Resource.INGRESS] = self.size, self.ingress
            cost[:, Resource.REPLICAS] = 1
        leader[:, Resource.EGRESS] = egress + (FACTOR - 1) * self.ingress
        leader[:, Resource.LOAD], follower[:, Resource.LOAD] = self._loads()
        leader[:, Resource.LEADER_INGRESS], leader[:, Resource.LEADERS] = self.ingress, 1
        return Costs(leader, follower)

    def _rates(self, now: float) -> Floats:
        hour = now / HOUR_SECONDS
        day = 1 + SWING * np.cos(2 * np.pi * (hour - self._phase) / 24)
        rate = self._popular * np.exp(self._drift - DRIFT * DRIFT / 2) * day
        return np.asarray(self._unit * rate[self.topics] * self._share)

    def _loads(self) -> tuple[Floats, Floats]:
        egress = self.ingress * self._fanout[self.topics]
        unit = self._load_unit / 1e6
        return unit * (0.7 * self.ingress + 0.15 * egress), unit * 0.15 * self.ingress


@dataclass
class _Running:
    """A plan whose moves are being copied."""

    started: float
    pending: list[tuple[Action, float]]  # with the bytes left
    bytes: float = 0.0
    partitions: set[int] = field(default_factory=set)


class Cluster:
    """Where replicas are, under one policy."""

    def __init__(self, policy: Policy, population: Population, scale: Scale, seed: int) -> None:
        self.policy, self.population, self.scale = policy, population, scale
        count = scale.brokers
        self.replicas = population.placement(scale.partitions)
        self.leaders = np.zeros(scale.partitions, np.int32)
        self.alive = np.ones(count, np.bool_)
        self.leaving, self.joining = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.copying = np.zeros(count)  # bytes in the last step, sent and received
        self.round = RoundDecision()
        self.running: _Running | None = None
        self.repairing: list[_Running] = []
        self.recent: list[RecentPlan] = []
        self.lost_at: dict[int, float] = {}
        self.emptied_at: dict[int, float] = {}
        self.bytes_balanced = self.bytes_repaired = 0.0
        self.moves = self.plans = 0
        dice = np.random.default_rng([seed, 2])
        chance = LOST_PER_MONTH / 30 * STEP_SECONDS / DAY_SECONDS
        self._losses = dice.random((scale.steps, count)) < chance

    def model(self, costs: Costs, pinned: Iterable[int] = ()) -> ClusterModel:
        scale = self.scale
        numbers = np.arange(scale.brokers, dtype=np.int32)
        receives = self.alive & ~self.leaving
        brokers = Brokers(
            numbers, numbers % ZONES, np.zeros(scale.brokers, np.int32),
            np.full((scale.brokers, RESOURCES), np.inf), np.zeros((scale.brokers, RESOURCES)),
            self.alive, receives, receives, self.joining, self.leaving,
        )  # fmt: skip
        fixed = np.zeros(scale.partitions, np.bool_)
        fixed[list(pinned)] = True
        topics = self.population.topics
        zeros = np.zeros(scale.partitions, np.int32)
        in_sync = self.alive[self.replicas]
        return ClusterModel(
            brokers, costs, topics, topics, zeros, self.replicas, self.leaders, in_sync, fixed
        )

    def seen(self, costs: Costs) -> Costs:
        """What the policy knows."""
        if self.policy.sees_loads:
            return costs
        leader, follower = (np.zeros_like(costs.leader) for _ in range(2))
        for seen, cost in ((leader, costs.leader), (follower, costs.follower)):
            seen[:, Resource.REPLICAS] = seen[:, Resource.LOAD] = 1
            seen[:, Resource.LEADERS] = cost[:, Resource.LEADERS]
        return Costs(leader, follower)

    def create_topics(self) -> None:
        """Those that replace deleted ones; dead brokers get nothing."""
        replaced, placed = self.population.replaced, self.population.placed.copy()
        while (dead := ~(self.alive & ~self.leaving)[placed]).any():
            placed[dead] = (placed[dead] + ZONES) % self.scale.brokers
        self.replicas[replaced], self.leaders[replaced] = placed, 0

    def lose_brokers(self, step: int, now: float) -> None:
        for broker in np.flatnonzero(self._losses[step] & self.alive):
            zone = self.alive & (np.arange(len(self.alive)) % ZONES == broker % ZONES)
            if zone.sum() <= 1:
                continue
            self.alive[broker] = False
            self.lost_at[int(broker)] = now
        rows = np.arange(len(self.leaders))
        led_by_dead = np.flatnonzero(~self.alive[self.replicas[rows, self.leaders]])
        if len(led_by_dead):
            self.leaders[led_by_dead] = np.argmax(self.alive[self.replicas[led_by_dead]], axis=1)

    def repair(self, costs: Costs, now: float) -> None:
        """Empties lost brokers, and fills those that replace them."""
        due = [one for one, at in self.lost_at.items() if now - at >= EMPTY_SECONDS and not self.leaving[one]]
        if due:
            self.leaving[due] = True
            self._start_repair(costs, Purpose.EMPTY, now)
        for broker in [one for one in self.lost_at if self.leaving[one]]:
            if (self.replicas == broker).any():
                if not self.repairing:  # its plan ended without it: topics changed, or no room
                    self._start_repair(costs, Purpose.EMPTY, now)
            elif now - self.emptied_at.setdefault(broker, now) >= REPLACE_SECONDS:
                del self.lost_at[broker], self.emptied_at[broker]
                self.alive[broker], self.leaving[broker], self.joining[broker] = True, False, True
                self._start_repair(costs, Purpose.FILL, now)
                self.joining[broker] = False

    def _start_repair(self, costs: Costs, purpose: Purpose, now: float) -> None:
        busy = self._busy()
        done = plan(self.model(self.seen(costs), busy), Request(purpose))
        self.repairing.append(self._started(done.actions, now))

    def balance(self, costs: Costs, now: float) -> None:
        """One round: what is violated, whether a plan may run, and which."""
        seen = self.model(self.seen(costs))
        violated = {each.goal: str(each.broker) for each in violations(seen, self.policy.goals)}
        obstacles = [f"broker {one} is not alive" for one in np.flatnonzero(~self.alive & ~self.leaving)]
        obstacles += ["reassignments for a lost broker"] if self.repairing else []
        self.recent = [each for each in self.recent if each.ended is None or now - each.ended <= DAY_SECONDS]
        plans = list(self.recent)
        if self.running is not None:
            at = self.running.started
            plans.append(RecentPlan(at, None, len(self.running.partitions), self.running.bytes))
        condition = ClusterCondition(violated, obstacles, plans)
        self.round = decide(self.round, condition, BalancerMode.AUTO, now)
        allowance = self.round.plan
        if allowance is None or not self.round.run:
            return
        resting = [partition for _, partition in allowance.resting]
        request = Request(actions_max=allowance.moves, bytes_max=allowance.bytes)
        done = plan(self.model(self.seen(costs), resting), request, goals=self.policy.goals)
        if done.actions:
            self.plans += 1
            self.running = self._started(done.actions, now)

    def copy(self, now: float) -> None:
        """One step of copying; what is complete takes effect."""
        sent, received = (np.full(len(self.alive), COPY_BYTES_PER_SECOND * STEP_SECONDS) for _ in range(2))
        for work in self.repairing:
            self.bytes_repaired += self._copy(work, sent, received)
        self.repairing = [work for work in self.repairing if work.pending]
        if self.running is not None:
            self.bytes_balanced += self._copy(self.running, sent, received)
            if not self.running.pending:
                moved = frozenset(("", one) for one in self.running.partitions)
                ended = RecentPlan(self.running.started, now, len(moved), self.running.bytes, moved)
                self.recent.append(ended)
                self.running = None
        used = 2 * COPY_BYTES_PER_SECOND * STEP_SECONDS - sent - received
        self.copying = used / (COPY_BYTES_PER_SECOND * STEP_SECONDS)

    def loads(self, model: ClusterModel) -> Floats:
        """Of the brokers that serve."""
        return np.asarray((model.totals[:, Resource.LOAD] + COPY_LOAD * self.copying)[self.alive])

    def _started(self, actions: Sequence[Action], now: float) -> _Running:
        size = self.population.size
        pending = [
            (each, float(size[each.partition]) * len(set(each.after) - set(each.before))) for each in actions
        ]
        return _Running(now, pending, sum(left for _, left in pending), {each.partition for each in actions})

    def _copy(self, work: _Running, sent: Floats, received: Floats) -> float:
        left_over, copied = [], 0.0
        for action, size in work.pending:
            partition, left = action.partition, size
            now = tuple(int(one) for one in self.replicas[partition] if one != ABSENT)
            adding = sorted(set(action.after) - set(action.before))
            if now != action.before or not self.alive[adding].all():
                continue  # its topic was created again, or its target is lost
            if left > 0:
                source = int(self.replicas[partition, self.leaders[partition]])
                took = min(left, float(sent[source]), float(received[adding].min()) * len(adding))
                sent[source] -= took
                received[adding] -= took / len(adding)
                copied += took
                left -= took
            if left > 1.0:
                left_over.append((action, left))
                continue
            self.replicas[partition] = action.after
            self.moves += 1
            if action.elects and self.alive[action.after[0]]:
                self.leaders[partition] = 0
            elif not self.alive[self.replicas[partition, self.leaders[partition]]]:
                self.leaders[partition] = int(np.argmax(self.alive[self.replicas[partition]]))
        work.pending = left_over
        return copied

    def _busy(self) -> list[int]:
        works = [*self.repairing, *([self.running] if self.running is not None else [])]
        return [action.partition for work in works for action, _ in work.pending]


def simulate(seed: int, policy: Policy, scale: Scale) -> Outcome:
    """A month under one policy."""
    population = Population(seed, scale)
    cluster = Cluster(policy, population, scale, seed)
    over, broker_steps, ratios = 0, 0, []
    for step in range(scale.steps):
        now = step * STEP_SECONDS
        population.step(now)
        cluster.create_topics()
        cluster.lose_brokers(step, now)
        costs = population.costs()
        cluster.copy(now)
        loads = cluster.loads(cluster.model(costs))
        over += int((loads > LOAD_FULL).sum())
        broker_steps += len(loads)
        ratios.append(float(loads.max() / loads.mean()))
        cluster.repair(costs, now)
        cluster.balance(costs, now)
    return Outcome(
        policy.name,
        over * STEP_SECONDS / HOUR_SECONDS,
        over / max(broker_steps, 1),
        float(np.median(ratios)) if ratios else 1.0,
        cluster.bytes_balanced,
        cluster.bytes_repaired,
        cluster.moves,
        cluster.plans,
    )
