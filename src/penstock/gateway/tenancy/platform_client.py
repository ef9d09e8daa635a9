"""Kafka calls on the platform's identity, for the few APIs that need rights on the whole cluster.

Kafka's authorizer does not protect other tenants here. So a client's bytes never come this far, only values
parsed and rebuilt from them, and every ACL is checked against its tenant in both directions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.passwords import PLATFORM_USER
from penstock.gateway.tenancy.tenant_acls import belongs_to
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

    from penstock.fleet.passwords import PlatformKey
    from penstock.gateway.config import Broker, Tenant
    from penstock.kafka.admin.acls import Acl
    from penstock.model.ids import ServiceAccountId

CALLS_AT_ONCE: Final = 16  # of all tenants together: administration waits, data does not
CALL_SECONDS: Final = 10.0
PLATFORM_REQUEST_SECONDS: Final = 25.0  # a little less than clients wait for a response


class PlatformClient:
    def __init__(self, brokers: Sequence[Broker], key: PlatformKey, tls: ssl.SSLContext | None) -> None:
        login = Login(PLATFORM_USER, key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
        bootstrap = ",".join(broker.address for broker in brokers)
        self._client = Client(bootstrap, Security(login, tls), client_id="penstock-gateway")
        self._concurrency = asyncio.Semaphore(CALLS_AT_ONCE)

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

    async def log_dirs(self, broker: int, partitions: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """One broker's log directories with these partitions only."""
        topics = [{"Topic": name, "Partitions": list(numbers)} for name, numbers in partitions.items()]
        async with self._concurrency:
            return await self._client.call(
                "DescribeLogDirs", {"Topics": topics}, to=NodeWithId(broker), timeout=CALL_SECONDS
            )

    async def groups_with_configs(self) -> list[str]:
        """The groups of all tenants that have settings."""
        async with self._concurrency:
            resources = await configs.list_resources(
                self._client, [configs.ResourceKind.GROUP], timeout=CALL_SECONDS
            )
        return [resource.name for resource in resources]

    async def broker_configs(self, broker: int, names: Sequence[str]) -> list[dict[str, Any]]:
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
