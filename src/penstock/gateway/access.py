"""Access rules as a tenant sees them, and as Kafka has them: values, and the way from one to the other.

    the tenant's                              inside Kafka
    User:sa-000001                            User:lkc-7hq2mz_sa-000001
    literal `orders`                          literal `lkc-7hq2mz_orders`
    prefixed `or`                             prefixed `lkc-7hq2mz_or`
    literal `*`, that is everything           prefixed `lkc-7hq2mz_`

Nothing else has a counterpart. `User:*` would be every tenant's user, an address would be the
gateway's, and rights on the cluster are rights on everybody's: these are refused, and where Kafka has
them they are not shown. Rules are executed on the platform's identity, behind which there is no
second wall, so what goes there is checked once more by `lies_within`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.acls import ANY_HOST, Acl, AclFilter, Operation, Pattern, Permission, ResourceType
from penstock.model.ids import KAFKA_NAME_LENGTH_MAX, ServiceAccountId
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.gateway.config import Tenant

EVERYTHING: Final = "*"
ACLS_OF_ACCOUNT_MAX: Final = 200  # so that reading them all stays cheap
ENTRIES_MAX: Final = 500  # of one request
RESOURCES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
_USER: Final = "User:"
# What an owner may do to its cluster as a whole; what it may not is the platform's.
OWNER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)


@dataclass(frozen=True, slots=True)
class Unfit:
    """A rule, or a filter, that cannot be: what the tenant is told."""

    text: str
    code: Code = Code.INVALID_REQUEST


def bits(operations: Iterable[Operation]) -> int:
    """Operations as answers give them: a bit for each."""
    return sum(1 << operation for operation in operations)


def cluster_operations(brokers: int, *, owner: bool) -> int:
    """What an account may do to its cluster, given what the broker said of the physical one."""
    return bits(OWNER_OPERATIONS) if owner else brokers & bits((Operation.IDEMPOTENT_WRITE,))


def owns(acls: Sequence[Acl], tenant: Tenant) -> bool:
    """Does somebody with these rules hold everything of its cluster, so that it may hand out rights?

    Kafka asks for ALTER on the cluster. Nobody has that here, since it would be ALTER on everybody's;
    ALL on everything below the prefix, of every kind, is as much as a tenant can have.
    """
    prefix = tenant.prefix.decode()
    whole = [acl for acl in acls if acl.pattern is Pattern.PREFIXED and acl.resource_name == prefix]
    allowed = {
        acl.resource_type
        for acl in whole
        if acl.permission is Permission.ALLOW and acl.operation is Operation.ALL and acl.host == ANY_HOST
    }
    return allowed >= set(RESOURCES) and all(acl.permission is Permission.ALLOW for acl in whole)


def outward(creation: Mapping[str, Any], tenant: Tenant) -> Acl | Unfit:
    """A rule that a tenant asks for, as Kafka is asked for it."""
    try:
        kind = ResourceType(creation["ResourceType"])
        pattern = Pattern(creation["ResourcePatternType"])
        operation = Operation(creation["Operation"])
        permission = Permission(creation["PermissionType"])
    except ValueError:
        return Unfit("The rule has a part that nobody knows.")
    if kind not in RESOURCES:
        return Unfit("Rules are about topics, groups and transactional ids.")
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED) or Operation.ANY is operation:
        return Unfit("A rule names one resource or one prefix, and one operation.")
    if permission is Permission.ANY:
        return Unfit("A rule allows or denies.")
    if creation["Host"] != ANY_HOST:
        return Unfit("Where clients connect from is the network rules' affair: the host is *.")
    account = _account(creation["Principal"], tenant)
    if account is None:
        return Unfit("The principal is User: and the id of a service account of this cluster.")
    name = _name_outward(creation["ResourceName"], pattern, tenant)
    if isinstance(name, Unfit):
        return name
    return Acl(_USER + tenant.user_of(account), operation, kind, *name, permission)


def _name_outward(name: str, pattern: Pattern, tenant: Tenant) -> tuple[str, Pattern] | Unfit:
    prefix = tenant.prefix.decode()
    if not name:
        return Unfit("The name of a resource is not empty.")
    if len(name.encode()) > KAFKA_NAME_LENGTH_MAX - len(prefix):
        return Unfit(f"The name of a resource has at most {KAFKA_NAME_LENGTH_MAX - len(prefix)} bytes.")
    if pattern is Pattern.LITERAL and name == EVERYTHING:
        return prefix, Pattern.PREFIXED
    return prefix + name, pattern


def _account(principal: str, tenant: Tenant) -> ServiceAccountId | None:
    account = ServiceAccountId(principal.removeprefix(_USER))
    return account if principal.startswith(_USER) and account in tenant.accounts else None


def inward(acl: Acl, tenant: Tenant) -> Acl | None:
    """A rule that Kafka has, as the tenant sees it; None if it is none of a tenant's making."""
    if not lies_within(acl, tenant) or acl.host != ANY_HOST:
        return None
    prefix = tenant.prefix.decode()
    principal = _USER + acl.principal.removeprefix(_USER + prefix)
    name = acl.resource_name.removeprefix(prefix)
    if name:
        return replace(acl, principal=principal, resource_name=name)
    if acl.pattern is Pattern.PREFIXED:
        return replace(acl, principal=principal, resource_name=EVERYTHING, pattern=Pattern.LITERAL)
    return None


def lies_within(acl: Acl, tenant: Tenant) -> bool:
    """Is this rule about one of the tenant's own accounts, and about what lies below its prefix?"""
    users = {_USER + tenant.user_of(account) for account in tenant.accounts}
    return (
        acl.principal in users
        and acl.resource_type in RESOURCES
        and acl.pattern in (Pattern.LITERAL, Pattern.PREFIXED)
        and acl.resource_name.startswith(tenant.prefix.decode())
    )


def filter_of(asked: Mapping[str, Any]) -> AclFilter | Unfit:
    """What a tenant looks for, in its own names."""
    try:
        return AclFilter(
            asked["PrincipalFilter"],
            Operation(asked["Operation"]),
            ResourceType(asked["ResourceTypeFilter"]),
            asked["ResourceNameFilter"],
            Pattern(asked["PatternTypeFilter"]),
            Permission(asked["PermissionType"]),
            asked["HostFilter"],
        )
    except ValueError:
        return Unfit("The filter has a part that nobody knows.")


def accounts_for(wanted: Iterable[AclFilter], tenant: Tenant) -> list[ServiceAccountId]:
    """Whose rules have to be read to answer these filters."""
    named: set[ServiceAccountId] = set()
    for one in wanted:
        if one.principal is None:
            return list(tenant.accounts)
        account = _account(one.principal, tenant)
        named |= {account} if account is not None else set()
    return sorted(named)


def matches(acl: Acl, wanted: AclFilter) -> bool:
    """As Kafka's own filters do, on rules as the tenant sees them."""
    return (
        wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and wanted.operation in (Operation.ANY, acl.operation)
        and wanted.permission in (Permission.ANY, acl.permission)
        and wanted.resource_type in (ResourceType.ANY, acl.resource_type)
        and _name_matches(acl, wanted)
    )


def _name_matches(acl: Acl, wanted: AclFilter) -> bool:
    if wanted.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
        return False
    if wanted.resource_name is None:
        return True
    if wanted.pattern is not Pattern.MATCH:
        return wanted.resource_name == acl.resource_name
    if acl.pattern is Pattern.PREFIXED:
        return wanted.resource_name.startswith(acl.resource_name)
    return acl.resource_name in (wanted.resource_name, EVERYTHING)
