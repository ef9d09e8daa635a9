"""Plans which replicas and leaders move, with reasons. Pure: the caller brings the model and the clock.

Goals run once each, the most important first. For each broker above a goal's target the planner tries, in
this order, to hand leadership to an in-sync replica elsewhere (no bytes), to move replicas, and to swap them.
A step must reduce what brokers carry beyond the goal's target, and be accepted by every other goal: it may
bring no broker above what that goal accepts, which is a little more than its target, so that goals leave each
other room. A heavy partition may also be led where no broker has room for it, if that broker then carries no
more than the one before did: lighter ones can leave it.

A partition takes part in at most one action: a plan is a difference, not a history. Only the leadership of a
partition may still change when one of its followers moves; both are then one action.

Replicas that carry much for few bytes move first. One that carries no more than the excess is preferred: the
plan should not move more than is needed. Where only the number counts, those move that other goals hardly
notice.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.actions import (
    Action,
    ActionKind,
    Plan,
    Purpose,
    Reason,
    Remainder,
    Request,
    Shortfall,
    executed,
)
from penstock.balance.goals import (
    GOALS,
    LOAD_FULL,
    TOPIC_SPREAD,
    Bounds,
    Goal,
    bounds_of,
    fair_shares,
)
from penstock.balance.model import ABSENT, Resource
from penstock.balance.plan_state import PLACES, SLACK, PlanState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.balance.model import Bools, ClusterModel, Floats, Ints

__all__ = ["Action", "ActionKind", "Plan", "Purpose", "Remainder", "Request", "Shortfall", "executed", "plan"]

SWAP_OUT, SWAP_IN, SWAP_BROKERS = 32, 64, 4  # candidates tried for swaps
PASSES_MAX: Final = 6
REFUSED_MAX: Final = 60  # in a row: then a broker keeps what it has
HEAVY: Final = 0.05  # of what a broker should carry
LEADER_ONLY: Final = frozenset((Resource.EGRESS, Resource.LOAD, Resource.LEADER_INGRESS, Resource.LEADERS))
COUNTS: Final = frozenset((Resource.LEADERS, Resource.REPLICAS))
EMPTY, LEADS_NOTHING = "empty", "leads-nothing"  # reasons of actions besides goals


def plan(
    model: ClusterModel,
    request: Request,
    *,
    goals: Sequence[Goal] = GOALS,
    expired: Callable[[], bool] = lambda: False,
    metrics: bool = True,
    only: Collection[str] = (),
) -> Plan:
    """The best plan found until `expired()`; without `metrics`, only goals that need none run.

    Of the goals, those named in `only` run, or all if none is; no action breaks another one."""
    run = [g for g in goals if (metrics or not g.needs_metrics) and (not only or g.name in only)]
    planner = _Planner(model, request, run, bounds_of(model, goals), expired)
    purpose = request.purpose
    if purpose in (Purpose.BALANCE, Purpose.EMPTY):
        planner.empty()
    if purpose in (Purpose.BALANCE, Purpose.EMPTY, Purpose.DEMOTE):
        planner.demote()
    if purpose is Purpose.FILL:
        planner.fill()
    elif purpose in (Purpose.BALANCE, Purpose.RELIEVE):
        planner.balance()
    spread = purpose is Purpose.BALANCE and planner.spread is not None and (not only or TOPIC_SPREAD in only)
    if spread:
        planner.spread_topics()
    names = [goal.name for goal in goals] + [TOPIC_SPREAD]
    done = [goal.name for goal in run if purpose in (Purpose.BALANCE, Purpose.RELIEVE, Purpose.FILL)]
    done += [TOPIC_SPREAD] if spread else []
    return Plan(
        tuple(planner.actions),
        tuple(done),
        tuple(name for name in names if name not in done),
        tuple(planner.remainders),
        planner.ended,
        planner.totals,
        planner.shortfalls(),
    )


class _Planner(PlanState):
    """The phases and steps of one plan."""

    def __init__(
        self,
        model: ClusterModel,
        request: Request,
        goals: Sequence[Goal],
        bounds: Bounds,
        expired: Callable[[], bool],
    ) -> None:
        super().__init__(model, request, goals, bounds, expired)
        self.remainders: list[Remainder] = []
        self.missing: Counter[tuple[int, str]] = Counter()  # by cell and what is missing
        self.missing_zones: set[tuple[int, int]] = set()  # cell and zone

    # Phases

    def empty(self) -> None:
        """Everything leaves leaving and dead brokers."""
        for broker in np.flatnonzero(self.model.brokers.leaving & self.concerned(leaving=True)):
            flat = self.movable(int(broker))
            size = self.model.cost_of(flat)[:, Resource.DISK]
            refused: Counter[str] = Counter()
            for index in flat[np.argsort(-size, kind="stable")]:
                if self.over():
                    return
                if self.free[index // self.model.factor_max]:
                    self._evacuate(int(index), refused)
            if refused:
                carried = float(self.totals[broker, Resource.DISK])
                self.remainders.append(Remainder(int(broker), EMPTY, carried, 0.0, dict(refused)))

    def demote(self) -> None:
        """Leadership leaves brokers that may not lead."""
        brokers = self.model.brokers
        limits = (self.accepted, self.bounds.hard)
        for broker in np.flatnonzero(~brokers.leads & brokers.alive & ~brokers.leaving & self.concerned()):
            kept = 0
            for partition in self.led(int(broker)):
                if self.over():
                    return
                kept += not self._hand_over(
                    int(partition), LEADS_NOTHING, Resource.LEADERS, limits, improving=False
                )
            if kept:
                carried = float(self.totals[broker, Resource.LEADERS])
                refused = {"in-sync-followers": kept}
                self.remainders.append(Remainder(int(broker), LEADS_NOTHING, carried, 0.0, refused))

    def balance(self) -> None:
        """Every goal in order; again while some broker carries more than accepted and steps are found.

        Later goals fill brokers up to what earlier ones accept. Another pass brings those down to their
        target and so makes room where later goals were refused.
        """
        for _ in range(PASSES_MAX):
            steps = self.steps
            self.remainders = [each for each in self.remainders if each.goal in (EMPTY, LEADS_NOTHING)]
            for goal in self.goals:
                self.improve(goal)
            if self.ended or self.steps == steps or not self._excessive():
                return

    def _excessive(self) -> bool:
        over = (self.totals > self.accepted) & self.concerned()[:, np.newaxis]
        if self.request.purpose is Purpose.RELIEVE:
            return bool(over[self.request.broker].any())
        return bool(over.any())

    def improve(self, goal: Goal) -> None:
        """Brings brokers above the goal's target down to it, the fullest first."""
        over = self.totals[:, goal.resource] - self.bounds.target[:, goal.resource]
        if self.request.purpose is Purpose.RELIEVE:
            over[np.arange(len(over)) != self.request.broker] = 0.0
        over[~self.concerned()] = 0.0
        for broker in np.argsort(-over, kind="stable"):
            if over[broker] <= 0 or self.over():
                break
            self._relieve(int(broker), goal)

    def fill(self) -> None:
        """Moves load to joining brokers until each carries its share, the densest replicas first.

        Without measured load, bytes stand for it; replicas without any are then moved by their number.
        """
        loads = any(goal.resource is Resource.LOAD for goal in self.goals)
        measured = loads and self.model.totals[:, Resource.LOAD].sum() > 0
        for resource in (Resource.LOAD,) if measured else (Resource.DISK, Resource.REPLICAS):
            goal = next((goal for goal in self.goals if goal.resource is resource), None)
            if goal is not None:
                self._fill(resource, goal)

    def _fill(self, resource: Resource, goal: Goal) -> None:
        brokers, model = self.model.brokers, self.model
        fair = fair_shares(model, resource)
        givers = np.flatnonzero(brokers.lasting & ~brokers.joining & self.concerned())
        flat = np.concatenate([self.movable(int(one)) for one in givers] or [np.empty(0, np.int32)])
        cost = model.cost_of(flat)
        order = np.argsort(-_density(cost, resource), kind="stable")
        holders, refused = model.replicas.ravel(), Counter[str]()
        limits = self.accepted.copy()
        limits[:, resource] = np.minimum(limits[:, resource], fair)
        for index, loads in zip(flat[order], cost[order], strict=True):
            if self.over():
                return
            source = int(holders[index])
            if loads[resource] <= 0 or self.totals[source, resource] - loads[resource] < fair[source]:
                continue
            if self.free[index // model.factor_max]:
                self._move(int(index), loads, goal.name, resource, (limits,), refused, improving=False)

    def spread_topics(self) -> None:
        """Brings the replicas of one topic on one broker down to what is tolerated."""
        spread, concerned = self.spread, self.concerned()
        assert spread is not None
        for topic, broker in spread.violated():
            if self.over():
                return
            if not concerned[broker]:
                continue
            flat = self.movable(broker)
            flat = flat[self.model.topics[flat // self.model.factor_max] == topic]
            cost = self.model.cost_of(flat)
            refused: Counter[str] = Counter()
            for row in np.argsort(cost[:, Resource.DISK], kind="stable"):
                carried = int(spread.counts[topic, broker])
                if carried <= spread.limits[topic] or self.over():
                    break
                self._move(
                    int(flat[row]), cost[row], TOPIC_SPREAD, Resource.REPLICAS, (self.accepted,), refused,
                    improving=False, carried=(carried, carried - 1),
                )  # fmt: skip
            if refused:
                left, limit = float(spread.counts[topic, broker]), float(spread.limits[topic])
                self.remainders.append(Remainder(broker, TOPIC_SPREAD, left, limit, dict(refused)))

    def _relieve(self, broker: int, goal: Goal) -> None:
        resource, target = goal.resource, self.bounds.target[broker, goal.resource]
        refused: Counter[str] = Counter()
        if resource in LEADER_ONLY:
            self._shed_leadership(broker, goal)
        if self.totals[broker, resource] > target:
            self._shed_replicas(broker, goal, refused)
        if self.totals[broker, resource] > target and resource is not Resource.REPLICAS and not self.ended:
            self._swap(broker, goal)
        if self.totals[broker, resource] > target * (1 + SLACK):
            carried = float(self.totals[broker, resource])
            self.remainders.append(Remainder(broker, goal.name, carried, float(target), dict(refused)))

    def _shed_leadership(self, broker: int, goal: Goal) -> None:
        model, resource = self.model, goal.resource
        target = self.bounds.target[broker, resource]
        led = self.led(broker)
        gains = model.costs.leader[led] - model.costs.follower[led]
        heavy = self._heavy(broker, led, gains, resource)
        # Most partitions have no follower that could take over: found for all of them at once.
        followers = model.replicas[led]
        able = (followers != broker) & (followers != ABSENT) & model.in_sync[led] & self.may_lead[followers]
        limits = self.accepted[followers]
        limits[heavy] = self.traded(broker)[followers[heavy]]
        room = self.totals[followers] + gains[:, np.newaxis] <= limits
        able &= (room | (gains <= 0)[:, np.newaxis]).all(axis=2)
        worth = -self.weight(gains, resource) if resource in COUNTS else gains[:, resource]
        order = np.argsort(-worth, kind="stable")
        if resource in COUNTS:  # heavier ones would fill the others' followers: light replicas move instead
            order = order[: math.ceil(self.totals[broker, resource] - target)]
        for row in order:
            if self.totals[broker, resource] <= target or self.over():
                break
            if able[row].any():
                self._hand_over(int(led[row]), goal.name, resource, (self.accepted,), heavy=bool(heavy[row]))

    def _heavy(self, broker: int, partitions: Ints, cost: Floats, resource: Resource) -> Bools:
        """Which of these partitions may be traded: heavy ones, but for the heaviest of the broker. That one
        would only bring its excess along."""
        if resource in COUNTS or not len(partitions):
            return np.zeros(len(partitions), np.bool_)
        flat = self.model.on_broker(broker)
        heaviest = flat[self.model.cost_of(flat)[:, resource].argmax()] // self.model.factor_max
        heavy = cost[:, resource] > HEAVY * self.bounds.target[broker, resource]
        return np.asarray(heavy & (partitions != heaviest))

    def _shed_replicas(self, broker: int, goal: Goal, refused: Counter[str]) -> None:
        resource, target = goal.resource, self.bounds.target[broker, goal.resource]
        flat = self.movable(broker)
        cost = self.model.cost_of(flat)
        worth = -self.weight(cost, resource) if resource in COUNTS else _density(cost, resource)
        heavy = self._heavy(broker, flat // self.model.factor_max, cost, resource)
        too_large = []  # those that carry more than the excess come last, the lightest first
        refused_in_a_row = 0
        order = [int(row) for row in np.argsort(-worth, kind="stable") if cost[row, resource] > 0]
        for tried, row in enumerate(order):
            left = self.totals[broker, resource] - target
            if left <= 0 or self.over():
                return
            if refused_in_a_row >= REFUSED_MAX:
                refused["not-tried"] += len(order) - tried
                break
            if cost[row, resource] > left:
                too_large.append(row)
                continue
            moved = self._move(
                int(flat[row]), cost[row], goal.name, resource, (self.accepted,), refused,
                heavy=bool(heavy[row]),
            )  # fmt: skip
            refused_in_a_row = 0 if moved else refused_in_a_row + 1
        for row in sorted(too_large, key=lambda row: float(cost[row, resource]))[:REFUSED_MAX]:
            if self.totals[broker, resource] <= target or self.over():
                break
            self._move(
                int(flat[row]), cost[row], goal.name, resource, (self.accepted,), refused,
                heavy=bool(heavy[row]),
            )  # fmt: skip

    # Steps

    def _hand_over(
        self,
        partition: int,
        goal: str,
        resource: Resource,
        limits: tuple[Floats, ...],
        *,
        improving: bool = True,
        heavy: bool = False,
    ) -> bool:
        """Gives leadership to the least loaded in-sync replica that the first of these limits allow.

        What is heavy may also be traded.
        """
        model = self.model
        source = int(model.replicas[partition, model.leaders[partition]])
        number = self.action_of.get(partition)
        staying = self.holders(partition) if number is None else self.actions[number].after
        gain = model.costs.leader[partition] - model.costs.follower[partition]
        followers = [
            int(broker)
            for broker, in_sync in zip(model.replicas[partition], model.in_sync[partition], strict=True)
            if in_sync and broker != source and broker in staying and self.may_lead[broker]
        ]
        if improving:
            followers = [one for one in followers if self.improves(source, one, gain, resource)]
        for limit in (*limits, self.traded(source)) if heavy else limits:
            fitting = [
                one for one in followers if ((self.totals[one] + gain <= limit[one]) | (gain <= 0)).all()
            ]
            if fitting:
                break
        else:
            return False
        leader = min(fitting, key=lambda broker: float(self.totals[broker, resource]))
        carried = float(self.totals[source, resource])
        self.carry(source, leader, gain)
        left = float(self.totals[source, resource])
        after = (leader, *(broker for broker in staying if broker != leader))
        self.leadership_free[partition] = False
        if number is None:
            kind = ActionKind.LEADERSHIP
            before = self.holders(partition)
            self.act(Action(kind, goal, partition, source, leader, before, after, 0.0, carried, left))
        else:
            self.steps += 1
            reason = Reason(goal, source, carried, left)
            self.actions[number] = replace(self.actions[number], after=after, leadership=reason)
        return True

    def _move(
        self,
        index: int,
        cost: Floats,
        goal: str,
        resource: Resource,
        limits: tuple[Floats, ...],
        refused: Counter[str],
        *,
        improving: bool = True,
        heavy: bool = False,
        carried: tuple[float, float] | None = None,
    ) -> bool:
        """Moves a replica to where the first of these limits allow it. What is heavy may also be traded."""
        partition, position = divmod(index, self.model.factor_max)
        source = int(self.model.replicas[partition, position])
        if self.too_many_bytes(float(cost[Resource.DISK])):
            return False
        destination = self.destination(
            partition, position, cost, resource, limits, refused, improving=improving, heavy=heavy
        )
        if destination == ABSENT:
            return False
        before = float(self.totals[source, resource])
        self.carry(source, destination, cost)
        held = carried or (before, float(self.totals[source, resource]))
        self._relocate(ActionKind.MOVE, goal, index, destination, held)
        return True

    def _relocate(
        self, kind: ActionKind, goal: str, index: int, destination: int, carried: tuple[float, float]
    ) -> None:
        """Records that a replica goes to another broker."""
        model = self.model
        partition, position = divmod(index, model.factor_max)
        source = int(model.replicas[partition, position])
        before = self.holders(partition)
        after = tuple(destination if broker == source else broker for broker in before)
        size = float(model.cost_of(np.array([index]))[0, Resource.DISK])
        if model.leaders[partition] == position:
            self.leadership_free[partition] = False
        if self.spread is not None:
            self.spread.move(int(model.topics[partition]), source, destination)
        self.act(Action(kind, goal, partition, source, destination, before, after, size, *carried))

    def _evacuate(self, index: int, refused: Counter[str]) -> None:
        """Moves every replica of a partition that is on a leaving broker, in one action."""
        model = self.model
        partition, position = divmod(index, model.factor_max)
        before = self.holders(partition)
        source = int(model.replicas[partition, position])
        after, moved, saved = list(before), 0.0, self.totals.copy() if len(before) > 1 else None
        carried = float(self.totals[source, Resource.DISK])
        limits = (self.accepted, self.bounds.hard)
        for other, broker in enumerate(model.replicas[partition]):
            if broker == ABSENT or not model.brokers.leaving[broker]:
                continue
            cost = model.cost_of(np.array([partition * model.factor_max + other]))[0]
            to = self.destination(
                partition, other, cost, Resource.DISK, limits, refused, held=tuple(after), improving=False
            )
            if to == ABSENT or self.too_many_bytes(moved + float(cost[Resource.DISK])):
                if to == ABSENT:
                    self._note_missing(partition, int(broker), cost, refused)
                if saved is not None:
                    self.totals = saved
                return
            self.carry(int(broker), to, cost)
            after[after.index(int(broker))] = to
            moved += float(cost[Resource.DISK])
        self.leadership_free[partition] = False
        if self.spread is not None:
            for old, new in zip(before, after, strict=True):
                if old != new:
                    self.spread.move(int(model.topics[partition]), old, new)
        destination, left = after[before.index(source)], float(self.totals[source, Resource.DISK])
        self.act(
            Action(
                ActionKind.MOVE, EMPTY, partition, source, destination, before, tuple(after), moved,
                carried, left,
            )
        )  # fmt: skip

    def _note_missing(self, partition: int, broker: int, cost: Floats, refused: Counter[str]) -> None:
        """Why a replica cannot leave, for the shortfall."""
        cell, reason = int(self.model.cells[partition]), next(reversed(refused))
        if reason == PLACES:
            self.missing_zones.add((cell, int(self.model.brokers.zones[broker])))
            self.missing[cell, "zones"] += 1
        for goal in self.goals:
            if goal.name == reason and goal.resource in (Resource.DISK, Resource.REPLICAS):
                self.missing[cell, reason] += math.ceil(cost[goal.resource])

    def _swap(self, broker: int, goal: Goal) -> None:
        """Exchanges heavy replicas for light ones of the least loaded brokers."""
        model, resource = self.model, goal.resource
        target = self.bounds.target[broker, resource]
        flat = self.movable(broker)
        cost = model.cost_of(flat)
        heavy = np.argsort(-cost[:, resource], kind="stable")[:SWAP_OUT]
        members = self.receivers[int(model.brokers.cells[broker])]
        if self.request.purpose is Purpose.FILL or not model.brokers.receives[broker]:
            return
        for other in members[np.argsort(self.totals[members, resource], kind="stable")][:SWAP_BROKERS]:
            theirs = self.movable(int(other))
            their_cost = model.cost_of(theirs)
            light = np.argsort(their_cost[:, resource], kind="stable")[:SWAP_IN]
            for row in heavy:
                if self.totals[broker, resource] <= target or self.over():
                    return
                if self.free[flat[row] // model.factor_max]:
                    self._exchange(int(flat[row]), cost[row], theirs[light], their_cost[light], goal)

    def _exchange(self, index: int, cost: Floats, theirs: Ints, their_costs: Floats, goal: Goal) -> None:
        model, factor, limits, resource = self.model, self.model.factor_max, self.accepted, goal.resource
        if not len(theirs):
            return
        source, destination = (int(model.replicas.ravel()[flat]) for flat in (index, theirs[0]))
        if not self.fits_hard(index, destination):
            return
        change = cost - their_costs  # what the destination gains
        there = ((self.totals[destination] + change <= limits[destination]) | (change <= 0)).all(axis=1)
        here = ((self.totals[source] - change <= limits[source]) | (change >= 0)).all(axis=1)
        for row in np.flatnonzero(there & here & (change[:, resource] > 0)):
            back = int(theirs[row])
            size = float(cost[Resource.DISK] + their_costs[row, Resource.DISK])
            if (
                back // factor == index // factor
                or not self.free[back // factor]
                or not self.improves(source, destination, change[row], resource)
                or not self.fits_hard(back, source)
                or self.too_many_bytes(size)
            ):
                continue
            carried = float(self.totals[source, resource])
            self.carry(source, destination, change[row])
            held = (carried, float(self.totals[source, resource]))
            self._relocate(ActionKind.SWAP, goal.name, index, destination, held)
            self._relocate(ActionKind.SWAP, goal.name, back, source, held)
            return

    # What is missing

    def shortfalls(self) -> tuple[Shortfall, ...]:
        """What each cell lacks: room for what could not move, or capacity for what it carries."""
        brokers, hard = self.model.brokers, self.bounds.hard
        missing = dict(self.missing)
        limits = {}
        for cell in np.unique(brokers.cells):
            inside = brokers.cells == cell
            members = inside & brokers.lasting
            if not members.any():
                continue
            for goal in self.goals:
                resource = goal.resource
                if resource is Resource.LOAD:
                    room = np.full(int(members.sum()), LOAD_FULL) - brokers.base[members, resource]
                elif resource in (Resource.DISK, Resource.REPLICAS):
                    room = hard[members, resource]
                else:
                    continue
                key = (int(cell), goal.name)
                limits[key] = float(np.median(room))
                lacking = float(self.totals[inside, resource].sum() - room.sum())
                if lacking > 0:
                    missing[key] = max(missing.get(key, 0), lacking)  # type: ignore[assignment]  # shares
        zones = Counter(cell for cell, _ in self.missing_zones)
        return tuple(
            Shortfall(cell, what, float(amount), _brokers_for(amount, limits.get((cell, what)), zones[cell]))
            for (cell, what), amount in sorted(missing.items())
        )


def _brokers_for(amount: float, room: float | None, zones: int) -> int:
    """How many brokers cover what is missing; without a measure, one in every zone that lacks one."""
    if room is None or not math.isfinite(room) or room <= 0:
        return max(zones, 1)
    return math.ceil(amount / room)


def _density(cost: Floats, resource: Resource) -> Floats:
    """What moving a replica achieves for its bytes; for disks themselves, its size."""
    value = cost[:, resource]
    if resource is Resource.DISK or not len(value):
        return value
    size = cost[:, Resource.DISK]
    return np.asarray(value / (size + size.mean() + 1.0))
