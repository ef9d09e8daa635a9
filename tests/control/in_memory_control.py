"""An in-memory control plane without Kafka: decides, accepts, and completes operations at once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.control import decisions
from penstock.control.cluster_placement import load_key
from penstock.control.decisions import ClusterRequest, Decision, DecisionContext
from penstock.control.operations import advanced, next_step
from penstock.control.registry import Put, Registry
from penstock.model.entities import (
    BrokerEndpoint,
    CellMembers,
    ClusterState,
    LogicalCluster,
    Operation,
    PhysicalCluster,
)
from penstock.model.ids import BrokerId, Zone

if TYPE_CHECKING:
    from collections.abc import Mapping

PHYSICAL = "pkc-000000"


def physical(cells: int = 1, brokers_each: int = 3, **more: Any) -> PhysicalCluster:
    brokers, members = [], []
    for cell in range(cells):
        ids = [BrokerId(cell * brokers_each + n + 1) for n in range(brokers_each)]
        brokers += [BrokerEndpoint(i, Zone("abc"[n % 3]), "127.0.0.1", 9000 + i) for n, i in enumerate(ids)]
        members.append(CellMembers(f"cell-{cell + 1}", tuple(ids)))
    values: dict[str, Any] = {"name": "home", "provider": "local", "state": ClusterState.READY} | more
    return PhysicalCluster(id=PHYSICAL, version=1, brokers=tuple(brokers), cells=tuple(members), **values)


@dataclass
class InMemoryControl:
    """A registry with a clock that advances by one with each request."""

    registry: Registry = field(default_factory=Registry)
    now_ms: int = 1_000
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    @classmethod
    def with_cells(cls, cells: int = 1, **more: Any) -> InMemoryControl:
        memory = cls()
        memory.registry.accept([Put(physical(cells, **more))])
        return memory

    def context(self, *, loads: Mapping[str, float] | None = None, **more: Any) -> DecisionContext:
        self.now_ms += 1
        by_key = {load_key(PHYSICAL, cell): load for cell, load in (loads or {}).items()}
        return DecisionContext("test", self.now_ms, self.chance.choice, loads=by_key, **more)

    def accept(self, decision: Decision) -> Decision:
        self.registry.accept(decision.changes)
        return decision

    def complete(self, operation: Operation) -> Operation:
        """Every step succeeds."""
        while True:
            current = self.registry.need(Operation, operation.id)
            if next_step(current) is None:
                return current
            self.now_ms += 1
            self.registry.accept(advanced(self.registry, current, self.now_ms))

    def cluster(self, name: str = "shop", **more: Any) -> LogicalCluster:
        """Creates a cluster; it is ready."""
        decision = self.accept(
            decisions.create_cluster(self.registry, self.context(), ClusterRequest(name, **more))
        )
        self.complete(decision.operation)
        return self.registry.cluster(name)
