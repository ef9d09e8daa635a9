"""Follows `_penstock.state` of the gateway's own cluster: the source of its tenants.

The whole topic is read before the first configuration is yielded, then one follows each change. While the
topic cannot be read, the gateway keeps what it has, and `fresh_at` stays: a state is fresh when the topic has
been read to its end, and what was read is applied. A control plane that is down therefore does not age it.
When its position is gone, everything is read again and only the result is yielded. A tenant that cannot be
decoded (a newer control plane wrote it) stays as it was, and is `unread` from then on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.fleet.credentials.passwords import SCRAM_ITERATIONS
from penstock.gateway.config import ApiKey, NetworkRules, ServiceAccount, Tenant, TenantLimits
from penstock.gateway.settings import read_platform_key
from penstock.kafka.admin import acls, users
from penstock.kafka.admin.acls import Acl, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.users import Credential
from penstock.kafka.client import Client
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.kafka.security import Login, Mechanism, Security, tls_context
from penstock.model import key_names
from penstock.model.events import Dimension, RegistryRecord, entity_of
from penstock.model.ids import LogicalClusterId
from penstock.model.tenant_state import TenantState

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Sequence

    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.gateway.config import GatewayConfig
    from penstock.gateway.settings import GatewaySettings
    from penstock.wire.records import Record

GATEWAY_USER: Final = "_penstock.gateway"  # may read its cluster's state, and write reports
# The dimensions of a tenant's quota that gateways enforce. Request time, as a gateway observes it, includes
# the broker's other work, so it is enforced only where every broker's metrics are scraped for calibration.
ENFORCED: Final = (
    Dimension.INGRESS_BYTES,
    Dimension.EGRESS_BYTES,
    Dimension.REQUESTS,
    Dimension.GATEWAY_TIME_US,
    Dimension.PARTITION_CHANGES,
)
PARTITION: Final = TopicPartition(key_names.STATE_TOPIC, 0)

log = structlog.get_logger("penstock.gateway")


def gateway_acls() -> list[Acl]:
    """The ACLs of the gateways' user, which limit what its password can do."""
    principal = f"User:{GATEWAY_USER}"
    readable = [
        Acl(principal, operation, ResourceType.TOPIC, topic)
        for topic in (key_names.STATE_TOPIC, key_names.QUOTA_TOPIC, key_names.GATEWAYS_TOPIC)
        for operation in (Operation.READ, Operation.DESCRIBE)
    ]
    writable = [
        Acl(principal, Operation.WRITE, ResourceType.TOPIC, topic)
        for topic in (
            key_names.USAGE_TOPIC,
            key_names.ACKS_TOPIC,
            key_names.DURABILITY_TOPIC,
            key_names.PRESSURE_TOPIC,
            key_names.GATEWAYS_TOPIC,
        )
    ]
    return readable + writable


async def provision_gateways(client: Client, key: PlatformKey, *, with_acls: bool = True) -> None:
    """Create the gateways' user and its ACLs; brokers without an authorizer accept none."""
    password = key.password(GATEWAY_USER)
    credential = Credential(GATEWAY_USER, password, Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)
    results_or_raise(await users.alter(client, upsert=[credential]))
    if with_acls:
        results_or_raise(await acls.create(client, gateway_acls()))


def enforced_by(config: GatewayConfig) -> tuple[Dimension, ...]:
    """The dimensions enforced with these brokers."""
    measured = bool(config.brokers) and all(broker.metrics is not None for broker in config.brokers)
    return (*ENFORCED, Dimension.REQUEST_TIME_US) if measured else ENFORCED


def tenant_of(state: TenantState, enforced: Sequence[Dimension] = ENFORCED) -> Tenant:
    """A tenant's state as gateway configuration."""
    default = TenantLimits()
    accounts = {one.id: ServiceAccount(one.id, one.generation, one.role) for one in state.accounts}
    return Tenant(
        LogicalClusterId(state.id),
        accounts,
        tuple(
            ApiKey(key.id, bytes.fromhex(key.secret_sha256), key.account, key.expires_ms)
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
        auto_create_topics=state.auto_create_topics,
        cordoned=frozenset(state.cordoned),
        demoted=frozenset(state.demoted),
    )


class StateSource:
    """A `ConfigSource` whose tenants come from the state topic; the rest comes from `base`."""

    def __init__(self, bootstrap: str, security: Security, base: GatewayConfig) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._base = base
        self._enforced = enforced_by(base)
        self._tenants: dict[str, Tenant] = {}
        self._changed = asyncio.Event()
        self._dirty = False
        self._applied = True  # what was yielded last
        self.fresh_at = time.monotonic()
        self.unread: dict[str, float] = {}
        self._follower: CompactedTopicReader | None = None

    async def follow(self) -> AsyncGenerator[GatewayConfig]:
        async with Client(self._bootstrap, self._security, client_id="penstock-gateway") as client:
            self._follower = CompactedTopicReader(
                client, PARTITION, apply=self._take, reset=self._reset, progressed=self._moved
            )
            following = asyncio.create_task(self._follower.run())
            try:
                while True:
                    changed = asyncio.create_task(self._changed.wait())
                    await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    if following.done():
                        following.result()  # raises: it runs until it is cancelled
                    self._changed.clear()
                    self._applied = False
                    yield replace(self._base, tenants=tuple(self._tenants.values()))
                    self._applied = True  # the next one is requested
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def rebase(self, base: GatewayConfig) -> None:
        """The rest of the configuration from now on; yielded with the tenants, once those are complete."""
        self._base = base
        if self._follower is not None and self._follower.caught_up:
            self._changed.set()
        else:
            self._dirty = True

    async def first(self) -> GatewayConfig:
        """The configuration from the whole topic, so that none is admitted or closed by half of it."""
        async with aclosing(self.follow()) as configs:
            return await anext(configs)

    def _reset(self) -> None:
        self._tenants = {}
        self.unread.clear()
        self._changed.clear()
        self._dirty = True

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            assert record.key is not None
            kind, tenant = entity_of(record.key)
            if kind != TenantState.kind:
                continue
            self._dirty = True
            since = self.unread.pop(tenant, time.monotonic())
            if record.value is None:
                self._tenants.pop(tenant, None)
                continue
            try:
                state = TenantState.from_record(RegistryRecord.from_bytes(record.value))
                self._tenants[tenant] = tenant_of(state, self._enforced)
            except Exception as failure:  # noqa: BLE001 - it belongs to this tenant alone
                log.warning("tenant rejected", **{key_names.TENANT: tenant, key_names.ERROR: str(failure)})
                if tenant in self._tenants:
                    self.unread[tenant] = since

    def _moved(self) -> None:
        assert self._follower is not None
        if not self._follower.caught_up:
            return
        if self._dirty:
            self._dirty = False
            self._changed.set()
        elif self._applied and not self._changed.is_set():
            self.fresh_at = time.monotonic()


def gateway_client(settings: GatewaySettings, base: GatewayConfig) -> Client:
    """A client as the gateways' user, through the listener for gateways."""
    bootstrap, security = _access(settings, base)
    return Client(bootstrap, security, client_id="penstock-gateway")


def state_source(settings: GatewaySettings, base: GatewayConfig) -> StateSource:
    """A state source with the same user and listener."""
    return StateSource(*_access(settings, base), base)


def _access(settings: GatewaySettings, base: GatewayConfig) -> tuple[str, Security]:
    key = read_platform_key(settings)
    login = Login(GATEWAY_USER, key.password(GATEWAY_USER), Mechanism.SCRAM_SHA_512)
    if settings.kafka is not None:
        return settings.kafka.bootstrap, Security(login, upstream_tls(settings), settings.kafka.server_name)
    return ",".join(broker.address for broker in base.brokers), Security(login, upstream_tls(settings))


def upstream_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """TLS towards the brokers; None for plaintext."""
    if settings.upstream_ca is None and (settings.kafka is None or not settings.kafka.tls):
        return None
    return tls_context(settings.upstream_ca)
