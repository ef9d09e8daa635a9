"""Compares what is declared with what Kafka has: users, ACLs, rates, topics, groups' owners, states.

`differences` is pure and knows nothing of how either side was read. Differences that may be
repaired are: what is missing is given, what nobody declared is taken. Rules that a tenant made within
its own walls are its own, and no difference. Topics of a tenant that does not exist are told and
never deleted here: only an operation that was asked for destroys data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.control.rules import lies_within, revoked_rules
from penstock.control.wanted import NOTHING, Rights, tenant_rights, tenant_state
from penstock.model.entities import ClusterState, LogicalCluster, PhysicalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.control.registry import Registry
    from penstock.control.rules import Rule
    from penstock.model.tenantstate import TenantState


class Kind(StrEnum):
    MISSING = "missing"
    UNDECLARED = "undeclared"
    DIFFERENT = "different"
    MISPLACED = "misplaced"


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    kind: Kind
    what: str  # `user`, `rule`, `rate`, `topic`, `state`
    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Declared:
    """Of one physical cluster."""

    rights: Rights = NOTHING
    revoked: frozenset[Rule] = frozenset()  # that Kafka may still have
    tenants: Mapping[str, frozenset[int]] = field(default_factory=dict)  # → brokers; empty: everywhere
    states: Mapping[str, TenantState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    rights: Rights = NOTHING
    topics: Mapping[str, frozenset[int]] = field(default_factory=dict)  # → brokers with a replica
    states: Mapping[str, TenantState] = field(default_factory=dict)


def declared(registry: Registry, physical: PhysicalCluster, *, fused: bool = True) -> Declared:
    """Without rates where the platform may not set them."""
    rights = NOTHING
    revoked: frozenset[Rule] = frozenset()
    tenants: dict[str, frozenset[int]] = {}
    states: dict[str, TenantState] = {}
    for cluster in registry.all(LogicalCluster):
        if cluster.cluster != physical.id:
            continue
        rights |= tenant_rights(registry, cluster)
        revoked = revoked.union(*map(revoked_rules, registry.accounts(cluster.id)))
        state = tenant_state(registry, cluster.id)
        # While it is provisioned, moved or deleted, anything of its own may be anywhere.
        settled = cluster.state is ClusterState.READY and state is not None
        tenants[cluster.id] = frozenset(state.brokers if settled and state is not None else ())
        if state is not None:
            states[cluster.id] = state
    if not fused:
        rights = replace(rights, rates={})
    return Declared(rights, revoked, tenants, states)


def differences(wanted: Declared, found: Found) -> tuple[Difference, ...]:
    return tuple(sorted((*_rights(wanted, found), *_topics(wanted, found), *_states(wanted, found))))


def _rights(wanted: Declared, found: Found) -> Iterator[Difference]:
    for user in sorted(wanted.rights.users.keys() - found.rights.users.keys()):
        yield Difference(Kind.MISSING, "user", user)
    for user in sorted(found.rights.users.keys() - wanted.rights.users.keys()):
        yield Difference(Kind.UNDECLARED, "user", user)
    for rule in sorted(wanted.rights.rules - found.rights.rules):
        yield Difference(Kind.MISSING, "rule", rule.user, str(rule))
    for rule in undeclared_rules(wanted, found):
        yield Difference(Kind.UNDECLARED, "rule", rule.user, str(rule))
    for user in sorted(wanted.rights.rates.keys() | found.rights.rates.keys()):
        asked, has = wanted.rights.rates.get(user, {}), found.rights.rates.get(user, {})
        if dict(asked) != dict(has):
            kind = Kind.DIFFERENT if asked and has else Kind.MISSING if asked else Kind.UNDECLARED
            yield Difference(kind, "rate", user, f"declared {dict(asked)}, found {dict(has)}")


def undeclared_rules(wanted: Declared, found: Found) -> list[Rule]:
    """What neither the registry nor the tenant itself can have wanted."""
    more = found.rights.rules - wanted.rights.rules
    own = {rule for rule in more - wanted.revoked if rule.user in wanted.rights.users and lies_within(rule)}
    return sorted(more - own)


def _topics(wanted: Declared, found: Found) -> Iterator[Difference]:
    for topic, brokers in sorted(found.topics.items()):
        tenant = topic.partition("_")[0]
        if tenant not in wanted.tenants:
            yield Difference(Kind.UNDECLARED, "topic", topic, "of a logical cluster that is not there")
        elif wanted.tenants[tenant] and not brokers <= wanted.tenants[tenant]:
            outside = sorted(brokers - wanted.tenants[tenant])
            yield Difference(Kind.MISPLACED, "topic", topic, f"has replicas on {outside}, outside its cell")


def _states(wanted: Declared, found: Found) -> Iterator[Difference]:
    for tenant in sorted(wanted.states.keys() | found.states.keys()):
        asked, has = wanted.states.get(tenant), found.states.get(tenant)
        if asked is None:
            yield Difference(Kind.UNDECLARED, "state", tenant)
        elif has is None:
            yield Difference(Kind.MISSING, "state", tenant)
        elif asked.says() != has.says():
            yield Difference(Kind.DIFFERENT, "state", tenant)
