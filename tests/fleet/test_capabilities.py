"""The capability table that follows from a probe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.fleet.adopted.capabilities import Capability, ClusterProbe, capability_table, require
from penstock.model.errors.fleet import CapabilityMissing

EVERYTHING = ClusterProbe(
    operations=frozenset(range(16)),
    features={"group.version": 1, "share.version": 1, "metadata.version": 30},
    racks={1: "a", 2: "b"},
    configs={
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "remote.log.storage.system.enable": "true",
    },
)


def missing(probe: ClusterProbe) -> dict[Capability, str]:
    return {row.capability: row.reason for row in capability_table(probe) if not row.available}


def test_a_cluster_that_allows_everything_has_every_capability() -> None:
    assert missing(EVERYTHING) == {}
    assert {row.capability for row in capability_table(EVERYTHING)} == set(Capability)


@pytest.mark.parametrize(
    ("probe", "capability", "reason"),
    [
        (
            replace(EVERYTHING, operations=frozenset({5, 8, 10, 11})),
            Capability.REASSIGNMENTS,
            "lacks the cluster rights Alter",
        ),
        (replace(EVERYTHING, racks={1: "a", 2: None}), Capability.ZONES, "not set on brokers 2"),
        (replace(EVERYTHING, features={"group.version": 1}), Capability.SHARE_GROUPS, "KIP-932"),
        (replace(EVERYTHING, configs={}), Capability.FOLLOWER_FETCH, "may not read the configuration"),
        (replace(EVERYTHING, acls_error="SECURITY_DISABLED"), Capability.ACLS, "SECURITY_DISABLED"),
        (replace(EVERYTHING, users_error="denied"), Capability.USERS, "denied"),
        (replace(EVERYTHING, quotas_error="denied"), Capability.CLIENT_QUOTAS, "denied"),
        (
            replace(EVERYTHING, operations=frozenset({5, 7, 8, 10})),
            Capability.CLIENT_QUOTAS,
            "lacks the cluster rights AlterConfigs",
        ),
        (replace(EVERYTHING, metrics_error="no address"), Capability.METRICS, "no address"),
        (replace(EVERYTHING, controllers_error="refused"), Capability.ISR_EXCLUSION, "refused"),
        (replace(EVERYTHING, controllers_error="refused"), Capability.SHADOW_LEADER, "refused"),
        (replace(EVERYTHING, acls_error="no authorizer"), Capability.SHADOW_LEADER, "no authorizer"),
        (replace(EVERYTHING, features={"metadata.version": 29}), Capability.SHADOW_LEADER, "version 29"),
        (replace(EVERYTHING, racks={1: "a"}), Capability.SHADOW_LEADER, "fewer than two"),
    ],
)
def test_a_missing_capability_has_a_reason(probe: ClusterProbe, capability: Capability, reason: str) -> None:
    assert reason in missing(probe)[capability]


def test_a_feature_that_lacks_its_capability_is_an_error_with_advice() -> None:
    rows = capability_table(replace(EVERYTHING, racks={1: None}))
    with pytest.raises(CapabilityMissing, match="zones") as caught:
        require(rows, Capability.ZONES, feature="cells", cluster="east")
    assert "broker.rack" in caught.value.advice
    require(rows, Capability.TOPICS, feature="cells", cluster="east")
