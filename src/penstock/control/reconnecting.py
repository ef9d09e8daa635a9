"""Connects a new leader to the physical clusters that its predecessor provisioned.

Resuming one may take minutes, because its brokers are started if they are down.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.model.entities import ClusterState, PhysicalCluster
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.control.leadership import LeadershipTerm
    from penstock.control.physical.cluster_access import Clusters, Provisioner
    from penstock.control.registry import Registry

log = structlog.get_logger("penstock.control")


async def reconnect(
    term: LeadershipTerm, clusters: Clusters, registry: Registry, provisioner: Provisioner
) -> None:
    """One round, for all at once. What fails delays its own tenants, and is tried again in the next round."""

    async def resume(physical: PhysicalCluster) -> None:
        try:
            provided = await provisioner.resume(physical)
            if provided is not None:
                clusters.add(provided)
                await term.add_cluster(provided)
        except PenstockError as failure:
            log.warning("cluster not reached", cluster=physical.id, error=str(failure))
            await clusters.drop(physical.id)

    away = [
        physical
        for physical in registry.all(PhysicalCluster)
        if physical.state is ClusterState.READY
        and not clusters.has(physical.id)
        and physical.id not in term.effects.released  # resuming it could start it again
    ]
    await asyncio.gather(*map(resume, away))
