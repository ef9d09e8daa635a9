"""Java's admin client, method by method, as a tenant: what each comes to, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.gateway import Access

pytestmark = pytest.mark.kafka

DONE = "null"  # done, and there is nothing to be told
OWN = "true false"  # one's own is there, the other tenant's is not
DENIED = "ClusterAuthorizationException"
NO_TOKENS = "DelegationTokenDisabledException"
NOT_OFFERED = "UnsupportedVersionException"
EXPECTED = {
    # topics
    "createTopics": DONE,
    "createPartitions": DONE,
    "listTopics": OWN,
    "describeTopics": "2",
    "listOffsets": "0",
    "deleteRecords": DONE,
    "describeProducers": "0",
    "deleteTopics": DONE,
    "describeLogDirs": OWN,
    "describeReplicaLogDirs": "/0",
    "alterReplicaLogDirs": DENIED,
    # settings
    "incrementalAlterConfigs": DONE,
    "describeConfigs": "true false",
    "listConfigResources": OWN,
    "listClientMetricsResources": "0",
    # access rules
    "describeAcls": "[*] 1",
    "createAcls": DONE,
    "deleteAcls": "1",
    # groups
    "alterConsumerGroupOffsets": DONE,
    "listConsumerGroupOffsets": "0",
    "listGroups": OWN,
    "listConsumerGroups": OWN,
    "describeConsumerGroups": "0",
    "describeClassicGroups": "0",
    "removeMembersFromConsumerGroup": "UnknownMemberIdException",
    "deleteConsumerGroupOffsets": DONE,
    "deleteConsumerGroups": DONE,
    # share groups
    "alterShareGroupOffsets": DONE,
    "describeShareGroups": "true",
    "listShareGroupOffsets": "1",
    "deleteShareGroupOffsets": DONE,
    "deleteShareGroups": DONE,
    # streams groups: there are none, and what they share with others finds nothing
    "describeStreamsGroups": NOT_OFFERED,
    "listStreamsGroupOffsets": "0",
    "deleteStreamsGroups": "GroupIdNotFoundException",
    "deleteStreamsGroupOffsets": "GroupIdNotFoundException",
    "alterStreamsGroupOffsets": DONE,
    # transactions
    "fenceProducers": DONE,
    "listTransactions": OWN,
    "describeTransactions": "Empty",
    "forceTerminateTransaction": DONE,
    "abortTransaction": NOT_OFFERED,  # brokers among themselves
    # the cluster
    "describeCluster": "[ALTER, CREATE, DESCRIBE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE]",
    "describeFeatures": "true",
    "updateFeatures": DENIED,
    "describeMetadataQuorum": DENIED,
    "unregisterBroker": DENIED,
    "electLeaders": DENIED,
    "alterPartitionReassignments": DENIED,
    "listPartitionReassignments": DENIED,
    "describeClientQuotas": "0",
    "alterClientQuotas": DENIED,
    "describeUserScramCredentials": "0",
    "alterUserScramCredentials": DENIED,
    "createDelegationToken": NO_TOKENS,
    "renewDelegationToken": NO_TOKENS,
    "expireDelegationToken": NO_TOKENS,
    "describeDelegationToken": NO_TOKENS,
    "addRaftVoter": DENIED,
    "removeRaftVoter": DENIED,
    # the client itself
    "clientInstanceId": "true",
    "metrics": "true",
    "registerMetricForSubscription": DONE,
    "unregisterMetricFromSubscription": DONE,
    "close": DONE,
}


def test_every_method_of_javas_admin_client_does_what_the_table_says(
    java: Callable[..., str], ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    printed = java(
        "EveryMethod",
        ada.bootstrap,
        unique("orders"),
        unique("readers"),
        ada.key,
        ada.secret,
        bob.key,
        bob.secret,
    )

    lines = [line.split("|") for line in printed.splitlines() if line.count("|") == 2]
    for name in ("t0", "t1"):
        assert {method: result for who, method, result in lines if who == name} == EXPECTED
