"""What a balanced cluster is: goals as values, in order of importance.

A soft goal compares the brokers of one cell: none should carry more of a resource than `target` times its
fair share, which is the cell's mean, weighted by capacity where capacities are known. A goal is violated
above `trigger`, which is higher than `target`: a round that just ended is not started again by noise. Below
`floor`, as a share of capacity or in absolute units, no imbalance matters.

Triggering goals start a round when they are violated; the other ones run only within a round. The last goal
spreads each topic: it limits the replicas of one topic on one broker.

Hard goals are conditions on a single replica; the planner never breaks one: distinct brokers, no fewer
zones than before, the partition's cell, brokers that take replicas, room on the disk, replicas per broker,
the replication factor, pinned partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.model import ABSENT, ANYWHERE, Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.balance.model import Bools, ClusterModel, Floats

DISK_FULL: Final = 0.85  # of a disk: nothing moves to where it would exceed this
REPLICAS_MAX: Final = 10_000  # on one broker
LOAD_FULL: Final = 0.80  # of a broker: above it on average, a cell needs more brokers
TOPIC_SPREAD: Final = "topic-spread"  # the name of the last goal
SPREAD_SHARE: Final = 1.5  # of a topic's fair share, and one more: on one broker
SPREAD_COUNTS_MAX: Final = 200_000_000  # topics times brokers: beyond, topics are not spread


@dataclass(frozen=True, slots=True)
class Goal:
    """One resource to be spread evenly."""

    name: str
    resource: Resource
    trigger: float = 1.20  # of the fair share: above, the goal is violated
    target: float = 1.06  # a plan brings brokers down to this
    accepted: float = 1.095  # and lets no other goal's action exceed this
    floor: float = 0.0  # of this resource: below, nothing is violated
    triggering: bool = False  # whether a violation starts a round by itself
    needs_metrics: bool = True  # otherwise the Admin API is enough


GOALS: Final = (
    Goal("disk", Resource.DISK, triggering=True, floor=1e9, needs_metrics=False),
    Goal("ingress", Resource.INGRESS, triggering=True, floor=1e6),
    Goal("egress", Resource.EGRESS, triggering=True, floor=1e6),
    Goal("load", Resource.LOAD, triggering=True, floor=0.2),
    Goal("leader-ingress", Resource.LEADER_INGRESS, floor=1e6),
    Goal("leaders", Resource.LEADERS, floor=10, needs_metrics=False),
    Goal("replicas", Resource.REPLICAS, floor=30, needs_metrics=False),
)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broker that carries more of a goal's resource than the goal tolerates."""

    goal: str
    broker: int
    carried: float
    tolerated: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What each broker may carry, [broker, resource]: the targets of soft goals, and hard capacity."""

    target: Floats
    accepted: Floats
    trigger: Floats
    hard: Floats

    def violated(self, totals: Floats, resource: Resource) -> Bools:
        return np.asarray(totals[:, resource] > self.trigger[:, resource] * (1 + 1e-9))


def bounds_of(model: ClusterModel, goals: Sequence[Goal]) -> Bounds:
    """Bounds for the brokers that stay; one that leaves, or takes no replica, may keep but not gain."""
    brokers, totals = model.brokers, model.totals + model.brokers.base
    target, accepted, trigger = (np.full_like(totals, np.inf) for _ in range(3))
    for cell in np.unique(brokers.cells):
        members = (brokers.cells == cell) & brokers.lasting
        if not members.any():
            continue
        held = totals[brokers.cells == cell].sum(axis=0)  # what leaving brokers carry has to go somewhere
        for goal in goals:
            capacity = brokers.capacity[members, goal.resource]
            weight = np.ones(len(capacity)) if np.isinf(capacity).any() else capacity / capacity.mean()
            fair = held[goal.resource] / len(capacity) * weight
            for bound, share in ((target, goal.target), (accepted, goal.accepted), (trigger, goal.trigger)):
                bound[members, goal.resource] = np.maximum(fair * share, goal.floor)
    hard = np.full_like(totals, np.inf)
    hard[:, Resource.DISK] = brokers.capacity[:, Resource.DISK] * DISK_FULL
    hard[:, Resource.REPLICAS] = REPLICAS_MAX
    base = brokers.base
    return Bounds(target - base, accepted - base, trigger - base, hard - base)


def fair_shares(model: ClusterModel, resource: Resource) -> Floats:
    """What the replicas of each broker would cost if its cell were perfectly even, whatever the floors.

    A volume may hold more than logs, as when brokers share one: that does not count here.
    """
    brokers = model.brokers
    base = np.zeros(len(brokers)) if resource is Resource.DISK else brokers.base[:, resource]
    carried = model.totals[:, resource] + base
    fair = np.full(len(brokers), np.inf)
    for cell in np.unique(brokers.cells):
        members = (brokers.cells == cell) & brokers.lasting
        if members.any():
            capacity = brokers.capacity[members, resource]
            weight = np.ones(len(capacity)) if np.isinf(capacity).any() else capacity / capacity.mean()
            fair[members] = carried[brokers.cells == cell].sum() / len(capacity) * weight
    return fair - base


def violations(model: ClusterModel, goals: Sequence[Goal], *, metrics: bool = True) -> tuple[Violation, ...]:
    """The violated triggering goals: what starts a round if it lasts."""
    run = [goal for goal in goals if goal.triggering and (metrics or not goal.needs_metrics)]
    bounds = bounds_of(model, run)
    return tuple(
        Violation(
            goal.name,
            int(broker),
            float(model.totals[broker, goal.resource]),
            float(bounds.trigger[broker, goal.resource]),
        )
        for goal in run
        for broker in np.flatnonzero(bounds.violated(model.totals, goal.resource))
    )


class TopicSpread:
    """How many replicas of each topic each broker has, [topic, broker], and how many are tolerated."""

    def __init__(self, model: ClusterModel) -> None:
        brokers, topics = len(model.brokers), int(model.topics.max(initial=-1)) + 1
        present = model.replicas != ABSENT
        keys = (model.topics.astype(np.int64)[:, np.newaxis] * brokers + model.replicas)[present]
        counts = np.bincount(keys, minlength=topics * brokers)
        self.counts = counts.astype(np.uint16).reshape(topics, brokers)
        sizes = {int(cell): _lasting(model, int(cell)) for cell in np.unique(model.cells)}
        cell_of = np.full(topics, ANYWHERE)
        cell_of[model.topics] = model.cells
        members = np.array([max(sizes.get(int(cell), 1), 1) for cell in cell_of])
        self.limits = np.ceil(SPREAD_SHARE * self.counts.sum(axis=1) / members).astype(np.int64) + 1

    def fits(self, topic: int, brokers: NDArray[np.integer]) -> Bools:
        """Which of these brokers may be given a replica of the topic."""
        return np.asarray(self.counts[topic, brokers] < self.limits[topic])

    def move(self, topic: int, source: int, destination: int) -> None:
        self.counts[topic, source] -= 1
        self.counts[topic, destination] += 1

    def excess(self) -> int:
        over = self.counts.astype(np.int64) - self.limits[:, np.newaxis]
        return int(np.maximum(over, 0).sum())

    def violated(self) -> list[tuple[int, int]]:
        """Topics and brokers with too many replicas, the worst first."""
        topics, brokers = np.nonzero(self.counts > self.limits[:, np.newaxis])
        over = self.counts[topics, brokers] - self.limits[topics]
        return [(int(topics[row]), int(brokers[row])) for row in np.argsort(-over, kind="stable")]


def spreadable(model: ClusterModel) -> bool:
    """Whether counting the replicas of every topic on every broker is affordable."""
    return (int(model.topics.max(initial=-1)) + 1) * len(model.brokers) <= SPREAD_COUNTS_MAX


def _lasting(model: ClusterModel, cell: int) -> int:
    lasting = model.brokers.lasting
    return int((lasting if cell == ANYWHERE else lasting & (model.brokers.cells == cell)).sum())


def excess(totals: Floats, bounds: Bounds, resource: Resource) -> float:
    """How much all brokers together carry beyond their targets."""
    over = totals[:, resource] - bounds.target[:, resource]
    return float(np.maximum(over, 0.0).sum())


def imbalance(model: ClusterModel, totals: Floats, resource: Resource) -> float:
    """The largest share of a cell's most loaded broker compared to its mean; 1 if nothing is carried."""
    worst = 1.0
    for cell in np.unique(model.brokers.cells):
        members = (model.brokers.cells == cell) & model.brokers.lasting
        carried = totals[members, resource] + model.brokers.base[members, resource]
        if len(carried) and carried.mean() > 0:
            worst = max(worst, float(carried.max() / carried.mean()))
    return worst
