"""Access rules of service accounts inside Kafka, and whose each of them is. Pure.

A rule has one of two owners. What a role or a grant gives is declared in the registry, and made so in
Kafka. What a tenant made itself, through its gateway, Kafka alone has, as it has the tenant's topics:
`lies_within` tells such rules from those that nobody can have wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.entities import Role
from penstock.model.ids import LogicalClusterId, kafka_user, tenant_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.model.entities import Grant, ServiceAccount

CLUSTER: Final = "cluster"
ALLOW: Final = "allow"
ANY_HOST: Final = "*"
LITERAL: Final = "literal"
PREFIXED: Final = "prefixed"
EVERYTHING: Final = "*"  # a literal name: all of a tenant's own, which is its prefix inside Kafka
BELOW_PREFIX: Final = ("topic", "group", "transactional-id")


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """An ACL. What is declared allows, from any host."""

    user: str
    resource: str
    name: str
    pattern: str
    operation: str
    permission: str = ALLOW
    host: str = ANY_HOST

    def __str__(self) -> str:
        said = "" if self.permission == ALLOW else f"{self.permission} "
        said += f"{self.operation} on {self.resource} {self.name}"
        said += "…" if self.pattern == PREFIXED else ""
        return said if self.host == ANY_HOST else f"{said} from {self.host}"


def account_rules(account: ServiceAccount) -> frozenset[Rule]:
    """What is declared of an account."""
    user = kafka_user(account.tenant, account.account)
    # Opens nothing, and spares the broker a search through all ACLs.
    rules = {Rule(user, CLUSTER, "kafka-cluster", LITERAL, "idempotent-write")}
    if account.role is Role.OWNER:
        prefix = tenant_prefix(account.tenant)
        rules |= {Rule(user, kind, prefix, PREFIXED, "all") for kind in BELOW_PREFIX}
    return frozenset(rules | _granted(account, account.grants))


def revoked_rules(account: ServiceAccount) -> frozenset[Rule]:
    """What was granted once and is to be gone, unless it is declared all the same."""
    return frozenset(_granted(account, account.revoked)) - account_rules(account)


def _granted(account: ServiceAccount, grants: Iterable[Grant]) -> set[Rule]:
    user, prefix = kafka_user(account.tenant, account.account), tenant_prefix(account.tenant)
    rules = set()
    for grant in grants:
        everything = (grant.name, grant.pattern) == (EVERYTHING, LITERAL)
        name, pattern = (prefix, PREFIXED) if everything else (prefix + grant.name, grant.pattern)
        rules.add(Rule(user, grant.resource, name, pattern, grant.operation))
    return rules


def lies_within(rule: Rule) -> bool:
    """Can this user's tenant have made it through its gateway: about what is its own, from anywhere?"""
    tenant, _, account = rule.user.partition("_")
    prefix = tenant_prefix(LogicalClusterId(tenant))
    named = rule.name != prefix or rule.pattern == PREFIXED
    within = bool(account) and named and rule.name.startswith(prefix)
    return within and rule.resource in BELOW_PREFIX and rule.host == ANY_HOST


class Origin(StrEnum):
    """Whose a rule is, and so where it is changed."""

    ROLE = "role"  # every owner has it
    GRANTED = "granted"  # the registry has it
    TENANT = "tenant"  # made through Kafka, which alone has it


@dataclass(frozen=True, slots=True, order=True)
class OwnRule:
    """A rule of an account as its tenant calls it."""

    resource: str
    name: str
    pattern: str
    operation: str
    permission: str
    origin: Origin


def own_rules(account: ServiceAccount, found: Iterable[Rule]) -> tuple[OwnRule, ...]:
    """What an account may do: what is declared, and what of the found its tenant made besides."""
    declared, granted = account_rules(account), _granted(account, account.grants)
    prefix = tenant_prefix(account.tenant)
    shown = []
    for rule in {*declared, *found} - revoked_rules(account):
        if lies_within(rule):
            origin = Origin.GRANTED if rule in granted else Origin.ROLE if rule in declared else Origin.TENANT
            name, pattern = rule.name.removeprefix(prefix), rule.pattern
            if not name:
                name, pattern = EVERYTHING, LITERAL
            shown.append(OwnRule(rule.resource, name, pattern, rule.operation, rule.permission, origin))
    return tuple(sorted(shown))
