"""Following `_penstock.state`: a gateway's tenants, from its own cluster and nowhere else.

It reads the whole topic before it yields for the first time, and then yields whenever something
changed. While it cannot read, the gateway goes on with what it has; when its place in the topic is
gone it reads everything anew and yields only the result. A tenant that cannot be understood (a newer
control plane wrote it) stays as it was.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.fleet.passwords import PlatformKey
from penstock.gateway.config import ApiKey, NetworkRules, ServiceAccount, Tenant, TenantLimits
from penstock.kafka.acls import Acl, Operation, ResourceType
from penstock.kafka.client import Client
from penstock.kafka.following import Follower
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.security import Login, Mechanism, Security, tls_trusting
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.errors.gateway import PlatformKeyMissing
from penstock.model.events import Dimension, RegistryRecord, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenantstate import TenantState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.settings import GatewaySettings
    from penstock.wire.records import Record

GATEWAY_USER: Final = "_penstock.gateway"  # may read the state of its cluster, and hand in evidence
# What of a tenant's quota gateways share. Request time, as a gateway sees it, holds what else the broker
# was busy with: it is shared where every broker's own figure is known, against which it is calibrated.
ENFORCED: Final = (
    Dimension.INGRESS_BYTES,
    Dimension.EGRESS_BYTES,
    Dimension.REQUESTS,
    Dimension.PARTITION_CHANGES,
)
PARTITION: Final = TopicPartition(keys.STATE_TOPIC, 0)

log = structlog.get_logger("penstock.gateway")


def gateway_rules() -> list[Acl]:
    """What the gateways' own user may do: no more than this, whoever gets hold of its password."""
    principal = f"User:{GATEWAY_USER}"
    read = [
        Acl(principal, operation, ResourceType.TOPIC, topic)
        for topic in (keys.STATE_TOPIC, keys.QUOTA_TOPIC)
        for operation in (Operation.READ, Operation.DESCRIBE)
    ]
    write = [
        Acl(principal, Operation.WRITE, ResourceType.TOPIC, topic)
        for topic in (keys.USAGE_TOPIC, keys.ACKS_TOPIC, keys.PRESSURE_TOPIC)
    ]
    return read + write


def enforced_by(config: GatewayConfig) -> tuple[Dimension, ...]:
    measured = bool(config.brokers) and all(broker.metrics is not None for broker in config.brokers)
    return (*ENFORCED, Dimension.REQUEST_TIME_US) if measured else ENFORCED


def tenant_of(state: TenantState, enforced: Sequence[Dimension] = ENFORCED) -> Tenant:
    """A tenant as the gateway goes by it."""
    default = TenantLimits()
    accounts = {account.id: ServiceAccount(account.id, account.generation) for account in state.accounts}
    return Tenant(
        LogicalClusterId(state.id),
        accounts,
        tuple(
            ApiKey(key.id, bytes.fromhex(key.secret_sha256), key.account)
            for key in state.keys
            if key.account in accounts
        ),
        frozenset(state.brokers),
        NetworkRules(
            tuple(ipaddress.ip_network(network) for network in state.network.allow),
            tuple(ipaddress.ip_network(network) for network in state.network.deny),
        ),
        TenantLimits(
            int(state.quota.get(Dimension.CONNECTIONS, default.connections_max)),
            state.quota.get(Dimension.CONNECTION_ATTEMPTS, default.connection_attempts_per_second),
            partitions_max=int(state.quota[Dimension.PARTITIONS])
            if Dimension.PARTITIONS in state.quota
            else None,
        ),
        {dimension: state.quota[dimension] for dimension in enforced if dimension in state.quota},
    )


class StateSource:
    """A `ConfigSource`: the tenants of `base` are replaced by what the topic says."""

    def __init__(self, bootstrap: str, security: Security, base: GatewayConfig) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._base = base
        self._enforced = enforced_by(base)
        self._tenants: dict[str, Tenant] = {}
        self._changed = asyncio.Event()
        self._dirty = False
        self._follower: Follower | None = None

    async def follow(self) -> AsyncGenerator[GatewayConfig]:
        async with Client(self._bootstrap, self._security, client_id="penstock-gateway") as client:
            self._follower = Follower(
                client, PARTITION, take=self._take, reset=self._reset, moved=self._moved
            )
            following = asyncio.create_task(self._follower.run())
            try:
                await self._follower.until_caught_up()
                self._changed.set()
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    yield replace(self._base, tenants=tuple(self._tenants.values()))
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def first(self) -> GatewayConfig:
        """The whole topic once: nobody is let in, or sent away, by half of it."""
        async with aclosing(self.follow()) as configs:
            return await anext(configs)

    def _reset(self) -> None:
        self._tenants = {}
        self._changed.clear()
        self._dirty = True

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind != TenantState.kind:
                continue
            self._dirty = True
            if record.value is None:
                self._tenants.pop(tenant, None)
                continue
            try:
                state = TenantState.from_record(RegistryRecord.from_bytes(record.value))
                self._tenants[tenant] = tenant_of(state, self._enforced)
            except (PenstockError, ValueError) as failure:
                log.warning("tenant not taken over", **{keys.TENANT: tenant, keys.ERROR: str(failure)})

    def _moved(self) -> None:
        assert self._follower is not None
        if self._dirty and self._follower.caught_up:
            self._dirty = False
            self._changed.set()


def gateway_client(settings: GatewaySettings, base: GatewayConfig) -> Client:
    """As the gateways' own user, through the listener that gateways use."""
    bootstrap, security = _way_in(settings, base)
    return Client(bootstrap, security, client_id="penstock-gateway")


def state_source(settings: GatewaySettings, base: GatewayConfig) -> StateSource:
    """Likewise."""
    return StateSource(*_way_in(settings, base), base)


def _way_in(settings: GatewaySettings, base: GatewayConfig) -> tuple[str, Security]:
    try:
        key = PlatformKey(settings.platform_key.read_bytes())
    except OSError as failure:
        raise PlatformKeyMissing(path=settings.platform_key, reason=failure.strerror) from failure
    login = Login(GATEWAY_USER, key.password(GATEWAY_USER), Mechanism.SCRAM_SHA_512)
    tls = tls_trusting(settings.upstream_ca) if settings.upstream_ca is not None else None
    return ",".join(f"{broker.host}:{broker.port}" for broker in base.brokers), Security(login, tls)
