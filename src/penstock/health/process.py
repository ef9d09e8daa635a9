"""Runs health checkers, one for each cluster, until a signal stops them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.health.checker import Checker
from penstock.health.metrics import CheckerMetrics
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.health.checker import ProbedCluster

STARTING: Final = "the checker's logical cluster is not created yet"


async def run_checkers(
    clusters: Callable[[], Awaitable[Sequence[ProbedCluster]]],
    *,
    vantage: str,
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """`clusters` returns once they are known. `metrics` is host:port, or None for none."""
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    collector, loop = CheckerMetrics(), asyncio.get_running_loop()

    def not_ready() -> str:
        if stop.is_set():
            return "it is stopping"
        reasons = [f"{each.target.name}: {why}" for each in collector.checkers if (why := each.not_ready())]
        return ", ".join(reasons) if collector.checkers else STARTING

    with metrics_at(metrics, on_loop(loop, page_of(collector)), not_ready=not_ready, loop=loop) as url:
        if url:
            report(f"metrics on {url}")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(_run(clusters, vantage, collector, report))
            await stop.wait()
            running.cancel()


async def _run(
    clusters: Callable[[], Awaitable[Sequence[ProbedCluster]]],
    vantage: str,
    collector: CheckerMetrics,
    report: Callable[[str], None],
) -> None:
    known = await clusters()
    checkers = [Checker(each, vantage=vantage, on_probe=collector.observe) for each in known]
    collector.checkers = checkers
    report(f"checker of {', '.join(each.name for each in known)}, seen from {vantage}")
    async with asyncio.TaskGroup() as group:
        for checker in checkers:
            group.create_task(checker.run())
