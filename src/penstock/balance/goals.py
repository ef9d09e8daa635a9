"""What a balanced cluster is: goals as values, in order of importance.

A soft goal compares the brokers of one cell: none should carry more of a resource than `target` times its
fair share, which is the cell's mean, weighted by capacity where capacities are known. A goal is violated
above `trigger`, which is higher than `target`: a round that just ended is not started again by noise. Below
`floor`, as a share of capacity or in absolute units, no imbalance matters.

Hard goals are conditions on a single replica; the planner never breaks one: distinct brokers, no fewer
zones than before, the partition's cell, brokers that take replicas, room on the disk, replicas per broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.model import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.balance.model import Bools, ClusterModel, Floats

DISK_FULL: Final = 0.85  # of a disk: nothing moves to where it would exceed this
REPLICAS_MAX: Final = 10_000  # on one broker


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
