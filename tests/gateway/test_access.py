"""Access rules between a tenant's eyes and Kafka's: what each becomes, and what never gets across."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway import access
from penstock.gateway.access import Unfit
from penstock.gateway.apis import Treatment
from penstock.gateway.config import ServiceAccount, Tenant
from penstock.kafka.acls import Acl, AclFilter, Operation, Pattern, Permission, ResourceType
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
def test_a_rule_goes_below_the_prefix_and_comes_back_as_it_was(
    name: str, pattern: Pattern, inside: str, inside_pattern: Pattern
) -> None:
    made = access.outward(creation(ResourceName=name, ResourcePatternType=pattern), TENANT)

    assert made == Acl(CLERK_USER, Operation.READ, ResourceType.TOPIC, inside, inside_pattern)
    assert access.inward(made, TENANT) == Acl(
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
def test_a_rule_that_has_no_counterpart_is_refused(parts: dict[str, Any]) -> None:
    assert isinstance(access.outward(creation(**parts), TENANT), Unfit)


CHOICES = {
    "another tenant's": Chosen(FOREIGN, FOREIGN, FOREIGN, principal="User:lkc-9xk4vt_sa-000001"),
    "another tenant's, for an own account": Chosen(FOREIGN, FOREIGN, FOREIGN, principal="User:sa-000002"),
    "everything": Chosen("*", "*", "*", principal="User:*"),
    "everything, for an own account": Chosen("*", "*", "*", principal="User:sa-000002"),
    "nothing": Chosen("", "", "", principal=""),
    "null": Chosen(None, None, None, principal=None),
}


@pytest.mark.parametrize("which", CHOICES)
def test_whatever_stands_in_a_slot_no_rule_leaves_the_tenant(which: str) -> None:
    theirs = Acl("User:lkc-9xk4vt_sa-000001", Operation.ALL, ResourceType.TOPIC, FOREIGN)
    judged = 0
    for api, version in served(frozenset((Treatment.ERRAND,))):
        body = body_of(api, version, CHOICES[which])
        for asked in body.get("Creations", []):
            made = access.outward(asked, TENANT)
            judged += 1
            assert isinstance(made, Unfit) or access.lies_within(made, TENANT)
        for asked in body.get("Filters", [body] if "PrincipalFilter" in body else []):
            wanted = access.filter_of(asked)
            judged += 1
            assert isinstance(wanted, AclFilter)
            assert set(access.accounts_for([wanted], TENANT)) <= TENANT.accounts.keys()
    assert judged >= 9
    assert access.inward(theirs, TENANT) is None


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
def test_a_rule_of_somebody_elses_making_is_not_shown(acl: Acl) -> None:
    assert access.inward(acl, TENANT) is None


SHOWN = (
    Acl("User:sa-000002", Operation.READ, ResourceType.TOPIC, "orders"),
    Acl("User:sa-000002", Operation.READ, ResourceType.TOPIC, "ord", Pattern.PREFIXED),
    Acl("User:sa-000001", Operation.ALL, ResourceType.TOPIC, "*"),
    Acl("User:sa-000001", Operation.ALL, ResourceType.GROUP, "*"),
    Acl("User:sa-000002", Operation.WRITE, ResourceType.TOPIC, "orders", permission=Permission.DENY),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
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
def test_filters_find_what_kafkas_filters_would(wanted: AclFilter, found: tuple[int, ...]) -> None:
    assert tuple(n for n, acl in enumerate(SHOWN) if access.matches(acl, wanted)) == found


ALL_RIGHTS = [
    Acl(CLERK_USER, Operation.ALL, kind, "lkc-7hq2mz_", Pattern.PREFIXED) for kind in access.RESOURCES
]


def test_only_whoever_holds_everything_owns_its_cluster() -> None:
    assert access.owns(ALL_RIGHTS, TENANT)
    for acl in ALL_RIGHTS:
        rest = [other for other in ALL_RIGHTS if other is not acl]
        assert not access.owns(rest, TENANT)
        assert not access.owns([*rest, replace(acl, operation=Operation.READ)], TENANT)
        assert not access.owns([*rest, replace(acl, pattern=Pattern.LITERAL)], TENANT)
        assert not access.owns([*rest, replace(acl, resource_name="lkc-7hq2mz_a")], TENANT)
        assert not access.owns([*rest, replace(acl, host="10.0.0.1")], TENANT)
        assert not access.owns([*ALL_RIGHTS, replace(acl, permission=Permission.DENY)], TENANT)


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)


@given(name=names, pattern=st.sampled_from((Pattern.LITERAL, Pattern.PREFIXED)))
def test_any_name_comes_back_as_it_was(name: str, pattern: Pattern) -> None:
    made = access.outward(creation(ResourceName=name, ResourcePatternType=pattern), TENANT)

    assert isinstance(made, Acl)
    assert access.lies_within(made, TENANT)
    shown = access.inward(made, TENANT)
    assert shown is not None
    assert (shown.resource_name, shown.pattern) == (name, pattern)
