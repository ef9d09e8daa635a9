"""Whoever provides a physical cluster: local processes, or brokers that were adopted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.adopted import ADOPTED, AdoptedProvisioner
from penstock.control.local import LocalProvisioner

if TYPE_CHECKING:
    from penstock.control.reach import Provisioner, Reach
    from penstock.fleet.layout import Layout
    from penstock.model.entities import PhysicalCluster


class Provisioners:
    """Asks the one that a cluster is of."""

    def __init__(self, layout: Layout, *, gateways: bool = True) -> None:
        self.local = LocalProvisioner(layout, gateways=gateways)
        self.adopted = AdoptedProvisioner(layout, gateways=gateways)

    def _of(self, cluster: PhysicalCluster) -> Provisioner:
        return self.adopted if cluster.adopted or cluster.provider == ADOPTED else self.local

    async def admit(self, adopted: str) -> None:
        await self.adopted.admit(adopted)

    async def provision(self, cluster: PhysicalCluster, units: int) -> Reach:
        return await self._of(cluster).provision(cluster, units)

    async def release(self, cluster: PhysicalCluster) -> None:
        await self._of(cluster).release(cluster)

    async def reach(self, cluster: PhysicalCluster) -> Reach | None:
        return await self._of(cluster).reach(cluster)

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        return self._of(cluster).growth(cluster, brokers)

    async def close(self) -> None:
        await self.local.close()
        await self.adopted.close()
