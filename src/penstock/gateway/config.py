"""What a gateway knows about its brokers and tenants: values, and which connections a change closes.

A `GatewayConfig` is complete: every change produces a new one, and `revoked_connections` returns the
connections it no longer admits. It holds hashes of secrets, never secrets.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """Where a broker's metrics are scraped, and its number of request handlers (`num.io.threads`)."""

    host: str
    port: int
    handler_threads: int


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the physical cluster, and the port on which this gateway exposes it."""

    id: BrokerId
    zone: Zone
    host: str
    port: int
    listen_port: int  # of the gateway, one per broker; 0 takes a free one
    limits: Mapping[Dimension, float] = field(default_factory=dict, hash=False)  # per second, all tenants
    metrics: BrokerMetrics | None = None
    advertised: tuple[str, int] | None = None  # host and port for clients; none: the gateway's

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """Which addresses may connect: no denied one, and only allowed ones if any are allowed."""

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
    fetch_sessions_max: int = 200  # on each broker; further fetches go without a session
    share_sessions_max: int = 200  # on each broker; further ones are refused
    partitions_max: int | None = None  # of all topics, before replication
    request_bytes_max: int | None = None  # of one request; a larger one closes the connection, as in Kafka


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A tenant's account. Without a role or rights it may log in and nothing else."""

    id: ServiceAccountId
    generation: int = 1  # of its password towards Kafka
    role: Role = Role.LIMITED
    rights: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    secret_sha256: bytes = field(repr=False)
    account: ServiceAccountId
    expires_ms: int | None = None  # since the epoch; None: valid until it is removed

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


@dataclass(frozen=True)
class Tenant:
    """One logical cluster."""

    id: LogicalClusterId
    accounts: Mapping[ServiceAccountId, ServiceAccount] = field(default_factory=dict)
    keys: tuple[ApiKey, ...] = ()
    brokers: frozenset[BrokerId] = frozenset()  # where its topics may be placed; empty means all
    network: NetworkRules = ANYWHERE
    limits: TenantLimits = TenantLimits()
    quota: Mapping[Dimension, float] = field(default_factory=dict)  # per second, on this gateway
    log_sample: float | None = None  # of its requests and connections; None takes the gateway's rate
    auto_create_topics: bool = False  # when a Metadata request names one that does not exist
    cordoned: frozenset[BrokerId] = frozenset()  # brokers that take no new replica
    demoted: frozenset[BrokerId] = frozenset()  # brokers that lead no new partition

    @cached_property
    def prefix(self) -> bytes:
        return tenant_prefix(self.id).encode()

    def user_of(self, account: ServiceAccountId) -> str:
        """The account's Kafka user, derived like the prefix from the tenant id, so both always agree."""
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

    @cached_property
    def next_expiry_ms(self) -> float:
        """When the next key expires."""
        expiring = (key.expires_ms for tenant in self.tenants for key in tenant.keys)
        return min((at for at in expiring if at is not None), default=math.inf)

    def without_expired(self, now_ms: int) -> GatewayConfig:
        """This configuration without the keys that have expired."""
        if now_ms < self.next_expiry_ms:
            return self
        tenants = tuple(
            replace(tenant, keys=tuple(key for key in tenant.keys if not key.expired(now_ms)))
            for tenant in self.tenants
        )
        return replace(self, tenants=tenants)

    def brokers_for(self, tenant: Tenant) -> tuple[Broker, ...]:
        """The brokers on which a tenant's topics may be placed."""
        if not tenant.brokers:
            return self.brokers
        return tuple(broker for broker in self.brokers if broker.id in tenant.brokers)


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity a connection logged in with, against which a new configuration is checked."""

    tenant: LogicalClusterId
    key: str
    secret_sha256: bytes = field(repr=False)
    account: ServiceAccountId
    generation: int
    address: str


def still_admitted(principal: Principal, config: GatewayConfig) -> bool:
    """Whether this connection could log in again with the credentials it used."""
    entry = config.keys.get(principal.key)
    if entry is None:
        return False
    tenant, key = entry
    account = tenant.accounts.get(key.account)
    same = tenant.id == principal.tenant and key.account == principal.account
    return (
        same
        and key.secret_sha256 == principal.secret_sha256
        and account is not None
        and account.generation == principal.generation
        and tenant.network.admit(principal.address)
    )


def revoked_connections(config: GatewayConfig, principals: Mapping[int, Principal]) -> set[int]:
    """The connections that a new configuration no longer admits."""
    return {number for number, principal in principals.items() if not still_admitted(principal, config)}
