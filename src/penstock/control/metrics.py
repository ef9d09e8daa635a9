"""What a control plane tells of itself, for Prometheus and for load balancers. Neither needs a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from penstock.model import keys
from penstock.model.entities import ConditionKind, LogicalCluster, PhysicalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.control.api import Plane


class _Told:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[GaugeMetricFamily]:
        plane = self._plane
        position, end = plane.position
        yield _gauge("active", "1 if it is the one that decides.", float(plane.role == "active"))
        yield _gauge("registry_position_offsets", "How far the registry is read.", position)
        yield _gauge("registry_lag_offsets", "What is still to be read of it.", max(0, end - position))
        yield _gauge("clusters", "Logical clusters.", plane.registry.count(LogicalCluster))
        yield _gauge("operations_running", "Operations under way.", len(plane.registry.running()))
        loads = GaugeMetricFamily(
            "penstock_control_cell_load_ratio", "How full a cell is.", labels=[keys.CLUSTER, keys.CELL]
        )
        for name, load in sorted(plane.loads.items()):
            loads.add_metric(name.split("/", 1), load)
        yield loads
        needed = GaugeMetricFamily(
            "penstock_control_cell_needed_brokers",
            "Brokers of the new cell that a physical cluster needs; 0 if it needs none.",
            labels=[keys.CLUSTER],
        )
        for physical in plane.registry.all(PhysicalCluster):
            condition = physical.condition(ConditionKind.NEEDS_CELL)
            needed.add_metric([physical.id], condition.brokers if condition is not None else 0)
        yield needed


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_control_{name}", text, value=value)


def metrics_text(plane: Plane) -> bytes:
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_Told(plane))
    return bytes(generate_latest(collectors))
