"""The logical clusters of health checkers, whose partitions are pinned to brokers for probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.health.schedule import TOPICS
from penstock.model.entities import LogicalCluster
from penstock.model.events import ProbeRole
from penstock.model.ids import LogicalClusterId, tenant_prefix

if TYPE_CHECKING:
    from penstock.control.registry import Registry

CHECKER_LABEL: Final = ("penstock", "health")


def is_checker(tenant: LogicalCluster | None) -> bool:
    label, value = CHECKER_LABEL
    return tenant is not None and tenant.labels.get(label) == value


def lone_probe_topics(registry: Registry, cluster: str) -> frozenset[str]:
    """Topics of a physical cluster whose partitions have one replica each, so any broker's loss stops one."""
    checkers = [each for each in registry.all(LogicalCluster) if each.cluster == cluster and is_checker(each)]
    return frozenset(
        f"{tenant_prefix(LogicalClusterId(each.id))}{TOPICS[ProbeRole.ALONE]}" for each in checkers
    )
