"""The desired state of a tenant in Kafka and at the gateways, derived from the registry. Pure.

In Kafka: a user for each service account, ACLs below the tenant's prefix, and client quotas as a backstop
behind the gateways' quotas. At the gateways: the tenant's record of `_penstock.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.control.acls import declared_acls
from penstock.control.capacity_units import TABLES, quota_of
from penstock.control.cluster_placement import brokers_of
from penstock.model.entities import ClusterState, LogicalCluster, PhysicalCluster
from penstock.model.ids import kafka_user
from penstock.model.tenant_state import AccountState, KeyState, TenantState
from penstock.quota.kafka_quota import backstop_quotas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.registry import Registry
    from penstock.model.entities import ServiceAccount
    from penstock.model.tenant_acls import AclEntry


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Users, ACLs and client quotas of tenants inside Kafka."""

    users: Mapping[str, int] = field(default_factory=dict)  # user → password generation
    acls: frozenset[AclEntry] = frozenset()
    client_quotas: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # user → name → value

    def __or__(self, other: KafkaAccess) -> KafkaAccess:
        return KafkaAccess(
            {**self.users, **other.users},
            self.acls | other.acls,
            {**self.client_quotas, **other.client_quotas},
        )


NO_ACCESS: Final = KafkaAccess()


def account_access(account: ServiceAccount, quota: Mapping[str, float]) -> KafkaAccess:
    user = kafka_user(account.tenant, account.account)
    return KafkaAccess({user: account.generation}, declared_acls(account), {user: backstop_quotas(quota)})


def tenant_access(registry: Registry, cluster: LogicalCluster) -> KafkaAccess:
    """Everything that a tenant should have inside Kafka; nothing once it is being deleted."""
    if cluster.state is ClusterState.DELETING:
        return NO_ACCESS
    quota = quota_for(registry, cluster)
    access = NO_ACCESS
    for account in registry.accounts(cluster.id):
        access |= account_access(account, quota)
    return access


def quota_for(registry: Registry, cluster: LogicalCluster) -> dict[str, float]:
    physical = registry.get(PhysicalCluster, cluster.cluster)
    table = TABLES[physical.capacity] if physical is not None else TABLES["laptop"]
    return quota_of(cluster.units, table, cluster.overrides)


def tenant_state(registry: Registry, tenant: str) -> TenantState | None:
    """The record for the tenant's gateways; None if they must not serve it."""
    cluster = registry.get(LogicalCluster, tenant)
    if cluster is None or cluster.state not in (ClusterState.READY, ClusterState.MOVING):
        return None
    physical = registry.get(PhysicalCluster, cluster.cluster)
    if physical is None:
        return None
    brokers = brokers_of(cluster, physical)
    states = {b: state for b, state in registry.broker_states(physical.id).items() if b in brokers}
    accounts = [account for account in registry.accounts(cluster.id) if account.ready]
    ready = {account.id for account in accounts}
    return TenantState(
        id=cluster.id,
        accounts=tuple(
            AccountState(account.account, account.generation, account.role) for account in accounts
        ),
        keys=tuple(
            KeyState(key.id, key.account, key.secret_sha256, key.expires_ms)
            for key in registry.keys(cluster.id)
            if key.account in ready
        ),
        brokers=brokers,
        cordoned=tuple(sorted(broker for broker, state in states.items() if not state.takes_replicas)),
        demoted=tuple(sorted(broker for broker, state in states.items() if not state.leads)),
        network=cluster.network,
        quota=quota_for(registry, cluster),
        auto_create_topics=cluster.auto_create_topics,
    )
