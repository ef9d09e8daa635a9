"""The state of a plan in the making: what each broker carries, which partitions are free, what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.actions import Purpose
from penstock.balance.goals import TopicSpread, spreadable
from penstock.balance.model import ABSENT, ANYWHERE, RESOURCES, Resource

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from penstock.balance.actions import Action, Request
    from penstock.balance.goals import Bounds, Goal
    from penstock.balance.model import Bools, ClusterModel, Floats, Ints

SLACK: Final = 1e-9  # of a bound, for rounding
CLOCK_EVERY: Final = 64  # candidates
TRADED: Final = [Resource.EGRESS, Resource.LOAD, Resource.LEADER_INGRESS, Resource.LEADERS]  # follow leaders
PLACES: Final = "zones-and-brokers"  # no other broker may have the replica


class PlanState:
    """Which steps are possible, and what the steps so far have changed."""

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
        self.leadership_free = self.free.copy()
        self.spread = TopicSpread(model) if spreadable(model) else None
        self.actions: list[Action] = []
        self.action_of: dict[int, int] = {}  # by partition
        self.ended = False
        self.bytes = 0.0
        self.steps = 0
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
        mean = model.totals.sum(axis=0) / max(int(brokers.lasting.sum()), 1)
        self.weights = np.divide(1.0, mean, out=np.zeros(RESOURCES), where=mean > 0)

    def improves(self, source: int, destination: int, cost: Floats, resource: Resource) -> bool:
        """Whether both together carry less beyond the target afterwards."""
        target, totals, value = self.bounds.target, self.totals, float(cost[resource])
        over = totals[source, resource] - target[source, resource]
        there = totals[destination, resource] - target[destination, resource]
        return bool(max(there + value, 0.0) - max(there, 0.0) < min(max(over, 0.0), value) * (1 - SLACK))

    def traded(self, source: int) -> Floats:
        """Limits for what is traded: no broker may carry more afterwards than its source did before."""
        limits = self.accepted.copy()
        limits[:, TRADED] = np.maximum(limits[:, TRADED], self.totals[source, TRADED])
        return limits

    def destination(
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
        heavy: bool = False,
    ) -> int:
        """The least loaded broker that may take this replica, or ABSENT. What is heavy may be traded."""
        model = self.model
        cell = int(model.cells[partition])
        members = self.receivers.get(cell, self.receivers[ANYWHERE][:0])
        source = int(model.replicas[partition, position])
        allowed = self.allowed(partition, source, cell, held or self.holders(partition))
        if model.leaders[partition] == position:
            allowed &= model.brokers.leads[members]
        after = self.totals[members] + cost
        helps = allowed
        if improving:
            target = self.bounds.target[:, resource]
            over = max(float(self.totals[source, resource] - target[source]), 0.0)
            there = self.totals[members, resource] - target[members]
            beyond = np.maximum(there + cost[resource], 0.0) - np.maximum(there, 0.0)
            helps = allowed & (beyond < min(over, float(cost[resource])) * (1 - SLACK))
        if held is None and self.spread is not None:
            helps = helps & self.spread.fits(int(model.topics[partition]), members)
        for limit in (*limits, self.traded(source)) if heavy else limits:
            within = (after <= limit[members]) | (cost <= 0)
            fits = helps & within.all(axis=1)
            if fits.any():
                return int(members[np.argmin(np.where(fits, after[:, resource], np.inf))])
        refused[_reason(allowed, helps, within, self.goals)] += 1
        return ABSENT

    def allowed(self, partition: int, source: int, cell: int, held: tuple[int, ...]) -> Bools:
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

    def fits_hard(self, index: int, broker: int) -> bool:
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
        if self.spread is not None and not self.spread.fits(
            int(model.topics[partition]), np.array([broker], np.int32)
        ):
            return False
        return bool(self.allowed(partition, source, cell, self.holders(partition))[place[broker]])

    def movable(self, broker: int) -> Ints:
        flat = self.model.on_broker(broker)
        return flat[self.free[flat // self.model.factor_max]]

    def led(self, broker: int) -> Ints:
        """Partitions that a broker leads and whose leadership may change."""
        flat = self.model.on_broker(broker)
        led = flat[self.model.is_leader(flat)] // self.model.factor_max
        return led[self.leadership_free[led]]

    def weight(self, cost: Floats, resource: Resource) -> Floats:
        """How much other goals notice a replica."""
        weights = self.weights.copy()
        weights[resource] = 0.0
        return np.asarray(cost @ weights)

    def concerned(self, *, leaving: bool = False) -> Bools:
        brokers = self.model.brokers
        concerned = brokers.lasting | (brokers.leaving if leaving else False)
        if self.request.cell is not None:
            concerned = concerned & (brokers.cells == self.request.cell)
        return np.asarray(concerned)

    def holders(self, partition: int) -> tuple[int, ...]:
        return tuple(int(broker) for broker in self.model.replicas[partition] if broker != ABSENT)

    def carry(self, source: int, destination: int, cost: Floats) -> None:
        self.totals[source] -= cost
        self.totals[destination] += cost

    def act(self, action: Action) -> None:
        self.action_of[action.partition] = len(self.actions)
        self.actions.append(action)
        self.bytes += action.bytes
        self.steps += 1
        self.free[action.partition] = False

    def too_many_bytes(self, size: float) -> bool:
        if self.request.bytes_max is not None and self.bytes + size > self.request.bytes_max:
            self.ended = True
            return True
        return False

    def over(self) -> bool:
        """Whether the plan has to end here."""
        if self.ended:
            return True
        self._looked += 1
        most = self.request.actions_max
        self.ended = (most is not None and len(self.actions) >= most) or (
            self._looked % CLOCK_EVERY == 0 and self.expired()
        )
        return self.ended


def _excluded(model: ClusterModel, request: Request) -> Bools:
    topics = np.fromiter(request.topics_excluded, np.int32)
    tenants = np.fromiter(request.tenants_excluded, np.int32)
    return np.asarray(np.isin(model.topics, topics) | np.isin(model.tenants, tenants))


def _reason(allowed: Bools, helps: Bools, within: Bools, goals: Sequence[Goal]) -> str:
    """Which condition keeps a replica where it is: a hard one, a goal that refuses everywhere, or several."""
    if not allowed.any():
        return PLACES
    for goal in goals:
        if not within[allowed, goal.resource].any():
            return goal.name
    return "several-goals" if helps.any() else "no-improvement"
