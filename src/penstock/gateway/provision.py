"""What a tenant needs inside Kafka: a SCRAM user for each service account, ACLs below its prefix, and
byte rates as a fuse behind its quota.

Doing it twice changes nothing, and nothing is taken away but rates that the quota no longer has. An
owner has ALL on everything below the prefix, any other account what its rights say, so none if it has
none; and everybody the right to write idempotently, which opens nothing and spares the broker a search
through all ACLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.fleet.passwords import SCRAM_ITERATIONS, PlatformKey
from penstock.kafka import acls, quotas, users
from penstock.kafka.acls import CLUSTER_NAME, Acl, Operation, Pattern, ResourceType
from penstock.kafka.security import Mechanism
from penstock.kafka.users import Credential
from penstock.model.entities import Role
from penstock.quota.fuse import fuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.gateway.config import Tenant
    from penstock.kafka.client import Client

_BELOW_PREFIX = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}


def credentials(tenant: Tenant, key: PlatformKey) -> Iterator[Credential]:
    for account in tenant.accounts.values():
        user = tenant.user_of(account.id)
        password = key.password(user, account.generation)
        yield Credential(user, password, Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)


def rules(tenant: Tenant) -> Iterator[Acl]:
    prefix = tenant.prefix.decode()
    for account in tenant.accounts.values():
        principal = f"User:{tenant.user_of(account.id)}"
        if account.role is Role.OWNER:
            for kind in _BELOW_PREFIX.values():
                yield Acl(principal, Operation.ALL, kind, prefix, Pattern.PREFIXED)
        for right in account.rights:
            operation = Operation[right.operation.upper().replace("-", "_")]
            kind = _BELOW_PREFIX[right.resource]
            yield Acl(principal, operation, kind, prefix + right.name, Pattern[right.pattern.upper()])
        yield Acl(principal, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


def rates(tenant: Tenant) -> dict[quotas.Entity, dict[str, float | None]]:
    """Of each of its users; None where there is to be none."""
    wanted: dict[str, float | None] = {quotas.PRODUCER_BYTES: None, quotas.CONSUMER_BYTES: None}
    wanted |= fuse(tenant.quota)
    return {quotas.entity(user=tenant.user_of(account)): dict(wanted) for account in tenant.accounts}


async def provision(client: Client, tenants: Iterable[Tenant], key: PlatformKey) -> None:
    """Users, ACLs and rates of these tenants, in one batch each."""
    wanted = list(tenants)
    limits = {who: limit for tenant in wanted for who, limit in rates(tenant).items()}
    limited = await quotas.alter(client, limits)
    made = await users.alter(client, upsert=[c for tenant in wanted for c in credentials(tenant, key)])
    ruled = await acls.create(client, [rule for tenant in wanted for rule in rules(tenant)])
    for outcome in (*limited.values(), *made.values(), *ruled.values()):
        if outcome is not None:
            raise outcome
