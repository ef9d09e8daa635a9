"""Runs quota coordinators, one for each cluster, until a signal stops them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.cluster_services import run_cluster_services
from penstock.quota.coordinator import Coordinator
from penstock.quota.metrics import CoordinatorMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.kafka.client import Client


async def run_coordinators(
    clients: Mapping[str, Client],
    *,
    interval_seconds: float,
    session_seconds: float,
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """`clients` are by cluster name, and are closed at the end. `metrics` is host:port, or None for none."""
    running: dict[str, Coordinator] = {}
    make = partial(Coordinator, interval_seconds=interval_seconds, session_seconds=session_seconds)

    async def coordinators() -> Mapping[str, Callable[[], Coordinator]]:
        return {name: partial(make, client) for name, client in clients.items()}

    try:
        await run_cluster_services(
            coordinators,
            running,
            CoordinatorMetrics(running),
            title=lambda names: f"coordinator of {names}, a decision every {interval_seconds:g} s",
            metrics=metrics,
            until_stdin_ends=until_stdin_ends,
            report=report,
        )
    finally:
        for client in clients.values():
            await client.close()
