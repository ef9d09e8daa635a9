"""Runs auditors, one for each cluster, until a signal stops them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.audit.metrics import AuditMetrics
from penstock.metrics_server import metrics_at, on_loop, page_of
from penstock.model import fault_points
from penstock.stop_signals import stop_event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.audit.service import Auditor
    from penstock.kafka.client import Client


async def run_auditors(
    auditors: Mapping[str, tuple[Auditor, Client]],
    *,
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """By cluster name, each with its client, which is closed at the end."""
    fault_points.check_armed()
    stop = stop_event(until_stdin_ends=until_stdin_ends)
    running = {name: auditor for name, (auditor, _) in auditors.items()}
    try:
        loop = asyncio.get_running_loop()
        page = on_loop(loop, page_of(AuditMetrics(running)))

        def not_ready() -> str:
            if stop.is_set():
                return "it is stopping"
            return ", ".join(f"{name}: {why}" for name, one in running.items() if (why := one.not_ready()))

        with metrics_at(metrics, page, not_ready=not_ready, loop=loop) as url:
            if url:
                report(f"metrics on {url}")
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in running.values()]
                report(f"durability audit of {', '.join(running)}")
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        for _, client in auditors.values():
            await client.close()
