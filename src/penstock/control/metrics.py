"""A control plane's Prometheus metrics; scraping needs no token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from penstock.model import key_names
from penstock.model.entities import ConditionKind, LogicalCluster, PhysicalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.control.api.app import Plane


class _Collector:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[GaugeMetricFamily]:
        plane = self._plane
        position, end = plane.position
        yield _gauge("active", "1 if this control plane is the active one.", float(plane.role == "active"))
        yield _gauge("registry_position_offsets", "Offset up to which the registry has been read.", position)
        lag = max(0, end - position)
        yield _gauge("registry_lag_offsets", "Records of the registry that remain to be read.", lag)
        yield _gauge("clusters", "Logical clusters.", plane.registry.count(LogicalCluster))
        yield _gauge("operations_running", "Operations in progress.", len(plane.registry.running()))
        cell = [key_names.CLUSTER, key_names.CELL]
        loads = _gauge("cell_load_ratio", "Load of a cell, 0 to 1.", labels=cell)
        for name, load in sorted(plane.loads.items()):
            loads.add_metric(name.split("/", 1), load)
        yield loads
        text = "Brokers that a physical cluster needs for a new cell; 0 if none is needed."
        needed = _gauge("cell_needed_brokers", text, labels=[key_names.CLUSTER])
        for physical in plane.registry.all(PhysicalCluster):
            condition = physical.condition(ConditionKind.NEEDS_CELL)
            needed.add_metric([physical.id], condition.brokers if condition is not None else 0)
        yield needed


def _gauge(
    name: str, text: str, value: float | None = None, labels: list[str] | None = None
) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_control_{name}", text, value=value, labels=labels)


def metrics_text(plane: Plane) -> bytes:
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(_Collector(plane))
    return bytes(generate_latest(collectors))
