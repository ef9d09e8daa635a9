"""The declared state compared with Kafka: every kind of difference is created and reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control import decisions
from penstock.control.checker import ActualState, DeclaredState, Difference, Kind, declared_state, differences
from penstock.control.desired_state import KafkaAccess, quota_for, tenant_access, tenant_state
from penstock.control.registry import Put
from penstock.model.entities import ClusterState, Grant, PhysicalCluster, Role
from penstock.model.ids import kafka_user
from penstock.model.tenant_acls import AclEntry
from penstock.quota.kafka_quota import backstop_quotas
from tests.control.in_memory_control import PHYSICAL, InMemoryControl


@pytest.fixture
def memory() -> InMemoryControl:
    control = InMemoryControl.with_cells(2)
    control.cluster("shop")
    return control


def declared(memory: InMemoryControl) -> DeclaredState:
    return declared_state(memory.registry, memory.registry.need(PhysicalCluster, PHYSICAL))


def as_declared(memory: InMemoryControl) -> ActualState:
    expected = declared(memory)
    topic = f"{memory.registry.cluster('shop').id}_orders"
    return ActualState(expected.access, {topic: expected.tenants[topic.partition("_")[0]]}, expected.states)


def test_the_declared_state_has_no_differences(memory: InMemoryControl) -> None:
    assert differences(declared(memory), as_declared(memory)) == ()


def test_a_tenants_acls_are_below_its_prefix_only(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    access = tenant_access(memory.registry, cluster)

    outside = [acl for acl in access.acls if not acl.name.startswith(f"{cluster.id}_")]

    assert [(acl.resource, acl.operation) for acl in outside] == [("cluster", "idempotent-write")]
    assert all(user.startswith(f"{cluster.id}_sa-") for user in access.users)


def test_a_limited_account_has_what_it_is_granted(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    (account,) = memory.registry.accounts(cluster.id)
    grant = Grant("topic", "orders", "read")
    memory.registry.accept([Put(account.changed(1, role=Role.LIMITED, grants=(grant,)))])

    acls = tenant_access(memory.registry, cluster).acls

    user = kafka_user(cluster.tenant, account.account)
    assert AclEntry(user, "topic", f"{cluster.id}_orders", "literal", "read") in acls
    assert not [acl for acl in acls if acl.operation == "all"]


def test_missing_and_undeclared_users_acls_and_client_quotas_are_reported(memory: InMemoryControl) -> None:
    actual = as_declared(memory)
    (user,) = actual.access.users
    acl = AclEntry("lkc-zzzzzz_sa-zzzzzz", "topic", "x", "literal", "read")
    changed_by_hand = replace(
        actual, access=KafkaAccess({acl.user: 0}, frozenset({acl}), {user: {"producer_byte_rate": 1.0}})
    )

    reported = {(d.kind, d.what) for d in differences(declared(memory), changed_by_hand)}

    assert reported == {
        (Kind.MISSING, "user"),
        (Kind.UNDECLARED, "user"),
        (Kind.MISSING, "acl"),
        (Kind.UNDECLARED, "acl"),
        (Kind.DIFFERENT, "client-quota"),
    }


def test_every_user_of_a_tenant_has_its_whole_quota_as_a_backstop(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    decided = decisions.create_account(memory.registry, memory.context(), cluster.id, "app", Role.LIMITED, ())
    memory.complete(memory.accept(decided).operation)

    client_quotas = tenant_access(memory.registry, cluster).client_quotas

    assert len(client_quotas) == 2
    assert all(
        each == backstop_quotas(quota_for(memory.registry, cluster)) for each in client_quotas.values()
    )


def test_client_quotas_are_not_missed_where_the_platform_may_not_set_them(memory: InMemoryControl) -> None:
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)
    actual = as_declared(memory)
    without = replace(actual, access=replace(actual.access, client_quotas={}))

    assert differences(declared_state(memory.registry, physical, sets_client_quotas=False), without) == ()
    assert {d.what for d in differences(declared(memory), without)} == {"client-quota"}


def test_topics_of_unknown_tenants_and_replicas_outside_the_cell_are_reported(
    memory: InMemoryControl,
) -> None:
    cluster = memory.registry.cluster("shop")
    everywhere = frozenset(range(1, 7))
    topics = {"lkc-zzzzzz_orphan": everywhere, f"{cluster.id}_orders": everywhere}

    reported = differences(declared(memory), replace(as_declared(memory), topics=topics))

    assert [(d.kind, d.name) for d in reported] == [
        (Kind.MISPLACED, f"{cluster.id}_orders"),
        (Kind.UNDECLARED, "lkc-zzzzzz_orphan"),
    ]


def test_a_moving_tenants_topics_may_be_on_any_broker(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    memory.registry.accept([Put(cluster.changed(1, state=ClusterState.MOVING, moving_from="cell-9"))])
    topics = {f"{cluster.id}_orders": frozenset(range(1, 7))}

    reported = differences(declared(memory), replace(as_declared(memory), topics=topics))

    assert reported == ()


def test_wrong_published_states_are_reported(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    state = tenant_state(memory.registry, cluster.id)
    assert state is not None
    changed = {cluster.id: replace(state, brokers=()), "lkc-zzzzzz": replace(state, id="lkc-zzzzzz")}

    assert differences(declared(memory), replace(as_declared(memory), states=changed)) == (
        Difference(Kind.DIFFERENT, "state", cluster.id),
        Difference(Kind.UNDECLARED, "state", "lkc-zzzzzz"),
    )
    assert differences(declared(memory), replace(as_declared(memory), states={})) == (
        Difference(Kind.MISSING, "state", cluster.id),
    )


def test_a_cluster_that_is_being_deleted_has_nothing(memory: InMemoryControl) -> None:
    cluster = memory.registry.cluster("shop")
    memory.registry.accept([Put(cluster.changed(1, state=ClusterState.DELETING))])

    expected = declared(memory)

    assert (dict(expected.access.users), expected.access.acls, dict(expected.states)) == ({}, frozenset(), {})
