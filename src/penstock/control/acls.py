"""ACLs of service accounts inside Kafka, and where each of them comes from. Pure.

An ACL has one of two owners. Those of a role or a grant are declared in the registry and created in
Kafka. Those that a tenant created through its gateway exist in Kafka only, like the tenant's topics:
`is_within_tenant` distinguishes them from ACLs that no tenant can have created.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.model import tenant_acls
from penstock.model.tenant_acls import granted_acls, is_within_tenant, name_for_tenant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.entities import ServiceAccount
    from penstock.model.tenant_acls import AclEntry


def declared_acls(account: ServiceAccount) -> frozenset[AclEntry]:
    """The ACLs that the registry declares for an account."""
    return tenant_acls.provisioned_acls(account.tenant, account.account, account.role, account.grants)


def revoked_acls(account: ServiceAccount) -> frozenset[AclEntry]:
    """ACLs of revoked grants that must be deleted, unless they are still declared otherwise."""
    return granted_acls(account.tenant, account.account, account.revoked) - declared_acls(account)


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
    declared = declared_acls(account)
    granted = granted_acls(account.tenant, account.account, account.grants)
    shown = []
    for acl in {*declared, *in_kafka} - revoked_acls(account):
        if is_within_tenant(acl):
            origin = Origin.GRANTED if acl in granted else Origin.ROLE if acl in declared else Origin.TENANT
            name, pattern = name_for_tenant(account.tenant, acl.name, acl.pattern)
            shown.append(AccountAcl(acl.resource, name, pattern, acl.operation, acl.permission, origin))
    return tuple(sorted(shown))
