"""What a gateway knows about its tenants: values, and what a change of them means for connections.

A `GatewayConfig` is whole: whoever follows a file or a state topic hands over a new one, and
`closed_by` says which connections may not live on. Secrets are never in it, only their hashes.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.model.entities import Role
from penstock.model.ids import (
    BrokerId,
    LogicalClusterId,
    PhysicalClusterId,
    ServiceAccountId,
    Zone,
    kafka_user,
    tenant_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model.entities import Grant
    from penstock.model.events import Dimension

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

API_KEY_LENGTH: Final = 16
API_SECRET_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """Where a broker's agent tells of it, and how many request handlers it has (`num.io.threads`)."""

    host: str
    port: int
    handler_threads: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the physical cluster, and where this gateway offers it to tenants."""

    id: BrokerId
    zone: Zone
    host: str
    port: int
    offered_port: int  # of the gateway: one for each broker; 0 takes a free one
    limits: Mapping[Dimension, float] = field(default_factory=dict, hash=False)  # of all tenants, a second
    metrics: BrokerMetrics | None = None


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """Which addresses may connect: none that is denied, and if any is allowed, only allowed ones."""

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()

    def admit(self, address: str) -> bool:
        if not self.allowed and not self.denied:
            return True
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if any(ip in network for network in self.denied):
            return False
        return not self.allowed or any(ip in network for network in self.allowed)


ANYWHERE: Final = NetworkRules()


@dataclass(frozen=True, slots=True)
class TenantLimits:
    connections_max: int = 1000
    connection_attempts_per_second: float = 80.0
    fetch_sessions_max: int = 200  # on each broker; more fetches than that go without a session
    partitions_max: int | None = None  # of all topics, before replication
    request_bytes_max: int | None = None  # of one request; beyond, the connection is closed, as Kafka does


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """One of a tenant's. Without a role and rights it may log in, and nothing else."""

    id: ServiceAccountId
    generation: int = 1  # of its password towards Kafka
    role: Role = Role.LIMITED
    rights: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    secret_sha256: bytes = field(repr=False)
    account: ServiceAccountId


@dataclass(frozen=True)
class Tenant:
    """One logical cluster."""

    id: LogicalClusterId
    accounts: Mapping[ServiceAccountId, ServiceAccount] = field(default_factory=dict)
    keys: tuple[ApiKey, ...] = ()
    brokers: frozenset[BrokerId] = frozenset()  # where its topics may lie; empty means everywhere
    network: NetworkRules = ANYWHERE
    limits: TenantLimits = TenantLimits()
    quota: Mapping[Dimension, float] = field(default_factory=dict)  # a second, on this gateway
    log_sample: float | None = None  # of its requests and connections; None is the gateway's own rate

    @cached_property
    def prefix(self) -> bytes:
        return tenant_prefix(self.id).encode()

    def user_of(self, account: ServiceAccountId) -> str:
        """Its Kafka user. User and prefix come from one value, so they cannot drift apart."""
        return kafka_user(self.id, account)


@dataclass(frozen=True)
class GatewayConfig:
    cluster: PhysicalClusterId
    brokers: tuple[Broker, ...]
    tenants: tuple[Tenant, ...] = ()

    @cached_property
    def broker_of(self) -> dict[int, Broker]:
        return {broker.id: broker for broker in self.brokers}

    @cached_property
    def tenant_of(self) -> dict[str, Tenant]:
        return {tenant.id: tenant for tenant in self.tenants}

    @cached_property
    def keys(self) -> dict[str, tuple[Tenant, ApiKey]]:
        return {key.id: (tenant, key) for tenant in self.tenants for key in tenant.keys}

    def brokers_for(self, tenant: Tenant) -> tuple[Broker, ...]:
        """The brokers a tenant's topics may lie on."""
        if not tenant.brokers:
            return self.brokers
        return tuple(broker for broker in self.brokers if broker.id in tenant.brokers)


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose a connection is: what a new configuration is held against."""

    tenant: LogicalClusterId
    key: str
    secret_sha256: bytes = field(repr=False)
    account: ServiceAccountId
    generation: int
    address: str


def may_stay(holder: Holder, config: GatewayConfig) -> bool:
    """Would this connection be let in again, with what it knew when it logged in?"""
    found = config.keys.get(holder.key)
    if found is None:
        return False
    tenant, key = found
    account = tenant.accounts.get(key.account)
    same = tenant.id == holder.tenant and key.account == holder.account
    return (
        same
        and key.secret_sha256 == holder.secret_sha256
        and account is not None
        and account.generation == holder.generation
        and tenant.network.admit(holder.address)
    )


def closed_by(config: GatewayConfig, holders: Mapping[int, Holder]) -> set[int]:
    """Which of these connections a new configuration ends."""
    return {number for number, holder in holders.items() if not may_stay(holder, config)}
