"""How physical clusters are reached, and with which secrets. The registry stores neither.

A `Provisioner` provisions physical clusters and describes them as `ProvidedCluster`s; `Clusters` is the
directory of those that the control plane knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.fleet.passwords import PLATFORM_USER
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.control import EntityMissing

if TYPE_CHECKING:
    import ssl

    from penstock.fleet.passwords import PlatformKey
    from penstock.model.entities import BrokerEndpoint, CellMembers, PhysicalCluster
    from penstock.model.ids import PhysicalClusterId


@dataclass(frozen=True, slots=True)
class ProvidedCluster:
    """A physical cluster as its provider describes it."""

    id: PhysicalClusterId
    name: str
    provider: str
    bootstrap: str  # for the platform's own client
    key: PlatformKey = field(repr=False)
    brokers: tuple[BrokerEndpoint, ...] = ()
    cells: tuple[CellMembers, ...] = ()
    kafka_id: str = ""
    tls: ssl.SSLContext | None = None
    security: Security | None = field(repr=False, default=None)  # of an adopted cluster: its login
    metrics: tuple[tuple[int, str, int], ...] = ()  # broker, host, port
    tenants_bootstrap: str = ""  # its gateways
    sets_client_quotas: bool = True  # whether the platform may set client quotas

    def client(self) -> Client:
        login = Login(PLATFORM_USER, self.key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
        security = self.security or Security(login, self.tls)
        return Client(self.bootstrap, security, client_id="penstock-control")


class Provisioner(Protocol):
    """Provisions and releases physical clusters. All calls are idempotent, also across control planes."""

    async def admit(self, adopted: str) -> None:
        """Raises an error if the adopted cluster of this name cannot be provisioned."""
        ...

    async def provision(self, cluster: PhysicalCluster, units: int) -> ProvidedCluster:
        """Returns when the cluster responds."""
        ...

    async def release(self, cluster: PhysicalCluster) -> None:
        """Deletes the cluster with its data."""
        ...

    async def resume(self, cluster: PhysicalCluster) -> ProvidedCluster | None:
        """A cluster provisioned before, restarted if it is down; None if another provider has it."""
        ...

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        """How an operator adds so many brokers, in words; empty if another provider has the cluster."""
        ...


class Clusters:
    """Every known physical cluster, and the clients to them."""

    def __init__(self, known: tuple[ProvidedCluster, ...]) -> None:
        self._provided: dict[str, ProvidedCluster] = {provided.id: provided for provided in known}
        self._clients: dict[str, Client] = {}

    @property
    def known(self) -> tuple[ProvidedCluster, ...]:
        return tuple(self._provided.values())

    def add(self, provided: ProvidedCluster) -> None:
        self._provided[provided.id] = provided

    def get(self, cluster: str) -> ProvidedCluster:
        if cluster not in self._provided:
            raise EntityMissing(kind="known physical cluster", id=cluster)
        return self._provided[cluster]

    def has(self, cluster: str) -> bool:
        return cluster in self._provided

    def client(self, cluster: str) -> Client:
        if cluster not in self._clients:
            self._clients[cluster] = self.get(cluster).client()
        return self._clients[cluster]

    async def drop(self, cluster: str) -> None:
        self._provided.pop(cluster, None)
        client = self._clients.pop(cluster, None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        for cluster in list(self._clients):
            await self._clients.pop(cluster).close()
