"""A registry to decide on, without Kafka: asks are decided, accepted, and carried out on paper."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.control import decisions
from penstock.control.decisions import Ask, ClusterAsk, Decided
from penstock.control.operations import advanced, next_step
from penstock.control.placing import load_key
from penstock.control.registry import Put, Registry
from penstock.model.entities import (
    BrokerPlace,
    CellPlace,
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
    places, plans = [], []
    for cell in range(cells):
        ids = [BrokerId(cell * brokers_each + n + 1) for n in range(brokers_each)]
        places += [BrokerPlace(i, Zone("abc"[n % 3]), "127.0.0.1", 9000 + i) for n, i in enumerate(ids)]
        plans.append(CellPlace(f"cell-{cell + 1}", tuple(ids)))
    values: dict[str, Any] = {"name": "home", "provider": "local", "state": ClusterState.READY} | more
    return PhysicalCluster(id=PHYSICAL, version=1, brokers=tuple(places), cells=tuple(plans), **values)


@dataclass
class Paper:
    """Decides and accepts at once; the clock moves by one each time."""

    registry: Registry = field(default_factory=Registry)
    now_ms: int = 1_000
    chance: random.Random = field(default_factory=lambda: random.Random(7))

    @classmethod
    def with_cells(cls, cells: int = 1, **more: Any) -> Paper:
        paper = cls()
        paper.registry.accept([Put(physical(cells, **more))])
        return paper

    def ask(self, *, loads: Mapping[str, float] | None = None, **more: Any) -> Ask:
        self.now_ms += 1
        by_key = {load_key(PHYSICAL, cell): load for cell, load in (loads or {}).items()}
        return Ask("test", self.now_ms, self.chance.choice, loads=by_key, **more)

    def accept(self, decided: Decided) -> Decided:
        self.registry.accept(decided.changes)
        return decided

    def carry_out(self, operation: Operation) -> Operation:
        """Every step succeeds."""
        while True:
            current = self.registry.need(Operation, operation.id)
            if next_step(current) is None:
                return current
            self.now_ms += 1
            self.registry.accept(advanced(self.registry, current, self.now_ms).changes)

    def cluster(self, name: str = "shop", **more: Any) -> LogicalCluster:
        """One that is ready."""
        decided = self.accept(decisions.create_cluster(self.registry, self.ask(), ClusterAsk(name, **more)))
        self.carry_out(decided.operation)
        return self.registry.cluster(name)
