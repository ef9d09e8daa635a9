"""A tenant's ACLs, translated to Kafka's and back as `penstock.model.tenant_acls` defines it.

Nothing else can be translated. `User:*` would be every tenant's user, a host would be the gateway's, and
cluster rights would apply to every tenant. Such ACLs are refused, and existing ones in Kafka are not shown.
ACLs are created and deleted on the platform's identity, where Kafka's authorizer does not protect other
tenants, so `belongs_to` checks each of them once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin.acls import (
    ANY_HOST,
    USER,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    ResourceType,
    acl_entry,
    acl_of,
)
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX, ServiceAccountId
from penstock.model.tenant_acls import (
    EVERYTHING,
    is_within_tenant,
    name_for_tenant,
    name_in_kafka,
    role_acls,
)
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.gateway.config import Tenant

ACLS_OF_ACCOUNT_MAX: Final = 200  # so that reading them all stays cheap
ENTRIES_MAX: Final = 500  # of one request
RESOURCES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
# What an owner may do to its cluster; the rest is the platform's.
OWNER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an ACL, a filter or a request is rejected, for the tenant."""

    text: str
    code: Code = Code.INVALID_REQUEST


def bits(operations: Iterable[Operation]) -> int:
    """Operations as a bit field, as in responses."""
    return sum(1 << operation for operation in operations)


def cluster_operations(brokers: int, *, owner: bool) -> int:
    """What an account may do to its cluster, given what it may do to the physical one."""
    return bits(OWNER_OPERATIONS) if owner else brokers & bits((Operation.IDEMPOTENT_WRITE,))


def is_owner(acls: Sequence[Acl], tenant: Tenant) -> bool:
    """Whether these ACLs grant everything in the tenant's cluster, and so the right to grant to others.

    Kafka requires ALTER on the cluster, which would apply to every tenant, so no account has it. ALL on
    everything below the prefix, of every resource type, is as much as a tenant can have.
    """
    prefix = tenant.prefix.decode()
    whole = [acl for acl in acls if acl.pattern is Pattern.PREFIXED and acl.resource_name == prefix]
    allowed = {
        acl.resource_type
        for acl in whole
        if acl.permission is Permission.ALLOW and acl.operation is Operation.ALL and acl.host == ANY_HOST
    }
    return allowed >= set(RESOURCES) and all(acl.permission is Permission.ALLOW for acl in whole)


def acls_of_roles(tenant: Tenant) -> set[Acl]:
    """ACLs that come with roles, such as an owner's. They are not the tenant's to delete."""
    accounts = tenant.accounts.values()
    return {acl_of(entry) for one in accounts for entry in role_acls(tenant.id, one.id, one.role)}


def to_kafka(creation: Mapping[str, Any], tenant: Tenant) -> Acl | Rejection:
    """An ACL requested by a tenant, as Kafka's."""
    try:
        kind = ResourceType(creation["ResourceType"])
        pattern = Pattern(creation["ResourcePatternType"])
        operation = Operation(creation["Operation"])
        permission = Permission(creation["PermissionType"])
    except ValueError:
        return Rejection("The ACL has an unknown resource type, pattern type, operation or permission.")
    if kind not in RESOURCES:
        return Rejection("ACLs apply to topics, groups and transactional ids only.")
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED) or Operation.ANY is operation:
        return Rejection("An ACL names one resource or one prefix, and one operation.")
    if permission is Permission.ANY:
        return Rejection("An ACL allows or denies.")
    if creation["Host"] != ANY_HOST:
        return Rejection("The host must be *: use network rules to restrict client addresses.")
    account = _account(creation["Principal"], tenant)
    if account is None:
        return Rejection("The principal must be User: and the id of a service account of this cluster.")
    name = creation["ResourceName"]
    if refused := _refused_name(name, tenant):
        return refused
    name, in_kafka = name_in_kafka(tenant.id, name, pattern.name.lower())
    return Acl(USER + tenant.user_of(account), operation, kind, name, Pattern[in_kafka.upper()], permission)


def _refused_name(name: str, tenant: Tenant) -> Rejection | None:
    length_max = KAFKA_NAME_LENGTH_MAX - len(tenant.prefix)
    if not name:
        return Rejection("The resource name is empty.")
    if len(name.encode()) > length_max:
        return Rejection(f"The resource name is too long: at most {length_max} bytes are allowed.")
    return None


def _account(principal: str, tenant: Tenant) -> ServiceAccountId | None:
    account = ServiceAccountId(principal.removeprefix(USER))
    return account if principal.startswith(USER) and account in tenant.accounts else None


def to_tenant(acl: Acl, tenant: Tenant) -> Acl | None:
    """An ACL in Kafka as the tenant sees it; None if a tenant could not have created it."""
    if not belongs_to(acl, tenant):
        return None
    principal = USER + acl.principal.removeprefix(USER + tenant.prefix.decode())
    name, pattern = name_for_tenant(tenant.id, acl.resource_name, acl.pattern.name.lower())
    return replace(acl, principal=principal, resource_name=name, pattern=Pattern[pattern.upper()])


def belongs_to(acl: Acl, tenant: Tenant) -> bool:
    """Whether this ACL names an account of the tenant and a resource below its prefix."""
    prefix = USER + tenant.prefix.decode()
    account = ServiceAccountId(acl.principal.removeprefix(prefix))
    own = acl.principal.startswith(prefix) and account in tenant.accounts
    return own and is_within_tenant(acl_entry(acl))


def filter_of(request: Mapping[str, Any]) -> AclFilter | Rejection:
    """The filter in a request, in the tenant's names."""
    try:
        return AclFilter(
            request["PrincipalFilter"],
            Operation(request["Operation"]),
            ResourceType(request["ResourceTypeFilter"]),
            request["ResourceNameFilter"],
            Pattern(request["PatternTypeFilter"]),
            Permission(request["PermissionType"]),
            request["HostFilter"],
        )
    except ValueError:
        return Rejection("The filter has an unknown resource type, pattern type, operation or permission.")


def accounts_for(filters: Iterable[AclFilter], tenant: Tenant) -> list[ServiceAccountId]:
    """The accounts whose ACLs these filters can match."""
    named: set[ServiceAccountId] = set()
    for acl_filter in filters:
        if acl_filter.principal is None:
            return list(tenant.accounts)
        account = _account(acl_filter.principal, tenant)
        named |= {account} if account is not None else set()
    return sorted(named)


def matches(acl: Acl, acl_filter: AclFilter) -> bool:
    """Kafka's filter semantics, on ACLs as the tenant sees them."""
    return (
        acl_filter.principal in (None, acl.principal)
        and acl_filter.host in (None, acl.host)
        and acl_filter.operation in (Operation.ANY, acl.operation)
        and acl_filter.permission in (Permission.ANY, acl.permission)
        and acl_filter.resource_type in (ResourceType.ANY, acl.resource_type)
        and _name_matches(acl, acl_filter)
    )


def _name_matches(acl: Acl, acl_filter: AclFilter) -> bool:
    if acl_filter.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
        return False
    if acl_filter.resource_name is None:
        return True
    if acl_filter.pattern is not Pattern.MATCH:
        return acl_filter.resource_name == acl.resource_name
    if acl.pattern is Pattern.PREFIXED:
        return acl_filter.resource_name.startswith(acl.resource_name)
    return acl.resource_name in (acl_filter.resource_name, EVERYTHING)
