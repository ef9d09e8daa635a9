"""A tenant's ACLs: what its roles and grants are inside Kafka, and which ACLs can be a tenant's at all.

    the tenant's                              inside Kafka
    sa-000001                                 lkc-7hq2mz_sa-000001
    literal `orders`                          literal `lkc-7hq2mz_orders`
    prefixed `or`                             prefixed `lkc-7hq2mz_or`
    literal `*`, that is everything           prefixed `lkc-7hq2mz_`

The control plane and the gateway both translate with these functions, so a grant means the same whichever
of them creates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.entities import Role
from penstock.model.ids import LogicalClusterId, kafka_user, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.entities import Grant
    from penstock.model.ids import ServiceAccountId

ALLOW: Final = "allow"
ANY_HOST: Final = "*"
LITERAL: Final = "literal"
PREFIXED: Final = "prefixed"
EVERYTHING: Final = "*"  # as a literal name
BELOW_PREFIX: Final = ("topic", "group", "transactional-id")


@dataclass(frozen=True, slots=True, order=True)
class AclEntry:
    """An ACL in Kafka, in the platform's terms. Declared ACLs allow, from any host."""

    user: str
    resource: str
    name: str
    pattern: str
    operation: str
    permission: str = ALLOW
    host: str = ANY_HOST

    def __str__(self) -> str:
        text = "" if self.permission == ALLOW else f"{self.permission} "
        text += f"{self.operation} on {self.resource} {self.name}"
        text += "…" if self.pattern == PREFIXED else ""
        return text if self.host == ANY_HOST else f"{text} from {self.host}"


def name_in_kafka(tenant: LogicalClusterId, name: str, pattern: str) -> tuple[str, str]:
    """The name and pattern of a tenant's ACL inside Kafka."""
    prefix = tenant_prefix(tenant)
    return (prefix, PREFIXED) if (name, pattern) == (EVERYTHING, LITERAL) else (prefix + name, pattern)


def name_for_tenant(tenant: LogicalClusterId, name: str, pattern: str) -> tuple[str, str]:
    """The name and pattern of an ACL that `is_within_tenant`, as its tenant sees them."""
    name = name.removeprefix(tenant_prefix(tenant))
    return (name, pattern) if name else (EVERYTHING, LITERAL)


def role_acls(tenant: LogicalClusterId, account: ServiceAccountId, role: Role) -> frozenset[AclEntry]:
    """The ACLs of a role. The platform keeps them in place: tenants cannot delete them."""
    if role is not Role.OWNER:
        return frozenset()
    user, prefix = kafka_user(tenant, account), tenant_prefix(tenant)
    return frozenset(AclEntry(user, kind, prefix, PREFIXED, "all") for kind in BELOW_PREFIX)


def granted_acls(
    tenant: LogicalClusterId, account: ServiceAccountId, grants: Iterable[Grant]
) -> frozenset[AclEntry]:
    user = kafka_user(tenant, account)
    return frozenset(
        AclEntry(user, grant.resource, *name_in_kafka(tenant, grant.name, grant.pattern), grant.operation)
        for grant in grants
    )


def provisioned_acls(
    tenant: LogicalClusterId, account: ServiceAccountId, role: Role, grants: Iterable[Grant]
) -> frozenset[AclEntry]:
    """All ACLs that an account gets from the platform."""
    # Grants no access, and spares the broker a search through all ACLs.
    idempotent = AclEntry(
        kafka_user(tenant, account), "cluster", "kafka-cluster", LITERAL, "idempotent-write"
    )
    return role_acls(tenant, account, role) | granted_acls(tenant, account, grants) | {idempotent}


def is_within_tenant(acl: AclEntry) -> bool:
    """Whether the user's tenant can have created it through a gateway: on its own names, for any host."""
    tenant, _, account = acl.user.partition("_")
    prefix = tenant_prefix(LogicalClusterId(tenant))
    named = acl.name != prefix or acl.pattern == PREFIXED
    within = bool(account) and named and acl.name.startswith(prefix)
    return (
        within
        and acl.resource in BELOW_PREFIX
        and acl.pattern in (LITERAL, PREFIXED)
        and acl.host == ANY_HOST
    )
