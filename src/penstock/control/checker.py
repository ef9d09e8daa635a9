"""Compares the declared state with Kafka: users, ACLs, client quotas, topics and published tenant states.

`differences` is pure and does not know how either side was read. Most differences can be repaired:
missing things are created, undeclared ones deleted. ACLs that a tenant created on its own names are no
difference. Topics of an unknown tenant are reported and never deleted: only a requested operation
destroys data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.control.acls import revoked_acls
from penstock.control.desired_state import NO_ACCESS, KafkaAccess, tenant_access, tenant_state
from penstock.control.health.probe_tenants import is_checker
from penstock.model.entities import ClusterState, LogicalCluster, PhysicalCluster
from penstock.model.tenant_acls import is_within_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.control.registry import Registry
    from penstock.model.tenant_acls import AclEntry
    from penstock.model.tenant_state import TenantState


class Kind(StrEnum):
    MISSING = "missing"
    UNDECLARED = "undeclared"
    DIFFERENT = "different"
    MISPLACED = "misplaced"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    kind: Kind
    what: str  # `user`, `acl`, `client-quota`, `topic`, `state`
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """What the registry declares for one physical cluster."""

    access: KafkaAccess = NO_ACCESS
    revoked: frozenset[AclEntry] = frozenset()  # Kafka may still have them
    tenants: Mapping[str, frozenset[int]] = field(default_factory=dict)  # → brokers; empty: any broker
    states: Mapping[str, TenantState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActualState:
    access: KafkaAccess = NO_ACCESS
    topics: Mapping[str, frozenset[int]] = field(default_factory=dict)  # → brokers with a replica
    states: Mapping[str, TenantState] = field(default_factory=dict)


def declared_state(
    registry: Registry,
    physical: PhysicalCluster,
    *,
    sets_client_quotas: bool = True,
    sets_acls: bool = True,
) -> DeclaredState:
    """`sets_…`: false if the platform cannot set them on this cluster."""
    access = NO_ACCESS
    revoked: frozenset[AclEntry] = frozenset()
    tenants: dict[str, frozenset[int]] = {}
    states: dict[str, TenantState] = {}
    for cluster in registry.all(LogicalCluster):
        if cluster.cluster != physical.id:
            continue
        access |= tenant_access(registry, cluster)
        revoked = revoked.union(*map(revoked_acls, registry.accounts(cluster.id)))
        state = tenant_state(registry, cluster.id)
        # While a tenant is provisioned, moved or deleted, its replicas may be on any broker; probes always.
        anywhere = cluster.state is not ClusterState.READY or is_checker(cluster)
        tenants[cluster.id] = frozenset(() if state is None or anywhere else state.brokers)
        if state is not None:
            states[cluster.id] = state
    if not sets_client_quotas:
        access = replace(access, client_quotas={})
    if not sets_acls:
        access = replace(access, acls=frozenset())
    return DeclaredState(access, revoked, tenants, states)


def known_tenants_only(actual: ActualState, declared: DeclaredState) -> ActualState:
    """Without what resembles a tenant's and belongs to none: on an adopted cluster it is others'."""

    def is_known(name: str) -> bool:
        return name.partition("_")[0] in declared.tenants

    access = KafkaAccess(
        {user: generation for user, generation in actual.access.users.items() if is_known(user)},
        frozenset(a for a in actual.access.acls if is_known(a.user) or is_known(a.name)),
        {user: quota for user, quota in actual.access.client_quotas.items() if is_known(user)},
    )
    topics = {name: brokers for name, brokers in actual.topics.items() if is_known(name)}
    return ActualState(access, topics, actual.states)


def differences(declared: DeclaredState, actual: ActualState) -> tuple[Difference, ...]:
    return tuple(sorted((*_access(declared, actual), *_topics(declared, actual), *_states(declared, actual))))


def _access(declared: DeclaredState, actual: ActualState) -> Iterator[Difference]:
    for user in sorted(declared.access.users.keys() - actual.access.users.keys()):
        yield Difference(Kind.MISSING, "user", user)
    for user in sorted(actual.access.users.keys() - declared.access.users.keys()):
        yield Difference(Kind.UNDECLARED, "user", user)
    for acl in sorted(declared.access.acls - actual.access.acls):
        yield Difference(Kind.MISSING, "acl", acl.user, str(acl))
    for acl in undeclared_acls(declared, actual):
        yield Difference(Kind.UNDECLARED, "acl", acl.user, str(acl))
    for user in sorted(declared.access.client_quotas.keys() | actual.access.client_quotas.keys()):
        expected = dict(declared.access.client_quotas.get(user, {}))
        present = dict(actual.access.client_quotas.get(user, {}))
        if expected != present:
            kind = Kind.DIFFERENT if expected and present else Kind.MISSING if expected else Kind.UNDECLARED
            yield Difference(kind, "client-quota", user, f"declared {expected}, found {present}")


def undeclared_acls(declared: DeclaredState, actual: ActualState) -> list[AclEntry]:
    """ACLs that neither the registry declares nor the tenant can have created."""
    more = actual.access.acls - declared.access.acls
    own = {
        acl for acl in more - declared.revoked if acl.user in declared.access.users and is_within_tenant(acl)
    }
    return sorted(more - own)


def _topics(declared: DeclaredState, actual: ActualState) -> Iterator[Difference]:
    for topic, brokers in sorted(actual.topics.items()):
        tenant = topic.partition("_")[0]
        if tenant not in declared.tenants:
            yield Difference(Kind.UNDECLARED, "topic", topic, "of an unknown logical cluster")
        elif declared.tenants[tenant] and not brokers <= declared.tenants[tenant]:
            outside = sorted(brokers - declared.tenants[tenant])
            yield Difference(Kind.MISPLACED, "topic", topic, f"has replicas on {outside}, outside its cell")


def _states(declared: DeclaredState, actual: ActualState) -> Iterator[Difference]:
    for tenant in sorted(declared.states.keys() | actual.states.keys()):
        expected, present = declared.states.get(tenant), actual.states.get(tenant)
        if expected is None:
            yield Difference(Kind.UNDECLARED, "state", tenant)
        elif present is None:
            yield Difference(Kind.MISSING, "state", tenant)
        elif expected.content() != present.content():
            yield Difference(Kind.DIFFERENT, "state", tenant)
