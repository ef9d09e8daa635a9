"""What is declared against what was found: every kind of difference is planted and told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control import decisions
from penstock.control.checker import Declared, Difference, Found, Kind, declared, differences
from penstock.control.registry import Put
from penstock.control.rules import Rule
from penstock.control.wanted import Rights, quota_for, tenant_rights, tenant_state
from penstock.model.entities import ClusterState, Grant, PhysicalCluster, Role
from penstock.model.ids import kafka_user
from penstock.quota.fuse import fuse
from tests.control.ground import PHYSICAL, Paper


@pytest.fixture
def paper() -> Paper:
    made = Paper.with_cells(2)
    made.cluster("shop")
    return made


def wanted(paper: Paper) -> Declared:
    return declared(paper.registry, paper.registry.need(PhysicalCluster, PHYSICAL))


def as_declared(paper: Paper) -> Found:
    asked = wanted(paper)
    topic = f"{paper.registry.cluster('shop').id}_orders"
    return Found(asked.rights, {topic: asked.tenants[topic.partition("_")[0]]}, asked.states)


def test_what_is_as_declared_does_not_differ(paper: Paper) -> None:
    assert differences(wanted(paper), as_declared(paper)) == ()


def test_a_tenant_s_rights_lie_below_its_prefix_and_nowhere_else(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    rights = tenant_rights(paper.registry, cluster)

    outside = [rule for rule in rights.rules if not rule.name.startswith(f"{cluster.id}_")]

    assert [(rule.resource, rule.operation) for rule in outside] == [("cluster", "idempotent-write")]
    assert all(user.startswith(f"{cluster.id}_sa-") for user in rights.users)


def test_a_limited_account_has_what_it_is_granted(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    (account,) = paper.registry.accounts(cluster.id)
    grant = Grant("topic", "orders", "read")
    paper.registry.accept([Put(account.changed(1, role=Role.LIMITED, grants=(grant,)))])

    rules = tenant_rights(paper.registry, cluster).rules

    user = kafka_user(cluster.tenant, account.account)
    assert Rule(user, "topic", f"{cluster.id}_orders", "literal", "read") in rules
    assert not [rule for rule in rules if rule.operation == "all"]


def test_missing_and_undeclared_users_rules_and_rates_are_told(paper: Paper) -> None:
    seen = as_declared(paper)
    (user,) = seen.rights.users
    rule = Rule("lkc-zzzzzz_sa-zzzzzz", "topic", "x", "literal", "read")
    planted = replace(
        seen, rights=Rights({rule.user: 0}, frozenset({rule}), {user: {"producer_byte_rate": 1.0}})
    )

    told = {(d.kind, d.what) for d in differences(wanted(paper), planted)}

    assert told == {
        (Kind.MISSING, "user"),
        (Kind.UNDECLARED, "user"),
        (Kind.MISSING, "rule"),
        (Kind.UNDECLARED, "rule"),
        (Kind.DIFFERENT, "rate"),
    }


def test_every_user_of_a_tenant_has_its_whole_quota_as_its_fuse(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    decided = decisions.create_account(paper.registry, paper.ask(), cluster.id, "app", Role.LIMITED, ())
    paper.carry_out(paper.accept(decided).operation)

    rates = tenant_rights(paper.registry, cluster).rates

    assert len(rates) == 2
    assert all(each == fuse(quota_for(paper.registry, cluster)) for each in rates.values())


def test_where_the_platform_may_not_set_rates_none_are_missed(paper: Paper) -> None:
    physical = paper.registry.need(PhysicalCluster, PHYSICAL)
    seen = as_declared(paper)
    without = replace(seen, rights=replace(seen.rights, rates={}))

    assert differences(declared(paper.registry, physical, fused=False), without) == ()
    assert {d.what for d in differences(wanted(paper), without)} == {"rate"}


def test_topics_of_nobody_and_replicas_outside_the_cell_are_told(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    everywhere = frozenset(range(1, 7))
    topics = {"lkc-zzzzzz_orphan": everywhere, f"{cluster.id}_orders": everywhere}

    told = differences(wanted(paper), replace(as_declared(paper), topics=topics))

    assert [(d.kind, d.name) for d in told] == [
        (Kind.MISPLACED, f"{cluster.id}_orders"),
        (Kind.UNDECLARED, "lkc-zzzzzz_orphan"),
    ]


def test_while_it_moves_its_topics_may_be_anywhere(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    paper.registry.accept([Put(cluster.changed(1, state=ClusterState.MOVING, moving_from="cell-9"))])
    topics = {f"{cluster.id}_orders": frozenset(range(1, 7))}

    told = differences(wanted(paper), replace(as_declared(paper), topics=topics))

    assert told == ()


def test_states_that_gateways_should_not_have_are_told(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    state = tenant_state(paper.registry, cluster.id)
    assert state is not None
    changed = {cluster.id: replace(state, brokers=()), "lkc-zzzzzz": replace(state, id="lkc-zzzzzz")}

    assert differences(wanted(paper), replace(as_declared(paper), states=changed)) == (
        Difference(Kind.DIFFERENT, "state", cluster.id),
        Difference(Kind.UNDECLARED, "state", "lkc-zzzzzz"),
    )
    assert differences(wanted(paper), replace(as_declared(paper), states={})) == (
        Difference(Kind.MISSING, "state", cluster.id),
    )


def test_a_cluster_that_is_being_deleted_has_nothing(paper: Paper) -> None:
    cluster = paper.registry.cluster("shop")
    paper.registry.accept([Put(cluster.changed(1, state=ClusterState.DELETING))])

    asked = wanted(paper)

    assert (dict(asked.rights.users), asked.rights.rules, dict(asked.states)) == ({}, frozenset(), {})
