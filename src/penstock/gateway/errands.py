"""What the platform does for a tenant on its own identity: each a request in, the body of an answer out.

Kafka asks for rights on the cluster here, which nobody can be given without giving them on every
tenant's. Whoever holds everything below its own prefix (`access.owns`) has them for its own cluster;
others are refused as Kafka refuses them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.gateway import access, views
from penstock.gateway.access import ACLS_OF_ACCOUNT_MAX, ENTRIES_MAX, Unfit
from penstock.kafka.configs import ResourceKind
from penstock.wire.codes import Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from penstock.gateway.config import Tenant
    from penstock.gateway.platform import Platform
    from penstock.kafka.acls import Acl, AclFilter
    from penstock.model.errors import PenstockError
    from penstock.model.ids import ServiceAccountId
    from penstock.wire.frames import Request

    Body = dict[str, Any]

NOT_OWNER: Final = Unfit("Only an account with all rights may do this.", Code.CLUSTER_AUTHORIZATION_FAILED)
NOT_YOURS: Final = Unfit("Not a tenant's to read.", Code.CLUSTER_AUTHORIZATION_FAILED)
TROUBLE: Final = Unfit("The platform could not do it now.", Code.REQUEST_TIMED_OUT)
NO_BROKER: Final = Unfit("There is no such broker.")
RESOURCE_TYPES_FIRST: Final = 1  # of ListConfigResources
TOO_MANY: Final = Unfit(f"At most {ENTRIES_MAX} at once.", Code.POLICY_VIOLATION)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and through whom it is done."""

    tenant: Tenant
    account: ServiceAccountId
    platform: Platform
    broker: int  # that it is connected to
    brokers: Collection[int]  # that it is shown
    topics: Callable[[], Awaitable[dict[str, list[int]]]]  # partitions of those it may see, Kafka's names

    async def owns(self) -> bool:
        rules = await self.platform.rules_of(self.tenant, [self.account])
        return access.owns(rules, self.tenant)


async def run(request: Request, caller: Caller) -> Body | Unfit:
    """The body of the answer, or why there is none."""
    if not await caller.owns():
        return NOT_OWNER
    return await _ERRANDS[request.api](request, caller)


async def _create_acls(request: Request, caller: Caller) -> Body | Unfit:
    creations = request.body["Creations"]
    if len(creations) > ENTRIES_MAX:
        return TOO_MANY
    tenant = caller.tenant
    judged = [access.outward(creation, tenant) for creation in creations]
    wanted = [one for one in judged if not isinstance(one, Unfit)]
    accounts = [account for account in tenant.accounts if _principals(wanted) & {_principal(tenant, account)}]
    present = await caller.platform.rules_of(tenant, accounts)
    full = _full(present, wanted)
    done = await caller.platform.create(tenant, [acl for acl in wanted if acl.principal not in full])
    results = []
    for one in judged:
        if isinstance(one, Unfit):
            results.append(_said(one))
        elif one.principal in full:
            text = f"An account has at most {ACLS_OF_ACCOUNT_MAX} rules."
            results.append(_said(Unfit(text, Code.POLICY_VIOLATION)))
        else:
            results.append(_said(done[one]))
    return {"Results": results}


def _principals(acls: Sequence[Acl]) -> set[str]:
    return {acl.principal for acl in acls}


def _principal(tenant: Tenant, account: ServiceAccountId) -> str:
    return f"User:{tenant.user_of(account)}"


def _full(present: Sequence[Acl], wanted: Sequence[Acl]) -> set[str]:
    """Principals that would have more rules than anybody may have."""
    rules: defaultdict[str, set[Acl]] = defaultdict(set)
    for acl in (*present, *wanted):
        rules[acl.principal].add(acl)
    return {principal for principal, having in rules.items() if len(having) > ACLS_OF_ACCOUNT_MAX}


async def _describe_acls(request: Request, caller: Caller) -> Body | Unfit:
    wanted = access.filter_of(request.body)
    if isinstance(wanted, Unfit):
        return wanted
    found = await _found([wanted], caller)
    by_resource: defaultdict[tuple[int, str, int], list[Body]] = defaultdict(list)
    for acl in found[wanted]:
        entry = {
            "Principal": acl.principal,
            "Host": acl.host,
            "Operation": acl.operation,
            "PermissionType": acl.permission,
        }
        by_resource[acl.resource_type, acl.resource_name, acl.pattern].append(entry)
    resources = [
        {"ResourceType": kind, "ResourceName": name, "PatternType": pattern, "Acls": entries}
        for (kind, name, pattern), entries in by_resource.items()
    ]
    return {"ErrorCode": Code.NONE, "ErrorMessage": None, "Resources": resources}


async def _delete_acls(request: Request, caller: Caller) -> Body | Unfit:
    asked = request.body["Filters"]
    if len(asked) > ENTRIES_MAX:
        return TOO_MANY
    filters = [access.filter_of(one) for one in asked]
    found = await _found([one for one in filters if not isinstance(one, Unfit)], caller)
    gone = {kafkas: shown for rules in found.values() for shown, kafkas in rules.items()}
    done = await caller.platform.delete(caller.tenant, list(gone))
    results = []
    for one in filters:
        if isinstance(one, Unfit):
            results.append({**_said(one), "MatchingAcls": []})
            continue
        matching = [_deleted(shown, done[kafkas]) for shown, kafkas in found[one].items()]
        results.append({"ErrorCode": Code.NONE, "ErrorMessage": None, "MatchingAcls": matching})
    return {"FilterResults": results}


async def _found(filters: Sequence[AclFilter], caller: Caller) -> dict[AclFilter, dict[Acl, Acl]]:
    """What each filter finds: rules as the tenant sees them, and what Kafka has for each."""
    tenant = caller.tenant
    rules = await caller.platform.rules_of(tenant, access.accounts_for(filters, tenant))
    seen = {shown: acl for acl in rules if (shown := access.inward(acl, tenant)) is not None}
    return {one: {shown: acl for shown, acl in seen.items() if access.matches(shown, one)} for one in filters}


def _deleted(acl: Acl, failure: PenstockError | None) -> Body:
    return {
        **_said(failure),
        "ResourceType": acl.resource_type,
        "ResourceName": acl.resource_name,
        "PatternType": acl.pattern,
        "Principal": acl.principal,
        "Host": acl.host,
        "Operation": acl.operation,
        "PermissionType": acl.permission,
    }


def _said(failure: Unfit | PenstockError | None) -> Body:
    """How one thing went. What Kafka says in prose may name anybody, and stays here."""
    if failure is None:
        return {"ErrorCode": Code.NONE, "ErrorMessage": None}
    if isinstance(failure, Unfit):
        return {"ErrorCode": failure.code, "ErrorMessage": failure.text}
    code = failure.facts.get("error_code", Code.UNKNOWN_SERVER_ERROR)
    return {"ErrorCode": code, "ErrorMessage": None}


async def _describe_log_dirs(request: Request, caller: Caller) -> Body:
    """ "All" is all of one's own; what is named and not one's own is not there."""
    prefix = caller.tenant.prefix.decode()
    own, asked = await caller.topics(), request.body["Topics"]
    if asked is not None:
        named = {prefix + topic["Topic"]: topic["Partitions"] for topic in asked}
        own = {
            name: [n for n in numbers if n in named[name]] for name, numbers in own.items() if name in named
        }
    answer = await caller.platform.log_dirs(caller.broker, own)
    return views.log_dirs(answer, prefix, request.version)


async def _list_config_resources(request: Request, caller: Caller) -> Body | Unfit:
    if request.version < RESOURCE_TYPES_FIRST:
        return {"ErrorCode": Code.NONE, "ConfigResources": []}  # of clients' metrics, which the platform sets
    kinds = request.body["ResourceTypes"] or list(ResourceKind)
    if not set(kinds) <= set(ResourceKind):
        return Unfit("A kind of resource that nobody knows.", Code.UNSUPPORTED_VERSION)
    groups = await caller.platform.groups_with_configs() if ResourceKind.GROUP in kinds else []
    topics = await caller.topics() if ResourceKind.TOPIC in kinds else {}
    prefix = caller.tenant.prefix.decode()
    return views.config_resources(kinds, topics, groups, sorted(caller.brokers), prefix)


async def _describe_client_quotas(request: Request, caller: Caller) -> Body:
    return views.client_quotas(request.body, caller.tenant.quota)


async def broker_configs(asked: Sequence[Mapping[str, Any]], caller: Caller, version: int) -> list[Body]:
    """Results of DescribeConfigs for brokers."""
    owner = await caller.owns()
    results = []
    for resource in asked:
        name = resource["ResourceName"]
        if not owner or not name.isdecimal() or int(name) not in caller.brokers:
            results.append(config_refused(resource, NOT_OWNER if not owner else NO_BROKER))
            continue
        entries = await caller.platform.broker_configs(int(name), views.BROKER_CONFIGS)
        results.append(views.broker_config(resource, entries, len(caller.brokers), version))
    return results


def config_refused(resource: Mapping[str, Any], why: Unfit) -> Body:
    return {
        **_said(why),
        "ResourceType": resource["ResourceType"],
        "ResourceName": resource["ResourceName"],
        "Configs": [],
    }


_ERRANDS: Final[Mapping[str, Callable[[Request, Caller], Awaitable[Body | Unfit]]]] = {
    "CreateAcls": _create_acls,
    "DescribeAcls": _describe_acls,
    "DeleteAcls": _delete_acls,
    "DescribeLogDirs": _describe_log_dirs,
    "ListConfigResources": _list_config_resources,
    "DescribeClientQuotas": _describe_client_quotas,
}
