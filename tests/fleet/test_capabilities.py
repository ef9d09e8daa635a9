"""The capability table, from what a probe saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.fleet.capabilities import Capability, Seen, capability_table, require
from penstock.model.errors.fleet import CapabilityMissing

EVERYTHING = Seen(
    operations=frozenset(range(16)),
    features={"group.version": 1, "share.version": 1},
    racks={1: "a", 2: "b"},
    configs={
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "remote.log.storage.system.enable": "true",
    },
)


def missing(seen: Seen) -> dict[Capability, str]:
    return {row.capability: row.reason for row in capability_table(seen) if not row.there}


def test_a_cluster_that_allows_everything_has_every_capability() -> None:
    assert missing(EVERYTHING) == {}
    assert {row.capability for row in capability_table(EVERYTHING)} == set(Capability)


@pytest.mark.parametrize(
    ("seen", "capability", "reason"),
    [
        (
            replace(EVERYTHING, operations=frozenset({5, 8, 10, 11})),
            Capability.REASSIGNMENTS,
            "may not Alter",
        ),
        (replace(EVERYTHING, racks={1: "a", 2: None}), Capability.ZONES, "not set on 2"),
        (replace(EVERYTHING, features={"group.version": 1}), Capability.SHARE_GROUPS, "KIP-932"),
        (replace(EVERYTHING, configs={}), Capability.FOLLOWER_FETCH, "may not be read"),
        (replace(EVERYTHING, acls_refused="SECURITY_DISABLED"), Capability.ACLS, "SECURITY_DISABLED"),
        (replace(EVERYTHING, users_refused="denied"), Capability.USERS, "denied"),
        (replace(EVERYTHING, quotas_refused="denied"), Capability.CLIENT_QUOTAS, "denied"),
        (
            replace(EVERYTHING, operations=frozenset({5, 7, 8, 10})),
            Capability.CLIENT_QUOTAS,
            "may not AlterConfigs",
        ),
        (replace(EVERYTHING, metrics_refused="no address"), Capability.METRICS, "no address"),
    ],
)
def test_what_is_lacking_is_named_with_its_reason(seen: Seen, capability: Capability, reason: str) -> None:
    assert reason in missing(seen)[capability]


def test_a_feature_without_its_capability_says_which_one_and_the_way_out() -> None:
    rows = capability_table(replace(EVERYTHING, racks={1: None}))
    with pytest.raises(CapabilityMissing, match="zones") as caught:
        require(rows, Capability.ZONES, feature="cells", cluster="east")
    assert "broker.rack" in caught.value.advice
    require(rows, Capability.TOPICS, feature="cells", cluster="east")
