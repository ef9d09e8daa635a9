"""Create, describe and delete ACLs."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock.kafka.admin.outcomes import outcome
from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import ANY_NODE, CONTROLLER
from penstock.model.tenant_acls import AclEntry
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.routing import Route
    from penstock.model.errors import PenstockError


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    ANY = 1
    MATCH = 2  # in filters: any pattern that covers the name
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


ANY_HOST = "*"
USER = "User:"  # the type of principals


@dataclass(frozen=True, slots=True)
class Acl:
    principal: str  # `User:name`
    operation: Operation
    resource_type: ResourceType
    resource_name: str
    pattern: Pattern = Pattern.LITERAL
    permission: Permission = Permission.ALLOW
    host: str = ANY_HOST


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Matches ACLs that agree in every given field; the fields are those of `Acl`."""

    principal: str | None = None
    operation: Operation = Operation.ANY
    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern: Pattern = Pattern.ANY
    permission: Permission = Permission.ANY
    host: str | None = None


def acl_of(entry: AclEntry) -> Acl:
    """An ACL in the platform's terms, as Kafka's."""
    # A principal of another type than User, which only an operator can have created, keeps its type.
    principal = entry.user if ":" in entry.user else USER + entry.user
    return Acl(
        principal,
        Operation[_to_kafka(entry.operation)],
        ResourceType[_to_kafka(entry.resource)],
        entry.name,
        Pattern[_to_kafka(entry.pattern)],
        Permission[_to_kafka(entry.permission)],
        entry.host,
    )


def acl_entry(acl: Acl) -> AclEntry:
    return AclEntry(
        acl.principal.removeprefix(USER),
        _from_kafka(acl.resource_type.name),
        acl.resource_name,
        _from_kafka(acl.pattern.name),
        _from_kafka(acl.operation.name),
        _from_kafka(acl.permission.name),
        acl.host,
    )


def _to_kafka(word: str) -> str:
    return word.upper().replace("-", "_")


def _from_kafka(word: str) -> str:
    return word.lower().replace("_", "-")


def exactly(acl: Acl) -> AclFilter:
    """The filter that matches only this ACL."""
    return AclFilter(*astuple(acl))


async def create(
    client: Client, acls: Sequence[Acl], *, timeout: float = CALL_SECONDS
) -> dict[Acl, PenstockError | None]:
    """Create ACLs; existing ones are left unchanged."""
    creations = [
        {
            "ResourceType": acl.resource_type,
            "ResourceName": acl.resource_name,
            "ResourcePatternType": acl.pattern,
            "Principal": acl.principal,
            "Host": acl.host,
            "Operation": acl.operation,
            "PermissionType": acl.permission,
        }
        for acl in acls
    ]
    response = await client.call("CreateAcls", {"Creations": creations}, to=CONTROLLER, timeout=timeout)
    return {
        acl: outcome("CreateAcls", r["ErrorCode"], r["ErrorMessage"], f"ACL of {acl.principal}", None)
        for acl, r in zip(acls, response["Results"], strict=True)
    }


async def describe(
    client: Client,
    matching: AclFilter | None = None,
    *,
    to: Route = ANY_NODE,
    timeout: float = CALL_SECONDS,
) -> list[Acl]:
    """The ACLs that match, as this node enforces them."""
    response = await client.call("DescribeAcls", _filter(matching or AclFilter()), to=to, timeout=timeout)
    check("DescribeAcls", response["ErrorCode"], response["ErrorMessage"])
    return [_acl({**r, **a}) for r in response["Resources"] for a in r["Acls"]]


async def delete(
    client: Client, filters: Sequence[AclFilter], *, timeout: float = CALL_SECONDS
) -> dict[AclFilter, list[Acl] | PenstockError]:
    """Delete all ACLs that match; returns the deleted ones by filter."""
    body = {"Filters": [_filter(f) for f in filters]}
    response = await client.call("DeleteAcls", body, to=CONTROLLER, timeout=timeout)
    results: dict[AclFilter, list[Acl] | PenstockError] = {}
    for acl_filter, r in zip(filters, response["FilterResults"], strict=True):
        failed = next((m for m in (r, *r["MatchingAcls"]) if m["ErrorCode"] != Code.NONE), None)
        if failed is not None:
            results[acl_filter] = broker_error("DeleteAcls", failed["ErrorCode"], failed["ErrorMessage"])
        else:
            results[acl_filter] = [_acl(m) for m in r["MatchingAcls"]]
    return results


def _filter(f: AclFilter) -> dict[str, Any]:
    return {
        "ResourceTypeFilter": f.resource_type,
        "ResourceNameFilter": f.resource_name,
        "PatternTypeFilter": f.pattern,
        "PrincipalFilter": f.principal,
        "HostFilter": f.host,
        "Operation": f.operation,
        "PermissionType": f.permission,
    }


def _acl(m: Mapping[str, Any]) -> Acl:
    return Acl(
        m["Principal"],
        Operation(m["Operation"]),
        ResourceType(m["ResourceType"]),
        m["ResourceName"],
        Pattern(m["PatternType"]),
        Permission(m["PermissionType"]),
        m["Host"],
    )
