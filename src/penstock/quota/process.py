"""Runs quota coordinators, one for each cluster, until a signal stops them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.quota.coordinator import Coordinator
from penstock.quota.metrics import CoordinatorMetrics
from penstock.stop_signals import stop_event

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
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    coordinators = {
        name: Coordinator(client, interval_seconds=interval_seconds, session_seconds=session_seconds)
        for name, client in clients.items()
    }
    try:
        loop = asyncio.get_running_loop()
        page = on_loop(loop, page_of(CoordinatorMetrics(coordinators)))

        def not_ready() -> str:
            if stop.is_set():
                return "it is stopping"
            return ", ".join(
                f"{name}: {why}" for name, one in coordinators.items() if (why := one.not_ready())
            )

        with metrics_at(metrics, page, not_ready=not_ready, loop=loop) as url:
            if url:
                report(f"metrics on {url}")
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in coordinators.values()]
                report(f"coordinator of {', '.join(coordinators)}, a decision every {interval_seconds:g} s")
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        for client in clients.values():
            await client.close()
