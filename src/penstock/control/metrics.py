"""A control plane's Prometheus metrics, and whether it is ready."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from penstock.balance.broker_load import Unknown, imbalance
from penstock.control.rolling.rolls import rolls_of
from penstock.health.detector import HealthState
from penstock.health.slo import RULES
from penstock.metric_families import Samples
from penstock.model.entities import (
    RESTART_PHASES,
    ConditionKind,
    Incident,
    LogicalCluster,
    PhysicalCluster,
    Roll,
    RollState,
)
from penstock.model.errors.control import NotCaughtUp
from penstock.model.metric_catalogue import BALANCE, CONTROL, HEALTH_CONTROL, ROLLS, SIZING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.control.api.app import Plane


class ControlMetrics:
    """Without samples before there is a plane, and without those of a registry that is still being read."""

    def __init__(self, plane: Plane | None = None) -> None:
        self.plane = plane

    def collect(self) -> Iterator[Metric]:
        samples = Samples(CONTROL)
        plane = self.plane
        if plane is not None:
            position, end = plane.position
            samples.add("active", float(plane.role == "active"))
            samples.add("registry_position_offsets", position)
            samples.add("registry_lag_offsets", max(0, end - position))
            with suppress(NotCaughtUp):
                _add_registry(samples, plane)
            for name, load in sorted(plane.loads.items()):
                samples.add("cell_load_ratio", load, *name.split("/", 1))
            for each in plane.gateways.all():
                live = float(each.state == "live")
                samples.add("gateway_live", live, each.heartbeat.cluster, each.heartbeat.gateway)
            for cluster, swept in sorted(plane.backups.swept.items()):
                samples.add("swept_objects", swept.objects, cluster)
                samples.add("sweep_seconds", swept.complete_ms / 1000, cluster)
                samples.add("missing_segments", swept.last.missing, cluster)
        return chain(samples, _broker_loads(plane), _sizes(plane), _health(plane), _rolls(plane))


def why_not_ready(plane: Plane | None) -> str:
    """A control plane is ready once it has read the registry and knows the active one: itself or another."""
    if plane is None:
        return "the home cluster is not reached"
    if plane.role == "starting":
        return "the registry is not read"
    return "" if plane.active_url else "no control plane is active"


def _add_registry(samples: Samples, plane: Plane) -> None:
    registry = plane.registry
    samples.add("clusters", registry.count(LogicalCluster))
    samples.add("operations_running", len(registry.running()))
    for physical in registry.all(PhysicalCluster):
        condition = physical.condition(ConditionKind.NEEDS_CELL)
        samples.add("cell_needed_brokers", condition.brokers if condition is not None else 0, physical.id)


def _broker_loads(plane: Plane | None) -> Samples:
    """A broker whose load is unknown has no sample, and neither has the imbalance of its cluster."""
    samples = Samples(BALANCE)
    for cluster, brokers in sorted(plane.broker_loads.items()) if plane is not None else ():
        for each in brokers:
            if each.load is not None:
                samples.add("broker_load_ratio", each.load, cluster, str(each.broker))
        ratio = imbalance({int(b.broker): Unknown(b.missing) if b.load is None else b.load for b in brokers})
        if not isinstance(ratio, Unknown):
            samples.add("imbalance_ratio", ratio, cluster)
    if plane is not None and plane.role == "active":
        with suppress(NotCaughtUp):
            _add_plans(samples, plane)
    return samples


def _health(plane: Plane | None) -> Samples:
    samples = Samples(HEALTH_CONTROL)
    now_ms = int(time.time() * 1000)
    for cluster, health in sorted(plane.health.known.items()) if plane is not None else ():
        for broker, each in sorted(health.verdict.brokers.items()):
            for state in HealthState:
                samples.add("state", float(state is each.state), cluster, str(broker), str(state))
        samples.add("budget_ratio", health.ledger.budget_left(now_ms), cluster)
        for minutes in sorted({m for rule in RULES for m in (rule.short_minutes, rule.long_minutes)}):
            samples.add("burn_ratio", health.ledger.burn(now_ms, minutes), cluster, f"{minutes}m")
        samples.add("detect_seconds", health.detect_seconds, cluster)
        for action, count in sorted(health.actions.items()):
            samples.add("actions", count, cluster, action)
    if plane is not None:
        with suppress(NotCaughtUp):
            unresolved = [
                str(each.cluster) for each in plane.registry.all(Incident) if each.resolved_ms is None
            ]
            for physical in plane.registry.all(PhysicalCluster):
                samples.add("incidents", unresolved.count(physical.id), physical.id)
    return samples


def _sizes(plane: Plane | None) -> Samples:
    """Only in the active control plane, after its first round."""
    samples = Samples(SIZING)
    if plane is not None and plane.role == "active":
        for cluster, target in sorted(plane.sizing.targets.items()):
            samples.add("advice_brokers", target, cluster)
        for cluster, cost in sorted(plane.sizing.months.items()):
            for driver, value in cost.drivers().items():
                samples.add("cost_month", value, cluster, driver)
    return samples


def _rolls(plane: Plane | None) -> Samples:
    """Only in the active control plane, which runs them."""
    samples = Samples(ROLLS)
    if plane is None or plane.role != "active":
        return samples
    with suppress(NotCaughtUp):
        for physical in plane.registry.all(PhysicalCluster):
            generations = plane.roll_planner.generations(physical.id)
            samples.add("nodes_behind", sum(bool(each.behind) for each in generations), physical.id)
            versions = Counter(each.running.kafka for each in generations if each.running is not None)
            for version, nodes in sorted(versions.items()):
                samples.add("version_nodes", nodes, physical.id, version)
            if last := rolls_of(plane.registry, physical.id)[:1]:
                _add_roll(samples, last[0])
    return samples


def _add_roll(samples: Samples, roll: Roll) -> None:
    ended_ms = time.time() * 1000 if roll.ended_ms is None else roll.ended_ms
    samples.add("roll_nodes_done", len(roll.scope) - roll.remaining, roll.cluster)
    samples.add("roll_seconds", (ended_ms - roll.created_ms) / 1000, roll.cluster)
    samples.add("roll_paused", float(roll.state is RollState.PAUSED), roll.cluster)
    spans = [row.spans for row in roll.nodes]
    for number, phase in enumerate(RESTART_PHASES):
        if known := [seconds for span in spans if (seconds := span[number]) is not None]:
            samples.add("restart_seconds", median(known), roll.cluster, phase)


def _add_plans(samples: Samples, plane: Plane) -> None:
    """Only in the active control plane, which runs them."""
    headers = list(plane.plans.documents.headers.values())
    counts = plane.balancing.counts
    counts.update(headers)
    for physical in plane.registry.all(PhysicalCluster):
        copying = sum(each.progress.copying for each in headers if each.cluster == physical.id)
        blocked = physical.condition(ConditionKind.BALANCE_BLOCKED) is not None
        samples.add("moves", counts.moves[physical.id], physical.id)
        samples.add("bytes", counts.bytes[physical.id], physical.id)
        samples.add("under_way", copying, physical.id)
        samples.add("blocked", float(blocked), physical.id)
        if (seconds := plane.plan_maker.seconds.get(physical.id)) is not None:
            samples.add("plan_seconds", seconds, physical.id)
