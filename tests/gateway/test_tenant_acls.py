"""Translation of a tenant's ACLs to Kafka's and back, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.config import ServiceAccount, Tenant
from penstock.gateway.tenancy import tenant_acls
from penstock.gateway.tenancy.apis import Treatment
from penstock.gateway.tenancy.tenant_acls import Rejection
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, Pattern, Permission, ResourceType
from penstock.model.ids import LogicalClusterId, ServiceAccountId
from tests.gateway.slots import Chosen, body_of, served

OWNER, CLERK = ServiceAccountId("sa-000001"), ServiceAccountId("sa-000002")
TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"), {OWNER: ServiceAccount(OWNER), CLERK: ServiceAccount(CLERK)})
FOREIGN = "lkc-9xk4vt_orders"
CLERK_USER = "User:lkc-7hq2mz_sa-000002"


def creation(**parts: Any) -> dict[str, Any]:
    return {
        "ResourceType": ResourceType.TOPIC,
        "ResourceName": "orders",
        "ResourcePatternType": Pattern.LITERAL,
        "Principal": "User:sa-000002",
        "Host": "*",
        "Operation": Operation.READ,
        "PermissionType": Permission.ALLOW,
        **parts,
    }


@pytest.mark.parametrize(
    ("name", "pattern", "inside", "inside_pattern"),
    [
        ("orders", Pattern.LITERAL, "lkc-7hq2mz_orders", Pattern.LITERAL),
        ("or", Pattern.PREFIXED, "lkc-7hq2mz_or", Pattern.PREFIXED),
        ("*", Pattern.LITERAL, "lkc-7hq2mz_", Pattern.PREFIXED),
        ("*", Pattern.PREFIXED, "lkc-7hq2mz_*", Pattern.PREFIXED),
        (FOREIGN, Pattern.LITERAL, "lkc-7hq2mz_" + FOREIGN, Pattern.LITERAL),
    ],
)
def test_an_acl_is_translated_to_kafka_and_back(
    name: str, pattern: Pattern, inside: str, inside_pattern: Pattern
) -> None:
    made = tenant_acls.to_kafka(creation(ResourceName=name, ResourcePatternType=pattern), TENANT)

    assert made == Acl(CLERK_USER, Operation.READ, ResourceType.TOPIC, inside, inside_pattern)
    assert tenant_acls.to_tenant(made, TENANT) == Acl(
        "User:sa-000002", Operation.READ, ResourceType.TOPIC, name, pattern
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"Principal": "User:*"},
        {"Principal": "User:sa-000003"},
        {"Principal": "User:lkc-9xk4vt_sa-000001"},
        {"Principal": "sa-000002"},
        {"Principal": "Group:sa-000002"},
        {"Principal": ""},
        {"Host": "10.0.0.1"},
        {"ResourceType": ResourceType.CLUSTER, "ResourceName": "kafka-cluster"},
        {"ResourceType": ResourceType.DELEGATION_TOKEN},
        {"ResourceType": ResourceType.USER},
        {"ResourceType": ResourceType.ANY},
        {"ResourceType": 99},
        {"ResourcePatternType": Pattern.ANY},
        {"ResourcePatternType": Pattern.MATCH},
        {"Operation": Operation.ANY},
        {"Operation": 0},
        {"PermissionType": Permission.ANY},
        {"ResourceName": ""},
        {"ResourceName": "x" * 239},
    ],
    ids=str,
)
def test_an_acl_that_cannot_be_translated_is_refused(parts: dict[str, Any]) -> None:
    assert isinstance(tenant_acls.to_kafka(creation(**parts), TENANT), Rejection)


CHOICES = {
    "another tenant's": Chosen(FOREIGN, FOREIGN, FOREIGN, principal="User:lkc-9xk4vt_sa-000001"),
    "another tenant's, for an own account": Chosen(FOREIGN, FOREIGN, FOREIGN, principal="User:sa-000002"),
    "everything": Chosen("*", "*", "*", principal="User:*"),
    "everything, for an own account": Chosen("*", "*", "*", principal="User:sa-000002"),
    "nothing": Chosen("", "", "", principal=""),
    "null": Chosen(None, None, None, principal=None),
}


@pytest.mark.parametrize("which", CHOICES)
def test_no_field_value_lets_an_acl_leave_the_tenant(which: str) -> None:
    theirs = Acl("User:lkc-9xk4vt_sa-000001", Operation.ALL, ResourceType.TOPIC, FOREIGN)
    judged = 0
    for api, version in served(frozenset((Treatment.PLATFORM,))):
        body = body_of(api, version, CHOICES[which])
        for requested in body.get("Creations", []):
            made = tenant_acls.to_kafka(requested, TENANT)
            judged += 1
            assert isinstance(made, Rejection) or tenant_acls.belongs_to(made, TENANT)
        for requested in body.get("Filters", [body] if "PrincipalFilter" in body else []):
            acl_filter = tenant_acls.filter_of(requested)
            judged += 1
            assert isinstance(acl_filter, AclFilter)
            assert set(tenant_acls.accounts_for([acl_filter], TENANT)) <= TENANT.accounts.keys()
    assert judged >= 9
    assert tenant_acls.to_tenant(theirs, TENANT) is None


@pytest.mark.parametrize(
    "acl",
    [
        Acl("User:lkc-9xk4vt_sa-000001", Operation.ALL, ResourceType.TOPIC, "lkc-7hq2mz_orders"),
        Acl("User:*", Operation.ALL, ResourceType.TOPIC, "lkc-7hq2mz_orders"),
        Acl(CLERK_USER, Operation.ALL, ResourceType.TOPIC, FOREIGN),
        Acl(CLERK_USER, Operation.ALL, ResourceType.TOPIC, "*"),
        Acl(CLERK_USER, Operation.ALL, ResourceType.TOPIC, "lkc-7hq2", Pattern.PREFIXED),
        Acl(CLERK_USER, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster"),
        Acl(CLERK_USER, Operation.ALL, ResourceType.TOPIC, "lkc-7hq2mz_"),
        Acl(CLERK_USER, Operation.ALL, ResourceType.TOPIC, "lkc-7hq2mz_a", host="10.0.0.1"),
    ],
    ids=str,
)
def test_an_acl_that_a_tenant_could_not_create_is_not_shown(acl: Acl) -> None:
    assert tenant_acls.to_tenant(acl, TENANT) is None


SHOWN = (
    Acl("User:sa-000002", Operation.READ, ResourceType.TOPIC, "orders"),
    Acl("User:sa-000002", Operation.READ, ResourceType.TOPIC, "ord", Pattern.PREFIXED),
    Acl("User:sa-000001", Operation.ALL, ResourceType.TOPIC, "*"),
    Acl("User:sa-000001", Operation.ALL, ResourceType.GROUP, "*"),
    Acl("User:sa-000002", Operation.WRITE, ResourceType.TOPIC, "orders", permission=Permission.DENY),
)


@pytest.mark.parametrize(
    ("acl_filter", "matching"),
    [
        (AclFilter(), (0, 1, 2, 3, 4)),
        (AclFilter(principal="User:sa-000002"), (0, 1, 4)),
        (AclFilter(resource_type=ResourceType.GROUP), (3,)),
        (AclFilter(resource_name="orders"), (0, 4)),
        (AclFilter(resource_name="orders", pattern=Pattern.LITERAL), (0, 4)),
        (AclFilter(resource_name="ord", pattern=Pattern.PREFIXED), (1,)),
        (AclFilter(resource_name="orders", pattern=Pattern.PREFIXED), ()),
        (AclFilter(resource_name="orders", pattern=Pattern.MATCH), (0, 1, 2, 3, 4)),
        (AclFilter(resource_name="other", pattern=Pattern.MATCH), (2, 3)),
        (AclFilter(permission=Permission.DENY), (4,)),
        (AclFilter(operation=Operation.READ, host="*"), (0, 1)),
        (AclFilter(host="10.0.0.1"), ()),
    ],
    ids=str,
)
def test_filters_match_as_kafkas_do(acl_filter: AclFilter, matching: tuple[int, ...]) -> None:
    assert tuple(n for n, acl in enumerate(SHOWN) if tenant_acls.matches(acl, acl_filter)) == matching


ALL_RIGHTS = [
    Acl(CLERK_USER, Operation.ALL, kind, "lkc-7hq2mz_", Pattern.PREFIXED) for kind in tenant_acls.RESOURCES
]


def test_only_an_account_with_all_rights_is_an_owner() -> None:
    assert tenant_acls.is_owner(ALL_RIGHTS, TENANT)
    for acl in ALL_RIGHTS:
        rest = [other for other in ALL_RIGHTS if other is not acl]
        assert not tenant_acls.is_owner(rest, TENANT)
        assert not tenant_acls.is_owner([*rest, replace(acl, operation=Operation.READ)], TENANT)
        assert not tenant_acls.is_owner([*rest, replace(acl, pattern=Pattern.LITERAL)], TENANT)
        assert not tenant_acls.is_owner([*rest, replace(acl, resource_name="lkc-7hq2mz_a")], TENANT)
        assert not tenant_acls.is_owner([*rest, replace(acl, host="10.0.0.1")], TENANT)
        assert not tenant_acls.is_owner([*ALL_RIGHTS, replace(acl, permission=Permission.DENY)], TENANT)


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)


@given(name=names, pattern=st.sampled_from((Pattern.LITERAL, Pattern.PREFIXED)))
def test_any_resource_name_survives_translation(name: str, pattern: Pattern) -> None:
    made = tenant_acls.to_kafka(creation(ResourceName=name, ResourcePatternType=pattern), TENANT)

    assert isinstance(made, Acl)
    assert tenant_acls.belongs_to(made, TENANT)
    shown = tenant_acls.to_tenant(made, TENANT)
    assert shown is not None
    assert (shown.resource_name, shown.pattern) == (name, pattern)
