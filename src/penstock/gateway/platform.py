"""The platform's own identity towards Kafka: for the few calls that need rights on the whole cluster.

Behind it there is no second wall. So nothing of a client's bytes comes here: only values that were
parsed and built anew, and every rule is held once more against the tenant it is for, on its way out
and on its way back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.fleet.passwords import PLATFORM_USER
from penstock.gateway.access import lies_within
from penstock.kafka import acls, configs
from penstock.kafka.acls import AclFilter
from penstock.kafka.client import Client
from penstock.kafka.refusals import check
from penstock.kafka.routing import NodeWithId
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.errors import PenstockError
from penstock.model.errors.plans import NameRefused
from penstock.wire.rules import Kind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.fleet.passwords import PlatformKey
    from penstock.gateway.config import Broker, Tenant
    from penstock.kafka.acls import Acl
    from penstock.model.ids import ServiceAccountId

CALLS_AT_ONCE: Final = 16  # of all tenants together: administration waits, data does not
CALL_SECONDS: Final = 10.0
ERRAND_SECONDS: Final = 25.0  # a little less than clients wait for an answer


class Platform:
    def __init__(self, brokers: Sequence[Broker], key: PlatformKey, tls: ssl.SSLContext | None) -> None:
        login = Login(PLATFORM_USER, key.password(PLATFORM_USER), Mechanism.SCRAM_SHA_512)
        bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self._client = Client(bootstrap, Security(login, tls), client_id="penstock-gateway")
        self._turns = asyncio.Semaphore(CALLS_AT_ONCE)

    async def close(self) -> None:
        await self._client.close()

    async def rules_of(self, tenant: Tenant, accounts: Iterable[ServiceAccountId]) -> list[Acl]:
        """Everything that these accounts have inside Kafka."""
        found: list[Acl] = []
        for account in accounts:
            asked = AclFilter(principal=f"User:{tenant.user_of(account)}")
            async with self._turns:
                found += await acls.describe(self._client, asked, timeout=CALL_SECONDS)
        return found

    async def create(self, tenant: Tenant, wanted: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        _check(wanted, tenant)
        if not wanted:
            return {}
        async with self._turns:
            return await acls.create(self._client, wanted, timeout=CALL_SECONDS)

    async def delete(self, tenant: Tenant, gone: Sequence[Acl]) -> dict[Acl, PenstockError | None]:
        """These very rules; what was deleted is held against what was to be."""
        _check(gone, tenant)
        if not gone:
            return {}
        filters = {acls.exactly(acl): acl for acl in gone}
        async with self._turns:
            answers = await acls.delete(self._client, list(filters), timeout=CALL_SECONDS)
        done: dict[Acl, PenstockError | None] = {}
        for asked, answer in answers.items():
            if isinstance(answer, PenstockError):
                done[filters[asked]] = answer
                continue
            _check(answer, tenant)
            done[filters[asked]] = None
        return done

    async def log_dirs(self, broker: int, partitions: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """One broker's directories with these topics' partitions, and no others."""
        topics = [{"Topic": name, "Partitions": list(numbers)} for name, numbers in partitions.items()]
        async with self._turns:
            return await self._client.call(
                "DescribeLogDirs", {"Topics": topics}, to=NodeWithId(broker), timeout=CALL_SECONDS
            )

    async def groups_with_configs(self) -> list[str]:
        """Of every tenant."""
        async with self._turns:
            found = await configs.list_resources(
                self._client, [configs.ResourceKind.GROUP], timeout=CALL_SECONDS
            )
        return [resource.name for resource in found]

    async def broker_configs(self, broker: int, names: Sequence[str]) -> list[dict[str, Any]]:
        resource = {
            "ResourceType": configs.ResourceKind.BROKER,
            "ResourceName": str(broker),
            "ConfigurationKeys": list(names),
        }
        async with self._turns:
            answer = await self._client.call(
                "DescribeConfigs", {"Resources": [resource]}, to=NodeWithId(broker), timeout=CALL_SECONDS
            )
        (result,) = answer["Results"]
        check("DescribeConfigs", result["ErrorCode"], result["ErrorMessage"])
        entries: list[dict[str, Any]] = result["Configs"]
        return entries


def _check(rules: Iterable[Acl], tenant: Tenant) -> None:
    for acl in rules:
        if not lies_within(acl, tenant):
            raise NameRefused(path=acl.principal, kind=Kind.ACL_RESOURCE)
