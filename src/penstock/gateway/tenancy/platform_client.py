"""Kafka calls that need rights on the whole cluster, for the few APIs of tenants that require them.

`PlatformCalls` is what the gateway needs. `PlatformClient` makes the calls on the platform's identity: in a
gateway with the platform key, or in the control plane, for gateways without it.

Kafka's authorizer does not protect other tenants here. So a client's bytes never come this far, only values
parsed and rebuilt from them, and every ACL is checked against its tenant in both directions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.gateway.limits.platform_turns import PlatformTurns
from penstock.gateway.tenancy.tenant_acls import belongs_to
from penstock.gateway.tenancy.tenant_configs import SHOWN_BROKER_CONFIGS
from penstock.kafka.admin import acls, configs
from penstock.kafka.admin.acls import AclFilter
from penstock.kafka.broker_errors import check
from penstock.kafka.client import Client
from penstock.kafka.routing import NodeWithId
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.plans import NameRefused
from penstock.wire.field_rules import Kind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.gateway.config import Broker, Tenant
    from penstock.kafka.admin.acls import Acl
    from penstock.model.ids import ServiceAccountId

CALLS_AT_ONCE: Final = 16  # of all tenants together: administration waits, data does not
CALL_SECONDS: Final = 10.0
PARTITIONS_AT_ONCE: Final = 300  # of one response, whose decoding takes a few milliseconds
PLATFORM_REQUEST_SECONDS: Final = 25.0  # a little less than clients wait for a response


class PlatformCalls(Protocol):
    """Each call concerns one tenant, and returns or changes nothing of others."""

    additions: PlatformTurns  # of ACLs: a tenant's are counted and created one after another

    async def close(self) -> None: ...
    async def acls_of(self, tenant: Tenant, accounts: Iterable[ServiceAccountId]) -> list[Acl]: ...
    async def create(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]: ...
    async def delete(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]: ...
    async def log_dirs(
        self, tenant: Tenant, broker: int, partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]: ...
    async def partitions_of(self, broker: int, tenant: Tenant) -> dict[str, tuple[int, int]]: ...
    async def groups_with_configs(self, tenant: Tenant) -> list[str]: ...
    async def broker_configs(
        self, tenant: Tenant, broker: int, names: Sequence[str]
    ) -> list[dict[str, Any]]: ...


def platform_client(
    brokers: Sequence[Broker], key: PlatformKey, tls: ssl.SSLContext | None
) -> PlatformClient:
    """Calls as the platform's user, whose password derives from the platform key."""
    login = Login(PLATFORM_USER, key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
    bootstrap = ",".join(broker.address for broker in brokers)
    return PlatformClient(Client(bootstrap, Security(login, tls), client_id="penstock-gateway"))


class PlatformClient:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._concurrency = asyncio.Semaphore(CALLS_AT_ONCE)
        self.additions = PlatformTurns(1)

    async def close(self) -> None:
        await self._client.close()

    async def acls_of(self, tenant: Tenant, accounts: Iterable[ServiceAccountId]) -> list[Acl]:
        """All ACLs of these accounts in Kafka."""
        bindings: list[Acl] = []
        for account in accounts:
            acl_filter = AclFilter(principal=f"User:{tenant.user_of(account)}")
            async with self._concurrency:
                bindings += await acls.describe(self._client, acl_filter, timeout=CALL_SECONDS)
        return bindings

    async def create(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        _check(bindings, tenant)
        if not bindings:
            return {}
        async with self._concurrency:
            return await acls.create(self._client, bindings, timeout=CALL_SECONDS)

    async def delete(self, tenant: Tenant, bindings: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        """Delete exactly these ACLs, and check that nothing else was deleted."""
        _check(bindings, tenant)
        if not bindings:
            return {}
        filters = {acls.exactly(acl): acl for acl in bindings}
        async with self._concurrency:
            results = await acls.delete(self._client, list(filters), timeout=CALL_SECONDS)
        outcomes: dict[Acl, PenstockError | None] = {}
        for acl_filter, result in results.items():
            if isinstance(result, PenstockError):
                outcomes[filters[acl_filter]] = result
                continue
            _check(result, tenant)
            outcomes[filters[acl_filter]] = None
        return outcomes

    async def log_dirs(
        self, tenant: Tenant, broker: int, partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """One broker's log directories with these partitions only."""
        for name in partitions:
            if not name.startswith(tenant.prefix.decode()):
                raise NameRefused(path=name, kind=Kind.TOPIC)
        topics = [{"Topic": name, "Partitions": list(numbers)} for name, numbers in partitions.items()]
        async with self._concurrency:
            return await self._client.call(
                "DescribeLogDirs", {"Topics": topics}, to=NodeWithId(broker), timeout=CALL_SECONDS
            )

    async def partitions_of(self, broker: int, tenant: Tenant) -> dict[str, tuple[int, int]]:
        """Partitions and replicas of all topics of a tenant, by its own names, as this broker knows them."""
        prefix = tenant.prefix.decode()
        counts: Counter[str] = Counter()
        replicas: dict[str, int] = {}
        cursor: dict[str, Any] | None = {"TopicName": prefix, "PartitionIndex": 0}
        while cursor is not None and cursor["TopicName"].startswith(prefix):
            body = {"Topics": [], "ResponsePartitionLimit": PARTITIONS_AT_ONCE, "Cursor": cursor}
            async with self._concurrency:
                page = await self._client.call(
                    "DescribeTopicPartitions", body, to=NodeWithId(broker), timeout=CALL_SECONDS
                )
            for topic in page["Topics"]:  # in the order of their names; those of other tenants follow
                if topic["Name"].startswith(prefix) and topic["Partitions"]:
                    name = topic["Name"].removeprefix(prefix)
                    counts[name] += len(topic["Partitions"])
                    replicas[name] = len(topic["Partitions"][0]["ReplicaNodes"])
            cursor = page["NextCursor"]
        return {name: (count, replicas[name]) for name, count in counts.items()}

    async def groups_with_configs(self, tenant: Tenant) -> list[str]:
        """The tenant's groups that have settings."""
        prefix = tenant.prefix.decode()
        async with self._concurrency:
            resources = await configs.list_resources(
                self._client, [configs.ResourceKind.GROUP], timeout=CALL_SECONDS
            )
        return [resource.name for resource in resources if resource.name.startswith(prefix)]

    async def broker_configs(self, tenant: Tenant, broker: int, names: Sequence[str]) -> list[dict[str, Any]]:
        """Settings of a broker that tenants are shown; the gateway leaves out brokers it does not show."""
        del tenant
        for name in names:
            if name not in SHOWN_BROKER_CONFIGS:
                raise NameRefused(path=name, kind=Kind.CONFIG_NAME)
        resource = {
            "ResourceType": configs.ResourceKind.BROKER,
            "ResourceName": str(broker),
            "ConfigurationKeys": list(names),
        }
        async with self._concurrency:
            response = await self._client.call(
                "DescribeConfigs", {"Resources": [resource]}, to=NodeWithId(broker), timeout=CALL_SECONDS
            )
        (result,) = response["Results"]
        check("DescribeConfigs", result["ErrorCode"], result["ErrorMessage"])
        entries: list[dict[str, Any]] = result["Configs"]
        return entries


def _check(bindings: Iterable[Acl], tenant: Tenant) -> None:
    for acl in bindings:
        if not belongs_to(acl, tenant):
            raise NameRefused(path=acl.principal, kind=Kind.ACL_RESOURCE)
