"""Chooses the provider of a physical cluster: local processes, or adopted brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.control.physical.adopted import ADOPTED, AdoptedProvisioner
from penstock.control.physical.local import LocalProvisioner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.control.physical.cluster_access import ProvidedCluster, Provisioner
    from penstock.fleet.layout import Layout
    from penstock.model.entities import PhysicalCluster
    from penstock.model.ids import BrokerId, Zone


class Provisioners:
    """Delegates to the provider of each cluster."""

    def __init__(self, layout: Layout, *, gateways: bool = True, cell_brokers: int = 0) -> None:
        self.local = LocalProvisioner(layout, gateways=gateways, cell_brokers=cell_brokers)
        self.adopted = AdoptedProvisioner(layout, gateways=gateways)

    def _of(self, cluster: PhysicalCluster) -> Provisioner:
        return self.adopted if cluster.adopted or cluster.provider == ADOPTED else self.local

    async def admit(self, adopted: str) -> None:
        await self.adopted.admit(adopted)

    async def provision(self, cluster: PhysicalCluster, units: int) -> ProvidedCluster:
        return await self._of(cluster).provision(cluster, units)

    async def release(self, cluster: PhysicalCluster) -> None:
        await self._of(cluster).release(cluster)

    async def resume(self, cluster: PhysicalCluster) -> ProvidedCluster | None:
        return await self._of(cluster).resume(cluster)

    def check_growth(self, cluster: PhysicalCluster) -> None:
        self._of(cluster).check_growth(cluster)

    async def grow(self, cluster: PhysicalCluster, brokers: Mapping[BrokerId, Zone]) -> ProvidedCluster:
        return await self._of(cluster).grow(cluster, brokers)

    async def shrink(self, cluster: PhysicalCluster, brokers: Collection[int]) -> bool:
        return await self._of(cluster).shrink(cluster, brokers)

    async def forget(self, cluster: PhysicalCluster, brokers: Collection[int]) -> ProvidedCluster | None:
        return await self._of(cluster).forget(cluster, brokers)

    def fleet(self) -> tuple[ProvidedCluster, ...]:
        return self.local.fleet()

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        return self._of(cluster).growth(cluster, brokers)

    async def close(self) -> None:
        await self.local.close()
        await self.adopted.close()
