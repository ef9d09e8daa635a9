"""Whose an access rule is: declared here, made by the tenant through Kafka, or planted by somebody."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.control import decisions
from penstock.control.checker import Difference, Found, Kind, declared, differences
from penstock.control.rules import Origin, OwnRule, Rule, lies_within, own_rules, revoked_rules
from penstock.kafka import acls
from penstock.kafka.acls import Acl, AclFilter, Operation, Pattern, Permission
from penstock.kafka.acls import ResourceType as Resource
from penstock.kafka.client import Client
from penstock.model.entities import Grant, PhysicalCluster, Role, ServiceAccount
from penstock.model.ids import LogicalClusterId, kafka_user
from tests.control.ground import PHYSICAL, Paper
from tests.control.test_gateways import SECRET, new_key, started
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.server import Gateway
    from tests.control.conftest import Office
    from tests.ground.fleet import Fleet

TENANT = LogicalClusterId("lkc-7hq2mz")
USER = "lkc-7hq2mz_sa-000001"
READ = Grant("topic", "orders", "read")
OWN = Rule(USER, "topic", "lkc-7hq2mz_orders", "literal", "read")


def account(**more: Any) -> ServiceAccount:
    values: dict[str, Any] = {"tenant": TENANT, "name": "app", "role": Role.LIMITED} | more
    return ServiceAccount(id="sa-000001", version=1, **values)


@pytest.mark.parametrize(
    "rule",
    [
        OWN,
        replace(OWN, permission="deny"),
        replace(OWN, resource="group", pattern="prefixed"),
        replace(OWN, name="lkc-7hq2mz_", pattern="prefixed", operation="all"),
    ],
    ids=str,
)
def test_a_tenant_may_have_made_rules_about_its_own(rule: Rule) -> None:
    assert lies_within(rule)


@pytest.mark.parametrize(
    "rule",
    [
        replace(OWN, name="lkc-9xk4vt_orders"),
        replace(OWN, name="lkc-7hq2", pattern="prefixed"),
        replace(OWN, name="lkc-7hq2mz_"),
        replace(OWN, name="*"),
        replace(OWN, host="10.0.0.1"),
        replace(OWN, resource="cluster", name="kafka-cluster"),
        replace(OWN, resource="user", name="lkc-7hq2mz_sa-000001"),
        replace(OWN, user="*"),
        replace(OWN, user="lkc-9xk4vt_sa-000001"),
    ],
    ids=str,
)
def test_no_tenant_can_have_made_a_rule_about_anything_else(rule: Rule) -> None:
    assert not lies_within(rule)


def test_each_rule_is_shown_in_the_tenants_names_with_its_origin() -> None:
    one = account(grants=(READ, Grant("topic", "*", "describe")))
    made = replace(OWN, operation="write", permission="deny")

    shown = own_rules(one, {OWN, made, replace(OWN, name="lkc-9xk4vt_x")})

    assert shown == (
        OwnRule("topic", "*", "literal", "describe", "allow", Origin.GRANTED),
        OwnRule("topic", "orders", "literal", "read", "allow", Origin.GRANTED),
        OwnRule("topic", "orders", "literal", "write", "deny", Origin.TENANT),
    )
    owner = own_rules(account(role=Role.OWNER), ())
    assert {(r.name, r.operation, r.origin) for r in owner} == {("*", "all", Origin.ROLE)}
    assert len(owner) == 3


def test_what_was_revoked_is_nobodys_until_kafka_has_let_go_of_it() -> None:
    revoking = account(revoked=(READ,))

    assert revoked_rules(revoking) == {OWN}
    assert own_rules(revoking, {OWN}) == ()
    assert revoked_rules(account(revoked=(READ,), grants=(READ,))) == frozenset()


def test_a_grant_that_was_revoked_and_is_still_there_differs_and_a_rule_of_the_tenants_does_not() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster("shop")
    made = decisions.create_account(paper.registry, paper.ask(), cluster.id, "app", Role.LIMITED, [READ])
    one = paper.accept(made).subject
    assert isinstance(one, ServiceAccount)
    paper.carry_out(made.operation)
    paper.accept(decisions.update_account(paper.registry, paper.ask(), one.id, None, []))
    asked = declared(paper.registry, paper.registry.need(PhysicalCluster, PHYSICAL))
    user = kafka_user(cluster.tenant, one.account)
    granted = Rule(user, "topic", f"{cluster.id}_orders", "literal", "read")
    own = replace(granted, operation="write")

    rules = asked.rights.rules | {granted, own}
    found = Found(replace(asked.rights, rules=rules), {}, asked.states)

    assert differences(asked, found) == (
        Difference(Kind.UNDECLARED, "rule", user, f"read on topic {cluster.id}_orders"),
    )


# Through Kafka


def admin(gateway: Gateway, key: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": gateway.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": key,
            "sasl.password": SECRET,
        }
    )


def make_rules(gateway: Gateway, key: str, account_id: str) -> None:
    """A right and a denial, as a tenant makes them with any Kafka client."""
    wanted = [
        AclBinding(
            ResourceType.TOPIC,
            "invoices",
            ResourcePatternType.LITERAL,
            f"User:{account_id}",
            "*",
            operation,
            permission,
        )
        for operation, permission in (
            (AclOperation.READ, AclPermissionType.ALLOW),
            (AclOperation.WRITE, AclPermissionType.DENY),
        )
    ]
    client = admin(gateway, key)  # the answers need it alive
    for made in client.create_acls(wanted).values():
        made.result(30)


MADE = {("invoices", "read", "allow"), ("invoices", "write", "deny")}


@pytest.mark.kafka
async def test_rules_that_a_tenant_made_stay_until_their_account_goes(
    office: Office, control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    key = new_key(unique)
    await office.key(cluster.id, key, SECRET)
    made = await office.decide(
        lambda r, a: decisions.create_account(r, a, cluster.id, "app", Role.LIMITED, [READ]), ServiceAccount
    )
    await office.ended(made.operation.id)
    app = made.operation.subject
    user = kafka_user(cluster.tenant, office.plane.registry.need(ServiceAccount, app).account)

    async def shown() -> set[tuple[str, str, str]]:
        rules = await office.plane.rules(office.plane.registry.need(ServiceAccount, app))
        return {(r.name, r.operation, r.permission) for r in rules if r.origin is Origin.TENANT}

    gateway = await started(control_fleet)
    try:
        await asyncio.to_thread(make_rules, gateway, key, app)
    finally:
        await gateway.close()

    async def made_here() -> bool:
        return await shown() == MADE

    await eventually(made_here)
    await office.as_declared()
    assert await office.plane.repair() == ()
    changed = await office.decide(lambda r, a: decisions.update_account(r, a, app, None, []), ServiceAccount)
    await office.ended(changed.operation.id)
    assert await shown() == MADE
    now = office.plane.registry.need(ServiceAccount, app)
    assert (now.grants, now.revoked) == ((), ())
    await office.as_declared()

    gone = await office.decide(lambda r, a: decisions.delete_account(r, a, app, None), ServiceAccount)
    await office.ended(gone.operation.id)
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:

        async def gone_too() -> bool:
            return await acls.describe(client, AclFilter(principal=f"User:{user}")) == []

        await eventually(gone_too)
    await office.as_declared()


@pytest.mark.kafka
async def test_rules_that_no_tenant_can_have_made_are_found_and_taken(
    office: Office, control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    cluster = await office.create(unique("shop"))
    (owner,) = office.plane.registry.accounts(cluster.id)
    user = f"User:{kafka_user(cluster.tenant, owner.account)}"
    own = Acl(user, Operation.WRITE, Resource.TOPIC, f"{cluster.id}_x", permission=Permission.DENY)
    planted = [
        Acl("User:mallory", Operation.READ, Resource.TOPIC, f"{cluster.id}_orders"),
        Acl("User:*", Operation.READ, Resource.TOPIC, f"{cluster.id}_", Pattern.PREFIXED),
        Acl("Group:guests", Operation.READ, Resource.TOPIC, f"{cluster.id}_orders"),
        Acl(user, Operation.READ, Resource.TOPIC, "*"),
        Acl(user, Operation.READ, Resource.TOPIC, f"{cluster.id}_orders", host="10.0.0.1"),
        Acl(user, Operation.ALTER, Resource.CLUSTER, "kafka-cluster", permission=Permission.DENY),
    ]
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        assert set((await acls.create(client, [own, *planted])).values()) == {None}

        async def seen() -> bool:
            return len(await office.plane.check()) == len(planted)

        await eventually(seen)
        assert {(d.kind, d.what) for d in await office.plane.check()} == {(Kind.UNDECLARED, "rule")}

        await office.plane.repair()

        async def taken() -> bool:
            return await office.plane.check() == ()

        await eventually(taken)
        assert own in await acls.describe(client, AclFilter(principal=user))
        assert not {*planted} & {*await acls.describe(client)}
