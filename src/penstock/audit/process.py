"""Runs auditors, one for each cluster, until a signal stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.audit.metrics import AuditMetrics
from penstock.cluster_services import run_cluster_services

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.audit.service import Auditor
    from penstock.kafka.client import Client


async def run_auditors(
    auditors: Mapping[str, tuple[Callable[[], Auditor], Client]],
    *,
    metrics: str | None,
    until_stdin_ends: bool,
    report: Callable[[str], None],
) -> None:
    """By cluster name: how to make its auditor, and the client to close at the end."""
    running: dict[str, Auditor] = {}

    async def services() -> Mapping[str, Callable[[], Auditor]]:
        return {name: make for name, (make, _) in auditors.items()}

    try:
        await run_cluster_services(
            services,
            running,
            AuditMetrics(running),
            title=lambda names: f"durability audit of {names}",
            metrics=metrics,
            until_stdin_ends=until_stdin_ends,
            report=report,
        )
    finally:
        for _, client in auditors.values():
            await client.close()
