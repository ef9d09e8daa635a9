"""How a physical cluster is reached, and with which secrets. The registry knows neither.

A `Provisioner` makes physical clusters and says how those that it made are reached; `Clusters` is
what the control plane asks.
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
    from penstock.model.entities import BrokerPlace, CellPlace, PhysicalCluster
    from penstock.model.ids import PhysicalClusterId


@dataclass(frozen=True, slots=True)
class Reach:
    """A cluster as its provider knows it now."""

    id: PhysicalClusterId
    name: str
    provider: str
    bootstrap: str  # for the platform's own calls
    key: PlatformKey = field(repr=False)
    brokers: tuple[BrokerPlace, ...] = ()
    cells: tuple[CellPlace, ...] = ()
    kafka_id: str = ""
    tls: ssl.SSLContext | None = None
    security: Security | None = field(repr=False, default=None)  # of one that is not ours: its own login
    metrics: tuple[tuple[int, str, int], ...] = ()  # broker, host, port
    tenants_bootstrap: str = ""  # where its gateways are
    fused: bool = True  # whether the platform may set client quotas there

    def client(self) -> Client:
        login = Login(PLATFORM_USER, self.key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
        security = self.security or Security(login, self.tls)
        return Client(self.bootstrap, security, client_id="penstock-control")


class Provisioner(Protocol):
    """Makes and ends physical clusters. Both may be called again for the same id, and by a successor."""

    async def admit(self, adopted: str) -> None:
        """Raises why no cluster can be made on the one that was adopted under this name."""
        ...

    async def provision(self, cluster: PhysicalCluster, units: int) -> Reach:
        """Returns when the cluster answers."""
        ...

    async def release(self, cluster: PhysicalCluster) -> None:
        """Ends it, with its data."""
        ...

    async def reach(self, cluster: PhysicalCluster) -> Reach | None:
        """How one that was made before is reached, started again if it does not run; None: not mine."""
        ...

    def growth(self, cluster: PhysicalCluster, brokers: int) -> str:
        """How this cluster gets so many brokers more, in words; empty: not mine."""
        ...


class Clusters:
    """Every physical cluster that can be reached from here, and the clients to them."""

    def __init__(self, known: tuple[Reach, ...]) -> None:
        self._reaches: dict[str, Reach] = {reach.id: reach for reach in known}
        self._clients: dict[str, Client] = {}

    @property
    def known(self) -> tuple[Reach, ...]:
        return tuple(self._reaches.values())

    def add(self, reach: Reach) -> None:
        self._reaches[reach.id] = reach

    def reach(self, cluster: str) -> Reach:
        if cluster not in self._reaches:
            raise EntityMissing(kind="way to physical cluster", id=cluster)
        return self._reaches[cluster]

    def has(self, cluster: str) -> bool:
        return cluster in self._reaches

    def client(self, cluster: str) -> Client:
        if cluster not in self._clients:
            self._clients[cluster] = self.reach(cluster).client()
        return self._clients[cluster]

    async def drop(self, cluster: str) -> None:
        self._reaches.pop(cluster, None)
        client = self._clients.pop(cluster, None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        for cluster in list(self._clients):
            await self._clients.pop(cluster).close()
