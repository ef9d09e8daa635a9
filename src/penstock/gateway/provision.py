"""What a tenant needs inside Kafka: a SCRAM user for each service account, and ACLs below its prefix.

Doing it twice changes nothing. ALL on everything below the prefix and nothing else, but for the
right to write idempotently, which opens nothing and spares the broker a search through all ACLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.fleet.passwords import SCRAM_ITERATIONS, PlatformKey
from penstock.kafka import acls, users
from penstock.kafka.acls import CLUSTER_NAME, Acl, Operation, Pattern, ResourceType
from penstock.kafka.security import Mechanism
from penstock.kafka.users import Credential

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.gateway.config import Tenant
    from penstock.kafka.client import Client

_BELOW_PREFIX = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def credentials(tenant: Tenant, key: PlatformKey) -> Iterator[Credential]:
    for account in tenant.accounts.values():
        user = tenant.user_of(account.id)
        password = key.password(user, account.generation)
        yield Credential(user, password, Mechanism.SCRAM_SHA_512, SCRAM_ITERATIONS)


def rules(tenant: Tenant) -> Iterator[Acl]:
    prefix = tenant.prefix.decode()
    for account in tenant.accounts:
        principal = f"User:{tenant.user_of(account)}"
        for kind in _BELOW_PREFIX:
            yield Acl(principal, Operation.ALL, kind, prefix, Pattern.PREFIXED)
        yield Acl(principal, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)


async def provision(client: Client, tenants: Iterable[Tenant], key: PlatformKey) -> None:
    """Users and ACLs of these tenants, in one batch each."""
    wanted = list(tenants)
    made = await users.alter(client, upsert=[c for tenant in wanted for c in credentials(tenant, key)])
    ruled = await acls.create(client, [rule for tenant in wanted for rule in rules(tenant)])
    for outcome in (*made.values(), *ruled.values()):
        if outcome is not None:
            raise outcome
