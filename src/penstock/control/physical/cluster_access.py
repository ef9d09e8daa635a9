"""How physical clusters are reached, and with which secrets. The registry stores neither.

A `Provisioner` provisions physical clusters and describes them as `ProvidedCluster`s; `Clusters` is the
directory of those that the control plane knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.balance.broker_load import DEFAULT
from penstock.fleet.adopted.capabilities import Capability
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.kafka import quorum
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors.control import EntityMissing

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from penstock.balance.broker_load import Profile
    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.model.entities import (
        BrokerEndpoint,
        CellMembers,
        MissingCapability,
        PhysicalCluster,
    )
    from penstock.model.ids import BrokerId, PhysicalClusterId, Zone

CLIENT_ID: Final = "penstock-control"


@dataclass(frozen=True, slots=True)
class BrokerSelection:
    """Which brokers of a cluster carry tenants: all, or those with these ids and in these zones."""

    ids: frozenset[int] = frozenset()
    zones: frozenset[str] = frozenset()
    one_cell: bool = True  # all of them, whatever their number

    def includes(self, broker: BrokerEndpoint) -> bool:
        named = not self.ids or broker.id in self.ids
        return named and (not self.zones or broker.zone in self.zones)


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
    profile: Profile = DEFAULT  # of its brokers' load
    missing: tuple[MissingCapability, ...] = ()  # what it does not allow
    capacity: str = "laptop"  # its table of capacity units
    selection: BrokerSelection | None = None  # of a cluster that lists its brokers itself
    controllers: str = ""  # the controller listener; empty: the brokers name it
    backup: Path | None = None  # settings of its backup

    def allows(self, capability: Capability) -> bool:
        return all(each.capability != capability for each in self.missing)

    @property
    def sets_client_quotas(self) -> bool:
        return self.allows(Capability.CLIENT_QUOTAS)

    @property
    def sets_acls(self) -> bool:
        return self.allows(Capability.ACLS)

    def client(self) -> Client:
        login = Login(PLATFORM_USER, self.key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
        security = self.security or Security(login, self.tls)
        return Client(self.bootstrap, security, client_id=CLIENT_ID)

    async def controllers_client(self, client: Client) -> Client:
        """A client of the controller listener; `client` is one of the brokers."""
        addresses = self.controllers or [str(a) for a in (await quorum.describe(client)).addresses.values()]
        # Controllers of local clusters know no SCRAM users.
        login = Login(PLATFORM_USER, self.key.password(PLATFORM_USER), Mechanism.PLAIN)
        security = self.security or Security(login, self.tls)
        return Client(addresses, security, client_id=CLIENT_ID, controllers=True)


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

    def check_growth(self, cluster: PhysicalCluster) -> None:
        """Raises an error if brokers cannot be added to this cluster."""
        ...

    async def grow(self, cluster: PhysicalCluster, brokers: Mapping[BrokerId, Zone]) -> ProvidedCluster:
        """Adds brokers with these ids; returns when they serve, and gateways have their addresses."""
        ...

    async def shrink(self, cluster: PhysicalCluster, brokers: Collection[int]) -> bool:
        """Stops brokers for good, and returns when they have stopped; False if others have to do that."""
        ...

    async def forget(self, cluster: PhysicalCluster, brokers: Collection[int]) -> ProvidedCluster | None:
        """Deletes what stopped brokers have left; the cluster without them, where its provider knows it."""
        ...

    def fleet(self) -> tuple[ProvidedCluster, ...]:
        """The clusters of the control plane's own home as they are now; empty if it has none."""
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
