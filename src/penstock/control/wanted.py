"""What is declared of a tenant, as Kafka and the gateways should have it. Pure.

A user for each service account, rights below the tenant's prefix and nowhere else, byte rates as a
fuse behind the gateway's own quota; and the record of `_penstock.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.control.placing import brokers_of
from penstock.control.rules import account_rules
from penstock.control.units import TABLES, quota_of
from penstock.model.entities import ClusterState, LogicalCluster, PhysicalCluster
from penstock.model.ids import kafka_user
from penstock.model.tenantstate import AccountState, KeyState, TenantState
from penstock.quota.fuse import fuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.registry import Registry
    from penstock.control.rules import Rule
    from penstock.model.entities import ServiceAccount


@dataclass(frozen=True, slots=True)
class Rights:
    users: Mapping[str, int] = field(default_factory=dict)  # user → generation of its password
    rules: frozenset[Rule] = frozenset()
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # user → Kafka's quota → value

    def __or__(self, other: Rights) -> Rights:
        return Rights({**self.users, **other.users}, self.rules | other.rules, {**self.rates, **other.rates})


NOTHING: Final = Rights()


def account_rights(account: ServiceAccount, quota: Mapping[str, float]) -> Rights:
    user = kafka_user(account.tenant, account.account)
    return Rights({user: account.generation}, account_rules(account), {user: fuse(quota)})


def tenant_rights(registry: Registry, cluster: LogicalCluster) -> Rights:
    """Everything this tenant has inside Kafka; nothing once it is being deleted."""
    if cluster.state is ClusterState.DELETING:
        return NOTHING
    quota = quota_for(registry, cluster)
    rights = NOTHING
    for account in registry.accounts(cluster.id):
        rights |= account_rights(account, quota)
    return rights


def quota_for(registry: Registry, cluster: LogicalCluster) -> dict[str, float]:
    physical = registry.get(PhysicalCluster, cluster.cluster)
    table = TABLES[physical.capacity] if physical is not None else TABLES["laptop"]
    return quota_of(cluster.units, table, cluster.overrides)


def tenant_state(registry: Registry, tenant: str) -> TenantState | None:
    """What gateways should know; None if they should know nothing of it."""
    cluster = registry.get(LogicalCluster, tenant)
    if cluster is None or cluster.state not in (ClusterState.READY, ClusterState.MOVING):
        return None
    physical = registry.get(PhysicalCluster, cluster.cluster)
    if physical is None:
        return None
    accounts = [account for account in registry.accounts(cluster.id) if account.ready]
    ready = {account.id for account in accounts}
    return TenantState(
        id=cluster.id,
        accounts=tuple(AccountState(account.account, account.generation) for account in accounts),
        keys=tuple(
            KeyState(key.id, key.account, key.secret_sha256)
            for key in registry.keys(cluster.id)
            if key.account in ready
        ),
        brokers=brokers_of(cluster, physical),
        network=cluster.network,
        quota=quota_for(registry, cluster),
    )
