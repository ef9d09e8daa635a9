"""Users, ACLs and client quotas of tenants inside Kafka: written, revoked and read."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from penstock.control.call_batching import BatchedCall
from penstock.control.desired_state import KafkaAccess
from penstock.fleet.credentials.passwords import SCRAM_ITERATIONS
from penstock.kafka.admin import acls, quotas, users
from penstock.kafka.admin.acls import USER, AclFilter, acl_entry, acl_of
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.users import Credential
from penstock.kafka.security import Mechanism
from penstock.model.errors import PenstockError
from penstock.model.ids import ID_ALPHABET, ID_LENGTH, TENANT_NAME, kafka_user, tenant_prefix
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.fleet.credentials.passwords import PlatformKey
    from penstock.kafka.client import Client
    from penstock.model.ids import LogicalClusterId, ServiceAccountId
    from penstock.model.tenant_acls import AclEntry

CLIENT_QUOTAS: Final = (quotas.PRODUCER_BYTES, quotas.CONSUMER_BYTES)
_MECHANISM: Final = Mechanism.SCRAM_SHA_512
_TAIL: Final = f"[{ID_ALPHABET}]{{{ID_LENGTH}}}"
TENANT_USER: Final = re.compile(f"(lkc-{_TAIL})_sa-{_TAIL}")


class AccessWriter:
    """Grants and revokes tenants' access on one physical cluster. Every call is idempotent."""

    def __init__(
        self, client: Client, key: PlatformKey, *, sets_client_quotas: bool = True, sets_acls: bool = True
    ) -> None:
        self._client = client
        self._key = key
        self._sets_client_quotas = sets_client_quotas
        self._sets_acls = sets_acls  # false on brokers without an authorizer
        self._grant = BatchedCall[KafkaAccess](self._grant_all)
        self._revoke = BatchedCall[str](self._revoke_all)

    async def grant(self, access: KafkaAccess) -> None:
        """Creates or updates users with their passwords, ACLs and client quotas; deletes nothing."""
        if access.users:
            await self._grant.submit(access)

    async def revoke(self, tenant_users: Sequence[str]) -> None:
        """Deletes the users and all their access; ACLs first, because that takes effect at once."""
        await asyncio.gather(*(self._revoke.submit(user) for user in tenant_users))

    async def revoke_tenant(self, tenant: LogicalClusterId, accounts: Sequence[ServiceAccountId]) -> None:
        """Revokes these accounts, and all that Kafka still has of the tenant: the deletion of one may not be
        complete yet.
        """
        prefix = tenant_prefix(tenant)
        left = {user for user in await users.describe(self._client) if user.startswith(prefix)}
        await self.revoke(sorted(left | {kafka_user(tenant, account) for account in accounts}))

    async def delete_acls(self, entries: Sequence[AclEntry]) -> None:
        filters = [acls.exactly(acl_of(entry)) for entry in entries]
        if filters and self._sets_acls:
            results_or_raise(await acls.delete(self._client, filters))

    async def _grant_all(self, many: Sequence[KafkaAccess]) -> None:
        combined = KafkaAccess()
        for access in many:
            combined |= access
        credentials = [
            Credential(user, self._key.password(user, generation), _MECHANISM, SCRAM_ITERATIONS)
            for user, generation in combined.users.items()
        ]
        results_or_raise(await users.alter(self._client, upsert=credentials))
        if self._sets_acls:
            entries = [acl_of(entry) for entry in sorted(combined.acls)]
            results_or_raise(await acls.create(self._client, entries))
        if self._sets_client_quotas:
            client_quotas = {
                quotas.entity(user=user): dict(values) for user, values in combined.client_quotas.items()
            }
            results_or_raise(await quotas.alter(self._client, client_quotas))

    async def _revoke_all(self, removed: Sequence[str]) -> None:
        if self._sets_acls:
            filters = [AclFilter(principal=USER + user) for user in removed]
            results_or_raise(await acls.delete(self._client, filters))
        if self._sets_client_quotas:
            nothing: dict[str, float | None] = dict.fromkeys(CLIENT_QUOTAS)
            unlimited = {quotas.entity(user=user): nothing for user in removed}
            results_or_raise(await quotas.alter(self._client, unlimited))
        responses = await users.alter(self._client, delete=[(user, _MECHANISM) for user in removed])
        missing = Code.RESOURCE_NOT_FOUND
        results_or_raise(
            {
                user: None if isinstance(r, PenstockError) and r.facts.get("error_code") == missing else r
                for user, r in responses.items()
            }
        )


async def read_acls(client: Client, user: str) -> frozenset[AclEntry]:
    return frozenset(map(acl_entry, await acls.describe(client, AclFilter(principal=USER + user))))


async def read_access(
    client: Client, *, sets_client_quotas: bool = True, sets_acls: bool = True
) -> KafkaAccess:
    """The access of all tenants' users; without what the platform cannot set on this cluster."""
    tenant_users = {user: 0 for user in await users.describe(client) if TENANT_USER.fullmatch(user)}
    entries = set()
    for acl in await acls.describe(client) if sets_acls else ():
        user = acl.principal.removeprefix(USER)
        if TENANT_USER.fullmatch(user) or TENANT_NAME.match(acl.resource_name):
            entries.add(acl_entry(acl))
    client_quotas: dict[str, Mapping[str, float]] = {}
    limited = await quotas.describe(client, kinds=[quotas.USER]) if sets_client_quotas else {}
    for entity, values in limited.items():
        for part in entity:
            if part.name is not None and TENANT_USER.fullmatch(part.name):
                client_quotas[part.name] = dict(values)
    return KafkaAccess(tenant_users, frozenset(entries), client_quotas)
