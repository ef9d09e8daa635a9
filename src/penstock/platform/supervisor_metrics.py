"""Prometheus metrics of the supervisor of `penstock up`, and whether all that it runs is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.fleet.node_watch import NodeState
from penstock.metric_families import Samples
from penstock.model.metric_catalogue import FLEET

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from penstock.fleet.supervisor import Supervisor
    from penstock.platform.companions import Companion


class SupervisorMetrics:
    def __init__(self, supervisor: Supervisor, services: Sequence[Companion], stop: asyncio.Event) -> None:
        self._supervisor = supervisor
        self._services = services
        self._stop = stop

    def not_ready(self) -> str:
        """It is ready while every node is, and every service runs."""
        if self._stop.is_set():
            return "it is stopping"
        down = [one.node.full_name for one in self._supervisor.watched if not _is_ready(one.watch.state)]
        down += [service.service for service in self._services if not service.running]
        return f"not ready: {', '.join(down)}" if down else ""

    def collect(self) -> Iterator[Metric]:
        samples = Samples(FLEET)
        for one in self._supervisor.watched:
            samples.add("node_ready", float(_is_ready(one.watch.state)), one.node.full_name)
            samples.add("node_restarts", one.watch.restarts, one.node.full_name)
        for service in self._services:
            samples.add("service_running", float(service.running), service.service)
            samples.add("service_restarts", max(0, service.starts - 1), service.service)
        return iter(samples)


def _is_ready(state: NodeState) -> bool:
    return state is NodeState.READY
