"""What a tenant needs inside Kafka: SCRAM users, ACLs below its prefix, and byte rates behind its quota.

Provisioning is idempotent, and removes nothing but rates the quota no longer has. What roles and rights mean
is in `penstock.model.tenant_acls`, as for the control plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.fleet.credentials.passwords import SCRAM_ITERATIONS, PlatformKey
from penstock.kafka.admin import acls, quotas, users
from penstock.kafka.admin.users import Credential
from penstock.kafka.security import Mechanism
from penstock.model.tenant_acls import provisioned_acls
from penstock.quota.kafka_quota import backstop_quotas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.gateway.config import Tenant
    from penstock.kafka.admin.acls import Acl
    from penstock.kafka.client import Client


def credentials(tenant: Tenant, key: PlatformKey) -> Iterator[Credential]:
    for account in tenant.accounts.values():
        user = tenant.user_of(account.id)
        password = key.password(user, account.generation)
        yield Credential(user, password, Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)


def acls_for(tenant: Tenant) -> Iterator[Acl]:
    for account in tenant.accounts.values():
        entries = provisioned_acls(tenant.id, account.id, account.role, account.rights)
        yield from (acls.acl_of(entry) for entry in sorted(entries))


def kafka_quotas(tenant: Tenant) -> dict[quotas.Entity, dict[str, float | None]]:
    """The byte rates of each of a tenant's users; None removes one."""
    rates: dict[str, float | None] = {quotas.PRODUCER_BYTES: None, quotas.CONSUMER_BYTES: None}
    rates |= backstop_quotas(tenant.quota)
    return {quotas.entity(user=tenant.user_of(account)): dict(rates) for account in tenant.accounts}


async def provision(client: Client, tenants: Iterable[Tenant], key: PlatformKey) -> None:
    """Create the users, ACLs and byte rates of these tenants, in one batch each."""
    tenants = list(tenants)
    rates = {user: rate for tenant in tenants for user, rate in kafka_quotas(tenant).items()}
    limited = await quotas.alter(client, rates)
    created = await users.alter(client, upsert=[c for tenant in tenants for c in credentials(tenant, key)])
    granted = await acls.create(client, [acl for tenant in tenants for acl in acls_for(tenant)])
    for outcome in (*limited.values(), *created.values(), *granted.values()):
        if outcome is not None:
            raise outcome
