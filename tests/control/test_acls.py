"""Where an ACL comes from: declared in the registry, created by the tenant through Kafka, or by hand."""

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
from penstock.control.acls import AccountAcl, Origin, account_acls, revoked_acls
from penstock.control.checker import ActualState, Difference, Kind, declared_state, differences
from penstock.kafka.admin import acls
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, Pattern, Permission
from penstock.kafka.admin.acls import ResourceType as Resource
from penstock.kafka.client import Client
from penstock.model.entities import Grant, PhysicalCluster, Role, ServiceAccount
from penstock.model.ids import LogicalClusterId, kafka_user
from penstock.model.tenant_acls import AclEntry, is_within_tenant
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.test_gateway_files import SECRET, new_key, started
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.gateway.process.server import Gateway
    from tests.control.conftest import PlaneHarness
    from tests.harness.fleet import Fleet

TENANT = LogicalClusterId("lkc-7hq2mz")
USER = "lkc-7hq2mz_sa-000001"
READ = Grant("topic", "orders", "read")
OWN = AclEntry(USER, "topic", "lkc-7hq2mz_orders", "literal", "read")


def account(**more: Any) -> ServiceAccount:
    values: dict[str, Any] = {"tenant": TENANT, "name": "app", "role": Role.LIMITED} | more
    return ServiceAccount(id="sa-000001", version=1, **values)


@pytest.mark.parametrize(
    "acl",
    [
        OWN,
        replace(OWN, permission="deny"),
        replace(OWN, resource="group", pattern="prefixed"),
        replace(OWN, name="lkc-7hq2mz_", pattern="prefixed", operation="all"),
    ],
    ids=str,
)
def test_a_tenant_can_have_created_acls_on_its_own_names(acl: AclEntry) -> None:
    assert is_within_tenant(acl)


@pytest.mark.parametrize(
    "acl",
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
def test_no_tenant_can_have_created_acls_on_anything_else(acl: AclEntry) -> None:
    assert not is_within_tenant(acl)


def test_each_acl_is_shown_with_the_tenants_names_and_its_origin() -> None:
    one = account(grants=(READ, Grant("topic", "*", "describe")))
    created = replace(OWN, operation="write", permission="deny")

    shown = account_acls(one, {OWN, created, replace(OWN, name="lkc-9xk4vt_x")})

    assert shown == (
        AccountAcl("topic", "*", "literal", "describe", "allow", Origin.GRANTED),
        AccountAcl("topic", "orders", "literal", "read", "allow", Origin.GRANTED),
        AccountAcl("topic", "orders", "literal", "write", "deny", Origin.TENANT),
    )
    owner = account_acls(account(role=Role.OWNER), ())
    assert {(r.name, r.operation, r.origin) for r in owner} == {("*", "all", Origin.ROLE)}
    assert len(owner) == 3


def test_a_revoked_acl_is_not_shown_while_kafka_still_has_it() -> None:
    revoking = account(revoked=(READ,))

    assert revoked_acls(revoking) == {OWN}
    assert account_acls(revoking, {OWN}) == ()
    assert revoked_acls(account(revoked=(READ,), grants=(READ,))) == frozenset()


def test_a_revoked_grant_still_in_kafka_differs_and_a_tenants_own_acl_does_not() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster("shop")
    created = decisions.create_account(
        memory.registry, memory.context(), cluster.id, "app", Role.LIMITED, [READ]
    )
    one = memory.accept(created).subject
    assert isinstance(one, ServiceAccount)
    memory.complete(created.operation)
    memory.accept(decisions.update_account(memory.registry, memory.context(), one.id, None, []))
    declared = declared_state(memory.registry, memory.registry.need(PhysicalCluster, PHYSICAL))
    user = kafka_user(cluster.tenant, one.account)
    granted = AclEntry(user, "topic", f"{cluster.id}_orders", "literal", "read")
    own = replace(granted, operation="write")

    acls = declared.access.acls | {granted, own}
    actual = ActualState(replace(declared.access, acls=acls), {}, declared.states)

    assert differences(declared, actual) == (
        Difference(Kind.UNDECLARED, "acl", user, f"read on topic {cluster.id}_orders"),
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


def create_acls(gateway: Gateway, key: str, account_id: str) -> None:
    """An allow and a deny ACL, created with an ordinary Kafka client."""
    bindings = [
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
    client = admin(gateway, key)  # must outlive the futures
    for future in client.create_acls(bindings).values():
        future.result(30)


CREATED = {("invoices", "read", "allow"), ("invoices", "write", "deny")}


@pytest.mark.kafka
async def test_acls_created_by_a_tenant_stay_until_their_account_is_deleted(
    harness: PlaneHarness, control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    key = new_key(unique)
    await harness.key(cluster.id, key, SECRET)
    created = await harness.decide(
        lambda r, a: decisions.create_account(r, a, cluster.id, "app", Role.LIMITED, [READ]), ServiceAccount
    )
    await harness.ended(created.operation.id)
    app = created.operation.subject
    user = kafka_user(cluster.tenant, harness.plane.registry.need(ServiceAccount, app).account)

    async def shown() -> set[tuple[str, str, str]]:
        acls = await harness.plane.acls(harness.plane.registry.need(ServiceAccount, app))
        return {(r.name, r.operation, r.permission) for r in acls if r.origin is Origin.TENANT}

    gateway = await started(control_fleet)
    try:
        await asyncio.to_thread(create_acls, gateway, key, app)
    finally:
        await gateway.close()

    async def created_acls_shown() -> bool:
        return await shown() == CREATED

    await eventually(created_acls_shown)
    await harness.as_declared()
    assert await harness.plane.repair() == ()
    changed = await harness.decide(lambda r, a: decisions.update_account(r, a, app, None, []), ServiceAccount)
    await harness.ended(changed.operation.id)
    assert await shown() == CREATED
    now = harness.plane.registry.need(ServiceAccount, app)
    assert (now.grants, now.revoked) == ((), ())
    await harness.as_declared()

    deletion = await harness.decide(lambda r, a: decisions.delete_account(r, a, app, None), ServiceAccount)
    await harness.ended(deletion.operation.id)
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:

        async def deleted() -> bool:
            return await acls.describe(client, AclFilter(principal=f"User:{user}")) == []

        await eventually(deleted)
    await harness.as_declared()


@pytest.mark.kafka
async def test_acls_that_no_tenant_can_have_created_are_reported_and_deleted(
    harness: PlaneHarness, control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    cluster = await harness.create(unique("shop"))
    (owner,) = harness.plane.registry.accounts(cluster.id)
    user = f"User:{kafka_user(cluster.tenant, owner.account)}"
    own = Acl(user, Operation.WRITE, Resource.TOPIC, f"{cluster.id}_x", permission=Permission.DENY)
    created_by_hand = [
        Acl("User:mallory", Operation.READ, Resource.TOPIC, f"{cluster.id}_orders"),
        Acl("User:*", Operation.READ, Resource.TOPIC, f"{cluster.id}_", Pattern.PREFIXED),
        Acl("Group:guests", Operation.READ, Resource.TOPIC, f"{cluster.id}_orders"),
        Acl(user, Operation.READ, Resource.TOPIC, "*"),
        Acl(user, Operation.READ, Resource.TOPIC, f"{cluster.id}_orders", host="10.0.0.1"),
        Acl(user, Operation.ALTER, Resource.CLUSTER, "kafka-cluster", permission=Permission.DENY),
    ]
    async with Client(control_fleet.bootstrap, control_fleet.security()) as client:
        assert set((await acls.create(client, [own, *created_by_hand])).values()) == {None}

        async def reported() -> bool:
            return len(await harness.plane.check()) == len(created_by_hand)

        await eventually(reported)
        assert {(d.kind, d.what) for d in await harness.plane.check()} == {(Kind.UNDECLARED, "acl")}

        await harness.plane.repair()

        async def repaired() -> bool:
            return await harness.plane.check() == ()

        await eventually(repaired)
        assert own in await acls.describe(client, AclFilter(principal=user))
        assert not {*created_by_hand} & {*await acls.describe(client)}
