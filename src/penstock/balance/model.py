"""A cluster as arrays: which broker holds which replica, what each replica costs, what each broker carries.

There is no object per replica: a million replicas are a few arrays. Partitions, brokers, topics, tenants,
zones and cells are numbers here; the caller keeps their names.

What a replica costs depends on its role. A leader serves producers, consumers and followers; a follower
stores the same bytes and receives them once. `Costs` has one row per partition for either role.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

ABSENT: Final = -1  # in `replicas`: no replica at this position; in `leaders`: no leader
ANYWHERE: Final = -1  # in `cells`: a partition of no cell, such as one of an internal topic


class Resource(IntEnum):
    """What brokers carry; the columns of costs and totals."""

    DISK = 0  # bytes stored
    INGRESS = 1  # bytes a second received, from producers or leaders
    EGRESS = 2  # bytes a second sent, to consumers and followers
    LOAD = 3  # share of the request handlers' time
    LEADER_INGRESS = 4  # bytes a second received from producers
    LEADERS = 5
    REPLICAS = 6


RESOURCES: Final = len(Resource)


@dataclass(frozen=True, slots=True)
class Brokers:
    """One entry per broker. `capacity` is infinite where it is unknown; `base` is what no move changes."""

    ids: Ints
    zones: Ints
    cells: Ints
    capacity: Floats  # [broker, resource]
    base: Floats  # [broker, resource]
    alive: Bools
    receives: Bools  # may be given replicas
    leads: Bools  # may be given leadership
    joining: Bools  # new: to be filled
    leaving: Bools  # to be emptied

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lasting(self) -> Bools:
        """Brokers that share the load once every plan is done."""
        return self.alive & ~self.leaving


@dataclass(frozen=True, slots=True)
class Costs:
    """[partition, resource], as a leader and as a follower."""

    leader: Floats
    follower: Floats


@dataclass(frozen=True)
class ClusterModel:
    brokers: Brokers
    costs: Costs
    topics: Ints  # by partition
    tenants: Ints
    cells: Ints
    replicas: Ints  # [partition, position]: a broker's number, or ABSENT; preferred leader first
    leaders: Ints  # position of the leader in `replicas`, or ABSENT
    in_sync: Bools  # [partition, position]
    pinned: Bools  # partitions that no plan touches
    totals: Floats = field(init=False)  # [broker, resource], without `base`

    def __post_init__(self) -> None:
        object.__setattr__(self, "totals", broker_totals(self))

    @property
    def factor_max(self) -> int:
        return int(self.replicas.shape[1])

    @cached_property
    def by_broker(self) -> tuple[Ints, Ints]:
        """Flat indices into `replicas` in the order of their brokers, and where each broker's begin."""
        flat = self.replicas.ravel()
        order = np.argsort(flat, kind="stable").astype(np.int32)
        begins = np.searchsorted(flat[order], np.arange(len(self.brokers) + 1)).astype(np.int32)
        return order, begins

    def on_broker(self, broker: int) -> Ints:
        """Flat indices into `replicas` of what a broker holds."""
        order, begins = self.by_broker
        return order[begins[broker] : begins[broker + 1]]

    def is_leader(self, flat: Ints) -> Bools:
        return np.asarray(self.leaders[flat // self.factor_max] == flat % self.factor_max)

    def cost_of(self, flat: Ints) -> Floats:
        """[replica, resource] for these replicas, by their present roles."""
        partitions = flat // self.factor_max
        leads = self.is_leader(flat)[:, np.newaxis]
        return np.where(leads, self.costs.leader[partitions], self.costs.follower[partitions])


def broker_totals(model: ClusterModel) -> Floats:
    """What each broker's replicas cost together."""
    count = len(model.brokers)
    totals = np.zeros((count, RESOURCES))
    for position in range(model.factor_max):
        holders = model.replicas[:, position]
        present = holders != ABSENT
        leads = model.leaders == position
        for resource in Resource:
            cost = np.where(leads, model.costs.leader[:, resource], model.costs.follower[:, resource])
            totals[:, resource] += np.bincount(holders[present], cost[present], minlength=count)
    return totals
