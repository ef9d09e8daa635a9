"""Runs health checkers, one for each cluster, until a signal stops them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.cluster_services import run_cluster_services
from penstock.health.checker import Checker
from penstock.health.metrics import CheckerMetrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from penstock.health.checker import ProbedCluster


async def run_checkers(
    clusters: Callable[[], Awaitable[Sequence[ProbedCluster]]],
    *,
    vantage: str,
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """`clusters` returns once they are known. `metrics` is host:port, or None for none."""
    running: dict[str, Checker] = {}
    collector = CheckerMetrics(running)

    async def checkers() -> Mapping[str, Callable[[], Checker]]:
        return {
            each.name: partial(Checker, each, vantage=vantage, on_probe=collector.observe)
            for each in await clusters()
        }

    await run_cluster_services(
        checkers,
        running,
        collector,
        title=lambda names: f"checker of {names}, seen from {vantage}",
        metrics=metrics,
        until_stdin_ends=until_stdin_ends,
        report=report,
    )
