"""ACLs of service accounts inside Kafka, and where each of them comes from. Pure.

An ACL has one of two owners. Those of a role or a grant are declared in the registry and created in
Kafka. Those that a tenant created through its gateway exist in Kafka only, like the tenant's topics:
`is_within_tenant` distinguishes them from ACLs that no tenant can have created.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.entities import Role
from penstock.model.ids import LogicalClusterId, kafka_user, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.entities import Grant, ServiceAccount

CLUSTER: Final = "cluster"
ALLOW: Final = "allow"
ANY_HOST: Final = "*"
LITERAL: Final = "literal"
PREFIXED: Final = "prefixed"
EVERYTHING: Final = "*"  # as a literal name: everything of the tenant, which is its prefix in Kafka
BELOW_PREFIX: Final = ("topic", "group", "transactional-id")


@dataclass(frozen=True, slots=True, order=True)
class AclEntry:
    """An ACL in the platform's terms. Declared ACLs allow, from any host."""

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


def declared_acls(account: ServiceAccount) -> frozenset[AclEntry]:
    """The ACLs that the registry declares for an account."""
    user = kafka_user(account.tenant, account.account)
    # Grants no access, and spares the broker a search through all ACLs.
    acls = {AclEntry(user, CLUSTER, "kafka-cluster", LITERAL, "idempotent-write")}
    if account.role is Role.OWNER:
        prefix = tenant_prefix(account.tenant)
        acls |= {AclEntry(user, kind, prefix, PREFIXED, "all") for kind in BELOW_PREFIX}
    return frozenset(acls | _granted(account, account.grants))


def revoked_acls(account: ServiceAccount) -> frozenset[AclEntry]:
    """ACLs of revoked grants that must be deleted, unless they are still declared otherwise."""
    return frozenset(_granted(account, account.revoked)) - declared_acls(account)


def _granted(account: ServiceAccount, grants: Iterable[Grant]) -> set[AclEntry]:
    user, prefix = kafka_user(account.tenant, account.account), tenant_prefix(account.tenant)
    acls = set()
    for grant in grants:
        everything = (grant.name, grant.pattern) == (EVERYTHING, LITERAL)
        name, pattern = (prefix, PREFIXED) if everything else (prefix + grant.name, grant.pattern)
        acls.add(AclEntry(user, grant.resource, name, pattern, grant.operation))
    return acls


def is_within_tenant(acl: AclEntry) -> bool:
    """Whether the user's tenant can have created it through a gateway: on its own names, for any host."""
    tenant, _, account = acl.user.partition("_")
    prefix = tenant_prefix(LogicalClusterId(tenant))
    named = acl.name != prefix or acl.pattern == PREFIXED
    within = bool(account) and named and acl.name.startswith(prefix)
    return within and acl.resource in BELOW_PREFIX and acl.host == ANY_HOST


class Origin(StrEnum):
    """Where an ACL comes from, and so where it is changed."""

    ROLE = "role"  # every owner has it
    GRANTED = "granted"  # a grant in the registry
    TENANT = "tenant"  # created through Kafka, and stored only there


@dataclass(frozen=True, slots=True, order=True)
class AccountAcl:
    """An ACL of an account, with names as the tenant sees them."""

    resource: str
    name: str
    pattern: str
    operation: str
    permission: str
    origin: Origin


def account_acls(account: ServiceAccount, in_kafka: Iterable[AclEntry]) -> tuple[AccountAcl, ...]:
    """All ACLs of an account: the declared ones, and those that its tenant created in Kafka."""
    declared, granted = declared_acls(account), _granted(account, account.grants)
    prefix = tenant_prefix(account.tenant)
    shown = []
    for acl in {*declared, *in_kafka} - revoked_acls(account):
        if is_within_tenant(acl):
            origin = Origin.GRANTED if acl in granted else Origin.ROLE if acl in declared else Origin.TENANT
            name, pattern = acl.name.removeprefix(prefix), acl.pattern
            if not name:
                name, pattern = EVERYTHING, LITERAL
            shown.append(AccountAcl(acl.resource, name, pattern, acl.operation, acl.permission, origin))
    return tuple(sorted(shown))
