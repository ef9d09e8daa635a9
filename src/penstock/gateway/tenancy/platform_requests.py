"""Requests executed on the platform's identity: each takes a request and returns a response body.

Kafka requires cluster rights for these, which cannot be granted for one tenant alone. An account with all
rights below its prefix (`tenant_acls.is_owner`) has them for its logical cluster; others get Kafka's own
authorization error.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway.tenancy import cluster_view, tenant_acls, tenant_configs
from penstock.gateway.tenancy.tenant_acls import ACLS_OF_ACCOUNT_MAX, ENTRIES_MAX, Rejection
from penstock.kafka.admin.configs import ResourceKind
from penstock.model.entities import Role
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from penstock.gateway.config import Tenant
    from penstock.gateway.tenancy.platform_client import PlatformCalls
    from penstock.kafka.admin.acls import Acl, AclFilter
    from penstock.model.errors import PenstockError
    from penstock.model.ids import ServiceAccountId
    from penstock.wire.frames import Request

    Body = dict[str, Any]
    Topics = Mapping[str, list[int]]

NOT_OWNER: Final = Rejection("Only an owner account may do this.", Code.CLUSTER_AUTHORIZATION_FAILED)
NOT_YOURS: Final = Rejection("Tenants cannot read this resource.", Code.CLUSTER_AUTHORIZATION_FAILED)
UNAVAILABLE: Final = Rejection("The platform could not do this now; try again.", Code.REQUEST_TIMED_OUT)
NO_BROKER: Final = Rejection("This broker does not exist.")
RESOURCE_TYPES_FIRST: Final = 1  # of ListConfigResources
COMPARISONS_MAX: Final = 20_000  # of filters with ACLs in one request: a few milliseconds
TOO_BROAD: Final = Rejection("Send fewer filters at once.", Code.POLICY_VIOLATION)
TOO_MANY: Final = Rejection(f"At most {ENTRIES_MAX} at once.", Code.POLICY_VIOLATION)


@dataclass(frozen=True, slots=True)
class Caller:
    """The account that sent a request, and what is needed to execute it."""

    tenant: Tenant
    account: ServiceAccountId
    platform: PlatformCalls
    broker: int  # it is connected to
    brokers: Collection[int]  # it is shown

    async def is_owner(self) -> bool:
        """Whether it has this role, or the same rights by ACLs. Nothing that an owner does takes the role
        from it, so no owner can lock itself out.
        """
        account = self.tenant.accounts.get(self.account)
        if account is not None and account.role is Role.OWNER:
            return True
        acls = await self.platform.acls_of(self.tenant, [self.account])
        return tenant_acls.is_owner(acls, self.tenant)

    async def partitions(self) -> dict[str, tuple[int, int]]:
        """Partitions and replicas of all topics of its tenant, also of those that it may not describe."""
        return await self.platform.partitions_of(self.broker, self.tenant)


def needs_topics(request: Request) -> bool:
    """Whether `run` needs the topics that the account may see."""
    if request.api == "ListConfigResources" and request.version >= RESOURCE_TYPES_FIRST:
        kinds = request.body["ResourceTypes"]
        return not kinds or ResourceKind.TOPIC in kinds
    return request.api == "DescribeLogDirs"


async def run(request: Request, caller: Caller, topics: Topics) -> Body | Rejection:
    """The response body to an owner's request, or why it is rejected.

    `topics` are those that the account may see, with their partitions, if `needs_topics`.
    """
    return await _PLATFORM_REQUESTS[request.api](request, caller, topics)


async def _create_acls(request: Request, caller: Caller, topics: Topics) -> Body | Rejection:
    del topics
    creations = request.body["Creations"]
    if len(creations) > ENTRIES_MAX:
        return TOO_MANY
    tenant = caller.tenant
    translated = [tenant_acls.to_kafka(creation, tenant) for creation in creations]
    acls = [one for one in translated if not isinstance(one, Rejection)]
    principals = {acl.principal for acl in acls}
    accounts = [account for account in tenant.accounts if f"User:{tenant.user_of(account)}" in principals]
    async with caller.platform.additions.of(tenant.id):
        present = await caller.platform.acls_of(tenant, accounts)
        full = _full(present, acls)
        outcomes = await caller.platform.create(tenant, [acl for acl in acls if acl.principal not in full])
    results = []
    for one in translated:
        if isinstance(one, Rejection):
            results.append(_result(one))
        elif one.principal in full:
            text = f"An account has at most {ACLS_OF_ACCOUNT_MAX} ACLs."
            results.append(_result(Rejection(text, Code.POLICY_VIOLATION)))
        else:
            results.append(_result(outcomes[one]))
    return {"Results": results}


def _full(present: Sequence[Acl], added: Sequence[Acl]) -> set[str]:
    """Principals that would exceed the number of ACLs per account."""
    by_principal: defaultdict[str, set[Acl]] = defaultdict(set)
    for acl in (*present, *added):
        by_principal[acl.principal].add(acl)
    return {principal for principal, acls in by_principal.items() if len(acls) > ACLS_OF_ACCOUNT_MAX}


async def _describe_acls(request: Request, caller: Caller, topics: Topics) -> Body | Rejection:
    del topics
    acl_filter = tenant_acls.filter_of(request.body)
    if isinstance(acl_filter, Rejection):
        return acl_filter
    matching = await _matching([acl_filter], caller)
    assert matching is not None, "a single filter is not too broad"
    by_resource: defaultdict[tuple[int, str, int], list[Body]] = defaultdict(list)
    for acl in matching[acl_filter]:
        by_resource[acl.resource_type, acl.resource_name, acl.pattern].append(_entry(acl))
    resources = [
        {"ResourceType": kind, "ResourceName": name, "PatternType": pattern, "Acls": entries}
        for (kind, name, pattern), entries in by_resource.items()
    ]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Resources": resources}


async def _delete_acls(request: Request, caller: Caller, topics: Topics) -> Body | Rejection:
    del topics
    if len(request.body["Filters"]) > ENTRIES_MAX:
        return TOO_MANY
    filters = [tenant_acls.filter_of(one) for one in request.body["Filters"]]
    matching = await _matching([one for one in filters if not isinstance(one, Rejection)], caller)
    if matching is None:
        return TOO_BROAD
    kept = tenant_acls.acls_of_roles(caller.tenant)
    in_kafka = dict.fromkeys(acl for acls in matching.values() for acl in acls.values() if acl not in kept)
    outcomes = await caller.platform.delete(caller.tenant, list(in_kafka))
    results = []
    for one in filters:
        if isinstance(one, Rejection):
            results.append({**_result(one), "MatchingAcls": []})
            continue
        deleted = [_deleted(shown, outcomes[acl]) for shown, acl in matching[one].items() if acl not in kept]
        results.append({"ErrorCode": Code.NONE, "ErrorMessage": None, "MatchingAcls": deleted})
    return {"FilterResults": results}


async def _matching(filters: Sequence[AclFilter], caller: Caller) -> dict[AclFilter, dict[Acl, Acl]] | None:
    """The ACLs that match each filter, as the tenant sees them and as Kafka has them.

    None if so many filters would be compared with so many ACLs that other tenants had to wait.
    """
    tenant = caller.tenant
    acls = await caller.platform.acls_of(tenant, tenant_acls.accounts_for(filters, tenant))
    seen = {shown: acl for acl in acls if (shown := tenant_acls.to_tenant(acl, tenant)) is not None}
    different = dict.fromkeys(filters)
    if len(different) > 1 and len(different) * len(seen) > COMPARISONS_MAX:
        return None
    return {
        one: {shown: acl for shown, acl in seen.items() if tenant_acls.matches(shown, one)}
        for one in different
    }


def _deleted(acl: Acl, failure: PenstockError | None) -> Body:
    return {
        **_result(failure),
        "ResourceType": acl.resource_type,
        "ResourceName": acl.resource_name,
        "PatternType": acl.pattern,
        **_entry(acl),
    }


def _entry(acl: Acl) -> Body:
    return {
        "Principal": acl.principal,
        "Host": acl.host,
        "Operation": acl.operation,
        "PermissionType": acl.permission,
    }


def _result(failure: Rejection | PenstockError | None) -> Body:
    """The error code and message of one item. Kafka's own texts may name other tenants and are dropped."""
    if failure is None:
        return {"ErrorCode": Code.NONE, "ErrorMessage": None}
    if isinstance(failure, Rejection):
        return {"ErrorCode": failure.code, "ErrorMessage": failure.text}
    code = failure.facts.get("error_code", Code.UNKNOWN_SERVER_ERROR)
    return {"ErrorCode": code, "ErrorMessage": None}


async def _describe_log_dirs(request: Request, caller: Caller, topics: Topics) -> Body:
    """All of the tenant's partitions, or those requested; others are left out."""
    prefix = caller.tenant.prefix.decode()
    own, requested = topics, request.body["Topics"]
    if requested is not None:
        named = {prefix + topic["Topic"]: frozenset(topic["Partitions"]) for topic in requested}
        own = {
            name: [n for n in numbers if n in named[name]] for name, numbers in own.items() if name in named
        }
    response = await caller.platform.log_dirs(caller.tenant, caller.broker, own)
    return cluster_view.log_dirs(response, prefix, request.version)


async def _list_config_resources(request: Request, caller: Caller, topics: Topics) -> Body | Rejection:
    if request.version < RESOURCE_TYPES_FIRST:
        return {"ErrorCode": Code.NONE, "ConfigResources": []}  # client metrics, which the platform sets
    kinds = request.body["ResourceTypes"] or list(ResourceKind)
    if not set(kinds) <= set(ResourceKind):
        return Rejection("Unknown resource type.", Code.UNSUPPORTED_VERSION)
    wants_groups = ResourceKind.GROUP in kinds
    groups = await caller.platform.groups_with_configs(caller.tenant) if wants_groups else []
    prefix = caller.tenant.prefix.decode()
    return cluster_view.config_resources(kinds, topics, groups, sorted(caller.brokers), prefix)


async def _describe_client_quotas(request: Request, caller: Caller, topics: Topics) -> Body:
    del topics
    return cluster_view.client_quotas(request.body, caller.tenant.quota)


async def broker_configs(requested: Sequence[Mapping[str, Any]], caller: Caller, version: int) -> list[Body]:
    """The DescribeConfigs results of brokers."""
    owner = await caller.is_owner()
    named = {resource["ResourceName"] for resource in requested} if owner else set()
    entries = {  # one call for each broker, however often it is named
        str(broker): await caller.platform.broker_configs(
            caller.tenant, broker, tenant_configs.SHOWN_BROKER_CONFIGS
        )
        for broker in caller.brokers
        if str(broker) in named
    }
    shown = partial(
        cluster_view.broker_config,
        brokers=len(caller.brokers),
        version=version,
        auto_create_topics=caller.tenant.auto_create_topics,
    )
    return [
        shown(resource, entries[resource["ResourceName"]])
        if resource["ResourceName"] in entries
        else config_refused(resource, NO_BROKER if owner else NOT_OWNER)
        for resource in requested
    ]


def config_refused(resource: Mapping[str, Any], rejection: Rejection) -> Body:
    return {
        **_result(rejection),
        "ResourceType": resource["ResourceType"],
        "ResourceName": resource["ResourceName"],
        "Configs": [],
    }


_PLATFORM_REQUESTS: Final[Mapping[str, Callable[[Request, Caller, Topics], Awaitable[Body | Rejection]]]] = {
    "CreateAcls": _create_acls,
    "DescribeAcls": _describe_acls,
    "DeleteAcls": _delete_acls,
    "DescribeLogDirs": _describe_log_dirs,
    "ListConfigResources": _list_config_resources,
    "DescribeClientQuotas": _describe_client_quotas,
}
