"""Plans which replicas and leaders move, with reasons. Pure: the caller brings the model and the clock.

Goals run once each, the most important first. For each broker above a goal's target the planner tries, in
this order, to hand leadership to an in-sync replica elsewhere (no bytes), to move replicas, and to swap them.
A step must help its own goal and be accepted by every other one: it may bring no broker above what that goal
accepts, which is a little more than its target, so that goals leave each other room. A partition takes part
in at most one action: a plan is a difference, not a history, and what it has not touched yet is where the
model has it.

Replicas that carry much for few bytes move first. One that carries no more than the excess is preferred: the
plan should not move more than is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.goals import GOALS, Bounds, Goal, bounds_of
from penstock.balance.model import ABSENT, ANYWHERE, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.balance.model import Bools, ClusterModel, Floats, Ints

SLACK: Final = 1e-9  # of a bound, for rounding
SWAP_OUT, SWAP_IN, SWAP_BROKERS = 32, 64, 4  # candidates tried for swaps
CLOCK_EVERY: Final = 64  # candidates
REFUSED_MAX: Final = 200  # in a row: then a broker keeps what it has
LEADER_ONLY: Final = frozenset((Resource.EGRESS, Resource.LOAD, Resource.LEADER_INGRESS, Resource.LEADERS))


class ActionKind(StrEnum):
    LEADERSHIP = "leadership"
    MOVE = "move"
    SWAP = "swap"


class Purpose(StrEnum):
    """What a plan is for."""

    BALANCE = "balance"
    RELIEVE = "relieve"  # one broker, no more than needed
    FILL = "fill"  # new brokers; no other receives anything
    EMPTY = "empty"  # leaving and dead brokers; only their replicas move


@dataclass(frozen=True, slots=True)
class Request:
    purpose: Purpose = Purpose.BALANCE
    broker: int | None = None  # to relieve
    cell: int | None = None  # only this one
    topics_excluded: frozenset[int] = frozenset()
    tenants_excluded: frozenset[int] = frozenset()
    actions_max: int | None = None
    bytes_max: float | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """One partition's new replicas, preferred leader first; brokers are the model's numbers."""

    kind: ActionKind
    goal: str
    partition: int
    source: int
    destination: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: float
    carried_before: float  # by the source, of the goal's resource
    carried_after: float


@dataclass(frozen=True, slots=True)
class Remainder:
    """A broker that stays above a goal's target, and how many replicas each reason kept there."""

    broker: int
    goal: str
    carried: float
    target: float
    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    actions: tuple[Action, ...]
    goals_run: tuple[str, ...]
    goals_skipped: tuple[str, ...]
    remainders: tuple[Remainder, ...]
    partial: bool  # the deadline or a limit ended it
    totals: Floats = field(compare=False)  # [broker, resource] once it is executed

    @property
    def bytes(self) -> float:
        return sum(action.bytes for action in self.actions)


def plan(
    model: ClusterModel,
    request: Request,
    *,
    goals: Sequence[Goal] = GOALS,
    expired: Callable[[], bool] = lambda: False,
    metrics: bool = True,
) -> Plan:
    """The best plan found until `expired()`; without `metrics`, only goals that need none run."""
    run = [goal for goal in goals if metrics or not goal.needs_metrics]
    planner = _Planner(model, request, run, bounds_of(model, goals), expired)
    planner.empty()
    if request.purpose is Purpose.FILL:
        planner.fill()
    elif request.purpose is not Purpose.EMPTY:
        for goal in run:
            planner.improve(goal)
    return Plan(
        tuple(planner.actions),
        tuple(goal.name for goal in run),
        tuple(goal.name for goal in goals if goal not in run),
        tuple(planner.remainders),
        planner.ended,
        planner.totals,
    )


class _Planner:
    """The state of one plan. A class so that each phase can be read by itself."""

    def __init__(
        self,
        model: ClusterModel,
        request: Request,
        goals: Sequence[Goal],
        bounds: Bounds,
        expired: Callable[[], bool],
    ) -> None:
        self.model, self.request, self.goals, self.bounds, self.expired = (
            model, request, goals, bounds, expired,
        )  # fmt: skip
        self.totals = model.totals.copy()
        self.free = ~model.pinned & ~_excluded(model, request)  # partitions without an action
        self.actions: list[Action] = []
        self.remainders: list[Remainder] = []
        self.ended = False
        self.bytes = 0.0
        self._looked = 0
        brokers = model.brokers
        receives = brokers.receives & brokers.alive & ~brokers.leaving
        if request.purpose is Purpose.FILL:
            receives &= brokers.joining
        if request.cell is not None:
            receives &= brokers.cells == request.cell
        self.receivers = {
            int(cell): np.flatnonzero(receives & (brokers.cells == cell)) for cell in np.unique(brokers.cells)
        } | {ANYWHERE: np.flatnonzero(receives)}
        self.zones = {cell: brokers.zones[members] for cell, members in self.receivers.items()}
        self.place = np.full(len(brokers), -1)  # of a broker among its cell's receivers
        for cell, members in self.receivers.items():
            if cell != ANYWHERE:
                self.place[members] = np.arange(len(members))
        self.place_anywhere = np.full(len(brokers), -1)
        self.place_anywhere[self.receivers[ANYWHERE]] = np.arange(len(self.receivers[ANYWHERE]))
        self.accepted = np.minimum(bounds.accepted, bounds.hard) * (1 + SLACK)
        self.may_lead = brokers.leads & brokers.alive & ~brokers.leaving

    # Phases

    def empty(self) -> None:
        """Everything leaves leaving and dead brokers, and leadership leaves brokers that may not lead."""
        brokers = self.model.brokers
        for broker in np.flatnonzero(brokers.leaving):
            flat = self._movable(int(broker))
            size = self.model.cost_of(flat)[:, Resource.DISK]
            refused: Counter[str] = Counter()
            for index in flat[np.argsort(-size, kind="stable")]:
                if self._over():
                    return
                if self.free[index // self.model.factor_max]:
                    self._evacuate(int(index), refused)
            if refused:
                carried = float(self.totals[broker, Resource.DISK])
                self.remainders.append(Remainder(int(broker), "empty", carried, 0.0, dict(refused)))
        for broker in np.flatnonzero(~brokers.leads & brokers.alive & ~brokers.leaving):
            flat = self._movable(int(broker))
            for index in flat[self.model.is_leader(flat)]:
                if self._over():
                    return
                self._hand_over(
                    int(index), "leads-nothing", Resource.LEADERS, (self.bounds.hard,), improving=False
                )

    def improve(self, goal: Goal) -> None:
        """Brings brokers above the goal's target down to it, the fullest first."""
        over = self.totals[:, goal.resource] - self.bounds.target[:, goal.resource]
        if self.request.purpose is Purpose.RELIEVE:
            over[np.arange(len(over)) != self.request.broker] = 0.0
        over[~self._concerned()] = 0.0
        for broker in np.argsort(-over, kind="stable"):
            if over[broker] <= 0 or self._over():
                break
            self._relieve(int(broker), goal, goal.resource)

    def fill(self) -> None:
        """Moves load to joining brokers until each carries its share, the densest first."""
        brokers, model = self.model.brokers, self.model
        measured = model.totals[:, Resource.LOAD].sum() > 0
        resource = Resource.LOAD if measured else Resource.DISK
        goal = next(goal for goal in self.goals if goal.resource is resource)
        fair = self.bounds.target[:, resource] / goal.target
        givers = np.flatnonzero(brokers.lasting & ~brokers.joining & self._concerned())
        flat = np.concatenate([self._movable(int(one)) for one in givers] or [np.empty(0, np.int32)])
        cost = model.cost_of(flat)
        order = np.argsort(-density(cost, resource), kind="stable")
        holders, refused = model.replicas.ravel(), Counter[str]()
        limits = self.accepted.copy()
        limits[:, resource] = np.minimum(limits[:, resource], fair)
        for index, loads in zip(flat[order], cost[order], strict=True):
            if self._over():
                return
            source = int(holders[index])
            if loads[resource] <= 0 or self.totals[source, resource] - loads[resource] < fair[source]:
                continue
            if self.free[index // model.factor_max]:
                self._move(int(index), loads, goal.name, resource, (limits,), refused)

    def _relieve(self, broker: int, goal: Goal, resource: Resource) -> None:
        target = self.bounds.target[broker, resource]
        refused: Counter[str] = Counter()
        flat = self._movable(broker)
        if resource in LEADER_ONLY:
            led = flat[self.model.is_leader(flat)]
            partitions = led // self.model.factor_max
            gains = self.model.costs.leader[partitions] - self.model.costs.follower[partitions]
            # Where only the number counts, those first that other goals hardly notice.
            gain = -gains[:, Resource.EGRESS] if resource is Resource.LEADERS else gains[:, resource]
            refused_in_a_row = 0
            for index in led[np.argsort(-gain, kind="stable")]:
                if self.totals[broker, resource] <= target or self._over():
                    break
                handed = self._hand_over(int(index), goal.name, resource, (self.accepted,))
                refused_in_a_row = 0 if handed else refused_in_a_row + 1
                if refused_in_a_row >= REFUSED_MAX:
                    break
        flat = flat[self.free[flat // self.model.factor_max]]
        cost = self.model.cost_of(flat)
        order = np.argsort(-density(cost, resource), kind="stable")
        too_large = []  # those that carry more than the excess come last, the lightest first
        refused_in_a_row = 0
        for row in order:
            left, value = self.totals[broker, resource] - target, cost[row, resource]
            if left <= 0 or value <= 0 or refused_in_a_row >= REFUSED_MAX or self._over():
                break
            if value > left:
                too_large.append(int(row))
                continue
            moved = self._move(int(flat[row]), cost[row], goal.name, resource, (self.accepted,), refused)
            refused_in_a_row = 0 if moved else refused_in_a_row + 1
        for row in sorted(too_large, key=lambda row: float(cost[row, resource]))[:REFUSED_MAX]:
            if self.totals[broker, resource] <= target or self._over():
                break
            self._move(int(flat[row]), cost[row], goal.name, resource, (self.accepted,), refused)
        if self.totals[broker, resource] > target and not self.ended:
            self._swap(broker, goal, resource)
        if self.totals[broker, resource] > target * (1 + SLACK):
            carried = float(self.totals[broker, resource])
            self.remainders.append(Remainder(broker, goal.name, carried, float(target), dict(refused)))

    # Steps

    def _hand_over(
        self, index: int, goal: str, resource: Resource, limits: tuple[Floats, ...], *, improving: bool = True
    ) -> bool:
        """Gives leadership to the least loaded in-sync replica that the first of these limits allow."""
        model = self.model
        partition, position = divmod(index, model.factor_max)
        source = int(model.replicas[partition, position])
        if not self.free[partition]:
            return False
        gain = model.costs.leader[partition] - model.costs.follower[partition]
        followers = [
            int(broker)
            for broker, in_sync in zip(model.replicas[partition], model.in_sync[partition], strict=True)
            if broker not in (ABSENT, source) and in_sync and self.may_lead[broker]
        ]
        for limit in limits:
            fitting = [
                broker
                for broker in followers
                if ((self.totals[broker] + gain <= limit[broker]) | (gain <= 0)).all()
            ]
            if fitting:
                break
        else:
            return False
        leader = min(fitting, key=lambda broker: float(self.totals[broker, resource]))
        if improving and self.totals[leader, resource] + gain[resource] >= self.totals[source, resource]:
            return False
        before = self._brokers(partition)
        carried = float(self.totals[source, resource])
        self._carry(source, leader, gain)
        self._act(
            Action(
                ActionKind.LEADERSHIP, goal, partition, source, leader, before,
                (leader, *(broker for broker in before if broker != leader)), 0.0,
                carried, float(self.totals[source, resource]),
            )
        )  # fmt: skip
        return True

    def _move(
        self,
        index: int,
        cost: Floats,
        goal: str,
        resource: Resource,
        limits: tuple[Floats, ...],
        refused: Counter[str],
    ) -> bool:
        """Moves a replica to where the first of these limits allow it."""
        partition, position = divmod(index, self.model.factor_max)
        source = int(self.model.replicas[partition, position])
        destination = self._destination(partition, position, cost, resource, limits, refused)
        if destination == ABSENT:
            return False
        before = self._brokers(partition)
        carried = float(self.totals[source, resource])
        self._carry(source, destination, cost)
        self._act(
            Action(
                ActionKind.MOVE, goal, partition, source, destination, before,
                tuple(destination if broker == source else broker for broker in before),
                float(cost[Resource.DISK]), carried, float(self.totals[source, resource]),
            )
        )  # fmt: skip
        return True

    def _evacuate(self, index: int, refused: Counter[str]) -> None:
        """Moves every replica of a partition that is on a leaving broker, in one action."""
        model = self.model
        partition, position = divmod(index, model.factor_max)
        before = self._brokers(partition)
        source = int(model.replicas[partition, position])
        after, moved = list(before), 0.0
        carried = float(self.totals[source, Resource.DISK])
        saved = self.totals.copy() if len(before) > 1 else None
        for other, broker in enumerate(model.replicas[partition]):
            if broker == ABSENT or not model.brokers.leaving[broker]:
                continue
            cost = self.model.cost_of(np.array([partition * model.factor_max + other]))[0]
            held = tuple(after)
            limits = (self.accepted, self.bounds.hard)
            to = self._destination(
                partition, other, cost, Resource.DISK, limits, refused, held=held, improving=False
            )
            if to == ABSENT:
                if saved is not None:
                    self.totals = saved
                return
            self._carry(int(broker), to, cost)
            after[after.index(int(broker))] = to
            moved += float(cost[Resource.DISK])
        destination = after[before.index(source)]
        self._act(
            Action(
                ActionKind.MOVE, "empty", partition, source, destination, before, tuple(after), moved,
                carried, float(self.totals[source, Resource.DISK]),
            )
        )  # fmt: skip

    def _swap(self, broker: int, goal: Goal, resource: Resource) -> None:
        """Exchanges heavy replicas for light ones of the least loaded brokers."""
        model, target = self.model, self.bounds.target[broker, resource]
        flat = self._movable(broker)
        cost = model.cost_of(flat)
        heavy = np.argsort(-cost[:, resource], kind="stable")[:SWAP_OUT]
        cell = int(model.brokers.cells[broker])
        members = self.receivers[cell]
        for other in members[np.argsort(self.totals[members, resource], kind="stable")][:SWAP_BROKERS]:
            theirs = self._movable(int(other))
            their_cost = model.cost_of(theirs)
            light = np.argsort(their_cost[:, resource], kind="stable")[:SWAP_IN]
            for row in heavy:
                if self.totals[broker, resource] <= target or self._over():
                    return
                if self.free[flat[row] // model.factor_max]:
                    self._exchange(
                        int(flat[row]), cost[row], theirs[light], their_cost[light], goal, resource
                    )

    def _exchange(
        self,
        index: int,
        cost: Floats,
        theirs: Ints,
        their_costs: Floats,
        goal: Goal,
        resource: Resource,
    ) -> None:
        model, factor, limits = self.model, self.model.factor_max, self.accepted
        if not len(theirs):
            return
        source, destination = (int(model.replicas.ravel()[flat]) for flat in (index, theirs[0]))
        if not self._fits_hard(index, destination):
            return
        change = cost - their_costs  # what the destination gains
        there = ((self.totals[destination] + change <= limits[destination]) | (change <= 0)).all(axis=1)
        here = ((self.totals[source] - change <= limits[source]) | (change >= 0)).all(axis=1)
        helps = (change[:, resource] > 0) & (
            self.totals[destination, resource] + change[:, resource] < self.totals[source, resource]
        )
        for row in np.flatnonzero(there & here & helps):
            back = int(theirs[row])
            if not self.free[back // factor] or back // factor == index // factor:
                continue
            if not self._fits_hard(back, source):
                continue
            carried = float(self.totals[source, resource])
            self._carry(source, destination, change[row])
            left = float(self.totals[source, resource])
            for one, (a, b), loads in (
                (index, (source, destination), cost),
                (back, (destination, source), their_costs[row]),
            ):
                before = self._brokers(one // factor)
                self._act(
                    Action(
                        ActionKind.SWAP, goal.name, one // factor, a, b, before,
                        tuple(b if broker == a else broker for broker in before),
                        float(loads[Resource.DISK]), carried, left,
                    )
                )  # fmt: skip
            return

    # Conditions

    def _destination(
        self,
        partition: int,
        position: int,
        cost: Floats,
        resource: Resource,
        limits: tuple[Floats, ...],
        refused: Counter[str],
        *,
        held: tuple[int, ...] | None = None,
        improving: bool = True,
    ) -> int:
        """The least loaded broker that may take this replica, or ABSENT."""
        model = self.model
        cell = int(model.cells[partition])
        members = self.receivers.get(cell, self.receivers[ANYWHERE][:0])
        source = int(model.replicas[partition, position])
        allowed = self._allowed(partition, source, cell, held or self._brokers(partition))
        if model.leaders[partition] == position:
            allowed &= model.brokers.leads[members]
        after = self.totals[members] + cost
        if improving:
            allowed &= after[:, resource] < self.totals[source, resource]
        for limit in limits:
            within = (after <= limit[members]) | (cost <= 0)
            fits = allowed & within.all(axis=1)
            if fits.any():
                return int(members[np.argmin(np.where(fits, after[:, resource], np.inf))])
        refused[_reason(allowed, within, self.goals)] += 1
        return ABSENT

    def _allowed(self, partition: int, source: int, cell: int, held: tuple[int, ...]) -> Bools:
        """Hard conditions but capacity: distinct brokers, and no fewer zones than before."""
        zones = self.zones.get(cell, self.zones[ANYWHERE][:0])
        allowed = np.ones(len(zones), np.bool_)
        place = self.place_anywhere if cell == ANYWHERE else self.place
        zone_of = self.model.brokers.zones
        own_zone = zone_of[source]
        others = [broker for broker in held if broker != source]
        apart = all(zone_of[broker] != own_zone for broker in others)
        for broker in others:
            if place[broker] >= 0 and (cell == ANYWHERE or self.model.brokers.cells[broker] == cell):
                allowed[place[broker]] = False
            if apart:
                allowed &= zones != zone_of[broker]
        if place[source] >= 0 and (cell == ANYWHERE or self.model.brokers.cells[source] == cell):
            allowed[place[source]] = False
        return allowed

    def _fits_hard(self, index: int, broker: int) -> bool:
        """Whether a replica may go to a broker, capacity aside."""
        model = self.model
        partition, position = divmod(index, model.factor_max)
        cell = int(model.cells[partition])
        source = int(model.replicas[partition, position])
        place = self.place_anywhere if cell == ANYWHERE else self.place
        if place[broker] < 0 or (cell != ANYWHERE and model.brokers.cells[broker] != cell):
            return False
        if model.leaders[partition] == position and not model.brokers.leads[broker]:
            return False
        return bool(self._allowed(partition, source, cell, self._brokers(partition))[place[broker]])

    def _movable(self, broker: int) -> Ints:
        flat = self.model.on_broker(broker)
        return flat[self.free[flat // self.model.factor_max]]

    def _concerned(self) -> Bools:
        brokers = self.model.brokers
        concerned = brokers.lasting
        return concerned if self.request.cell is None else concerned & (brokers.cells == self.request.cell)

    def _brokers(self, partition: int) -> tuple[int, ...]:
        return tuple(int(broker) for broker in self.model.replicas[partition] if broker != ABSENT)

    def _carry(self, source: int, destination: int, cost: Floats) -> None:
        self.totals[source] -= cost
        self.totals[destination] += cost

    def _act(self, action: Action) -> None:
        self.actions.append(action)
        self.bytes += action.bytes
        self.free[action.partition] = False

    def _over(self) -> bool:
        """Whether the plan has to end here."""
        request = self.request
        if self.ended:
            return True
        self._looked += 1
        self.ended = (
            (request.actions_max is not None and len(self.actions) >= request.actions_max)
            or (request.bytes_max is not None and self.bytes >= request.bytes_max)
            or (self._looked % CLOCK_EVERY == 0 and self.expired())
        )
        return self.ended


def executed(model: ClusterModel, actions: Sequence[Action]) -> ClusterModel:
    """The cluster once these actions are done: replicas placed and in sync, preferred leaders elected."""
    replicas, leaders = model.replicas.copy(), model.leaders.copy()
    in_sync = model.in_sync.copy()
    for action in actions:
        replicas[action.partition, : len(action.after)] = action.after
        in_sync[action.partition, : len(action.after)] = True
        if action.kind is ActionKind.LEADERSHIP:
            leaders[action.partition] = 0
    return replace(model, replicas=replicas, leaders=leaders, in_sync=in_sync)


def density(cost: Floats, resource: Resource) -> Floats:
    """What moving a replica achieves for its bytes; for disks themselves, its size."""
    value = cost[:, resource]
    if resource is Resource.DISK or not len(value):
        return value
    size = cost[:, Resource.DISK]
    return np.asarray(value / (size + size.mean() + 1.0))


def _excluded(model: ClusterModel, request: Request) -> Bools:
    topics = np.fromiter(request.topics_excluded, np.int32)
    tenants = np.fromiter(request.tenants_excluded, np.int32)
    return np.asarray(np.isin(model.topics, topics) | np.isin(model.tenants, tenants))


def _reason(allowed: Bools, within: Bools, goals: Sequence[Goal]) -> str:
    """Which condition keeps a replica where it is: a hard one, a goal that refuses everywhere, or several."""
    if not allowed.any():
        return "zones-and-brokers"
    for goal in goals:
        if not within[allowed, goal.resource].any():
            return goal.name
    return "several-goals"
