"""What an adopted cluster allows the platform to do, as a table of capabilities.

An adopted cluster may lack rights, features or settings. `capability_table` turns the result of a probe
into one row per capability: available or not, and why not. A feature checks the capability it needs with
`require`, and fails with its name and a remedy instead of with a Kafka error much later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.model.entities import MissingCapability
from penstock.model.errors.fleet import CapabilityMissing
from penstock.model.shadow_ids import METADATA_VERSION, METADATA_VERSIONS_TESTED

# Codes of operations, which are bits of Kafka's "authorized operations" on the cluster resource.
CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = 5, 7, 8, 9, 10, 11


class Capability(StrEnum):
    TOPICS = "topics"
    BROKER_CONFIGS = "broker-configs"
    REASSIGNMENTS = "reassignments"
    USERS = "users"
    ACLS = "acls"
    ISOLATION = "isolation"
    CLIENT_QUOTAS = "client-quotas"
    ZONES = "zones"
    FOLLOWER_FETCH = "follower-fetch"
    CONSUMER_GROUPS = "consumer-groups"
    SHARE_GROUPS = "share-groups"
    TIERED_STORAGE = "tiered-storage"
    METRICS = "metrics"
    ISR_EXCLUSION = "isr-exclusion"
    SHADOW_LEADER = "shadow-leader"


@dataclass(frozen=True, slots=True)
class ClusterProbe:
    """The result of a probe. An `…_error` is the text of Kafka's error, None if the call was allowed."""

    operations: frozenset[int]  # allowed on the cluster
    features: Mapping[str, int]  # feature → finalized level
    racks: Mapping[int, str | None]  # broker → rack
    configs: Mapping[str, str | None] = field(default_factory=dict)  # of one broker, empty if denied
    users_error: str | None = None
    scram_error: str | None = None
    acls_error: str | None = None
    open_acls: tuple[str, ...] = ()  # ACLs of all users that cover tenants' names
    quotas_error: str | None = None
    metrics_error: str | None = None
    controllers_error: str | None = None  # on the controller listener
    grant: str = ""  # the command that grants the missing cluster rights


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    capability: Capability
    available: bool
    reason: str  # why not; empty when available
    needed_for: str
    way_out: str


def capability_table(probe: ClusterProbe) -> tuple[CapabilityRow, ...]:
    rows = []
    for capability, (missing, needed_for, way_out) in _RULES.items():
        reason = missing(probe)
        by_grant = bool(reason and way_out is _RIGHTS_WAY_OUT and probe.grant)
        remedy = f"Grant it as an administrator of that cluster: {probe.grant}" if by_grant else way_out
        rows.append(CapabilityRow(capability, not reason, reason, needed_for, remedy))
    return tuple(rows)


def missing_capabilities(rows: tuple[CapabilityRow, ...]) -> tuple[MissingCapability, ...]:
    """For the registry."""
    return tuple(
        MissingCapability(row.capability, row.needed_for, row.reason, row.way_out)
        for row in rows
        if not row.available
    )


def require(rows: tuple[CapabilityRow, ...], capability: Capability, *, feature: str, cluster: str) -> None:
    """Raise CapabilityMissing if the cluster lacks what a feature needs."""
    row = next(row for row in rows if row.capability is capability)
    if not row.available:
        raise CapabilityMissing(
            feature=feature, capability=capability, cluster=cluster, reason=row.reason, way_out=row.way_out
        )


def _operations(*needed: int) -> Callable[[ClusterProbe], str]:
    names = {CREATE: "Create", ALTER: "Alter", DESCRIBE: "Describe"}
    names |= {DESCRIBE_CONFIGS: "DescribeConfigs", ALTER_CONFIGS: "AlterConfigs"}

    def missing(probe: ClusterProbe) -> str:
        lacking = [names[code] for code in needed if code not in probe.operations]
        return f"this user lacks the cluster rights {' and '.join(lacking)}" if lacking else ""

    return missing


def _feature(name: str, title: str) -> Callable[[ClusterProbe], str]:
    return lambda probe: "" if probe.features.get(name, 0) > 0 else f"feature {name} ({title}) is not enabled"


def _config(name: str, expected: str) -> Callable[[ClusterProbe], str]:
    def missing(probe: ClusterProbe) -> str:
        if not probe.configs:
            return "this user may not read the configuration of brokers"
        value = probe.configs.get(name)
        return "" if value is not None and value.endswith(expected) else f"{name} is {value!r}"

    return missing


def _isolation(probe: ClusterProbe) -> str:
    if probe.acls_error:
        return probe.acls_error
    if probe.configs.get("allow.everyone.if.no.acl.found") == "true":
        return "allow.everyone.if.no.acl.found is true: every user may use what has no ACL"
    return f"these ACLs apply to tenants, too: {'; '.join(probe.open_acls)}" if probe.open_acls else ""


def _zones(probe: ClusterProbe) -> str:
    without = sorted(broker for broker, rack in probe.racks.items() if not rack)
    return f"broker.rack is not set on brokers {', '.join(map(str, without))}" if without else ""


def _shadow_leader(probe: ClusterProbe) -> str:
    """A shadow registers as a broker, its mirrors are closed by ACLs, and real brokers store them."""
    level = probe.features.get(METADATA_VERSION, 0)
    if error := probe.controllers_error or probe.acls_error:
        return error
    if level not in METADATA_VERSIONS_TESTED:
        tested = ", ".join(map(str, METADATA_VERSIONS_TESTED))
        return f"metadata version {level} is not tested with shadow brokers; tested: {tested}"
    return "" if len(probe.racks) >= SHADOWED_BROKERS_MIN else "it has fewer than two brokers"


SHADOWED_BROKERS_MIN: Final = 2
_RIGHTS_WAY_OUT: Final = "Grant the platform's user that right on the cluster, or make it a super user."
_Rule = tuple[Callable[[ClusterProbe], str], str, str]
_RULES: Mapping[Capability, _Rule] = {
    Capability.TOPICS: (
        _operations(CREATE, ALTER, DESCRIBE), "internal topics, tenants' topics", _RIGHTS_WAY_OUT,
    ),
    Capability.BROKER_CONFIGS: (
        _operations(DESCRIBE_CONFIGS, ALTER_CONFIGS), "certificate rotation, throttles", _RIGHTS_WAY_OUT,
    ),
    Capability.REASSIGNMENTS: (_operations(ALTER), "balancing, moving tenants", _RIGHTS_WAY_OUT),
    Capability.USERS: (
        lambda probe: probe.users_error or probe.scram_error or "",
        "tenants, because gateways log in as their Kafka users",
        "Enable SCRAM-SHA-512 on that listener and let the platform's user alter the cluster.",
    ),
    Capability.ACLS: (
        lambda probe: probe.acls_error or "", "limited service accounts, ACLs of tenants",
        "Set authorizer.class.name on the brokers.",
    ),
    Capability.ISOLATION: (
        _isolation, "isolation of tenants by Kafka's authorizer, behind the gateways'",
        "Set an authorizer that denies by default, and limit ACLs of User:* to names of others.",
    ),
    Capability.CLIENT_QUOTAS: (
        lambda probe: probe.quotas_error or _operations(ALTER_CONFIGS)(probe),
        "Kafka client quotas behind the gateway's quotas", _RIGHTS_WAY_OUT,
    ),
    Capability.ZONES: (_zones, "cells, rolls by zone", "Set broker.rack on every broker."),
    Capability.FOLLOWER_FETCH: (
        _config("replica.selector.class", "RackAwareReplicaSelector"), "fetching from the nearest replica",
        "Set replica.selector.class to Kafka's RackAwareReplicaSelector.",
    ),
    Capability.CONSUMER_GROUPS: (
        _feature("group.version", "KIP-848"), "consumer groups with the KIP-848 protocol",
        "Upgrade the feature with kafka-features.",
    ),
    Capability.SHARE_GROUPS: (
        _feature("share.version", "KIP-932"), "share groups", "Upgrade the feature with kafka-features.",
    ),
    Capability.TIERED_STORAGE: (
        _config("remote.log.storage.system.enable", "true"), "tiered topics, backup",
        "Enable remote.log.storage.system.enable with a storage plugin.",
    ),
    Capability.METRICS: (
        lambda probe: probe.metrics_error or "", "load, balancing, health",
        "Adopt it with --metrics <host:port>[,…] of brokers that run the Prometheus JMX exporter.",
    ),
    Capability.ISR_EXCLUSION: (
        lambda probe: probe.controllers_error or "", "excluding a slow broker from ISRs while it replicates",
        "Let the platform's user log in on the controller listener, and grant it ClusterAction.",
    ),
    Capability.SHADOW_LEADER: (
        _shadow_leader, "being the destination of a cluster link",
        ("Let the platform's user log in on the controller listener with ClusterAction, set an authorizer, "
        "and use a tested metadata version."),
    ),
}  # fmt: skip
