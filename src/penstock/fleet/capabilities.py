"""What somebody else's cluster lets the platform do, as a table that names each thing.

An adopted cluster may lack rights, features or settings. What was seen of it (`Seen`) becomes one
row a capability: there or not, and why not. A feature that needs one asks by name and, where it
is missing, fails with that name and the way out, instead of with Kafka's error much later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.model.errors.fleet import CapabilityMissing

# Bits of Kafka's "authorized operations" on the cluster itself, by the code of the operation.
CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 5, 7, 8, 10, 11


class Capability(StrEnum):
    TOPICS = "topics"
    BROKER_CONFIGS = "broker-configs"
    REASSIGNMENTS = "reassignments"
    USERS = "users"
    ACLS = "acls"
    CLIENT_QUOTAS = "client-quotas"
    ZONES = "zones"
    FOLLOWER_FETCH = "follower-fetch"
    CONSUMER_GROUPS = "consumer-groups"
    SHARE_GROUPS = "share-groups"
    TIERED_STORAGE = "tiered-storage"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probe found. A refusal is the text Kafka refused with; None means it was allowed."""

    operations: frozenset[int]  # allowed on the cluster
    features: Mapping[str, int]  # feature → level in force
    racks: Mapping[int, str | None]  # broker → rack
    configs: Mapping[str, str | None] = field(default_factory=dict)  # of one broker, empty if refused
    users_refused: str | None = None
    acls_refused: str | None = None
    quotas_refused: str | None = None
    metrics_refused: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    capability: Capability
    there: bool
    reason: str  # why not; empty when it is there
    needed_for: str
    way_out: str


def capability_table(seen: Seen) -> tuple[Row, ...]:
    rows = []
    for capability, (missing, needed_for, way_out) in _RULES.items():
        reason = missing(seen)
        rows.append(Row(capability, not reason, reason, needed_for, way_out))
    return tuple(rows)


def require(rows: tuple[Row, ...], capability: Capability, *, feature: str, cluster: str) -> None:
    """Raise, by name, what a feature needs and the cluster lacks."""
    row = next(row for row in rows if row.capability is capability)
    if not row.there:
        raise CapabilityMissing(
            feature=feature, capability=capability, cluster=cluster, reason=row.reason, way_out=row.way_out
        )


def _operations(*needed: int) -> Callable[[Seen], str]:
    names = {CREATE: "Create", ALTER: "Alter", DESCRIBE: "Describe"}
    names |= {DESCRIBE_CONFIGS: "DescribeConfigs", ALTER_CONFIGS: "AlterConfigs"}

    def missing(seen: Seen) -> str:
        lacking = [names[code] for code in needed if code not in seen.operations]
        return f"this user may not {' and '.join(lacking)} on the cluster" if lacking else ""

    return missing


def _feature(name: str, title: str) -> Callable[[Seen], str]:
    return lambda seen: "" if seen.features.get(name, 0) > 0 else f"feature {name} ({title}) is not in force"


def _config(name: str, wanted: str) -> Callable[[Seen], str]:
    def missing(seen: Seen) -> str:
        if not seen.configs:
            return "the brokers' configuration may not be read"
        value = seen.configs.get(name)
        return "" if value is not None and value.endswith(wanted) else f"{name} is {value!r}"

    return missing


def _zones(seen: Seen) -> str:
    without = sorted(broker for broker, rack in seen.racks.items() if not rack)
    return f"broker.rack is not set on {', '.join(map(str, without))}" if without else ""


_RIGHTS_WAY_OUT: Final = "Give the platform's user that right on the cluster, or make it a super user."
_Rule = tuple[Callable[[Seen], str], str, str]
_RULES: Mapping[Capability, _Rule] = {
    Capability.TOPICS: (
        _operations(CREATE, ALTER, DESCRIBE), "internal topics, tenants' topics", _RIGHTS_WAY_OUT,
    ),
    Capability.BROKER_CONFIGS: (
        _operations(DESCRIBE_CONFIGS, ALTER_CONFIGS), "certificate rotation, throttles", _RIGHTS_WAY_OUT,
    ),
    Capability.REASSIGNMENTS: (_operations(ALTER), "balancing, moving tenants", _RIGHTS_WAY_OUT),
    Capability.USERS: (
        lambda seen: seen.users_refused or "", "tenants' own Kafka users",
        "Enable SCRAM and let the platform's user alter the cluster.",
    ),
    Capability.ACLS: (
        lambda seen: seen.acls_refused or "", "the second wall between tenants",
        "Set authorizer.class.name on the brokers.",
    ),
    Capability.CLIENT_QUOTAS: (
        lambda seen: seen.quotas_refused or _operations(ALTER_CONFIGS)(seen),
        "quotas' fuse in the broker", _RIGHTS_WAY_OUT,
    ),
    Capability.ZONES: (_zones, "cells, rolls by zone", "Set broker.rack on every broker."),
    Capability.FOLLOWER_FETCH: (
        _config("replica.selector.class", "RackAwareReplicaSelector"), "fetching in one's own zone",
        "Set replica.selector.class to Kafka's RackAwareReplicaSelector.",
    ),
    Capability.CONSUMER_GROUPS: (
        _feature("group.version", "KIP-848"), "consumer groups of the new protocol",
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
        lambda seen: seen.metrics_refused or "", "load, balancing, health",
        "Adopt it with --metrics <host:port>[,…] of brokers that run the Prometheus JMX agent.",
    ),
}  # fmt: skip
