"""Results of admin clients' methods, as a tenant calls them.

`python -m tools.reference` generates `docs/gateway-clients.md` from this. A result is listed as the test
formats it, an error by the library's name for it.
"""

from __future__ import annotations

from typing import Final

DONE: Final = "done"
OWN: Final = "own alone"  # all of the tenant's own, and nothing of the other tenant
NEVER: Final = "never called"
NOTHING: Final = "null"  # Java: done, without a result
JAVAS_OWN: Final = "true false"
DENIED: Final = "ClusterAuthorizationException"
NO_TOKENS: Final = "DelegationTokenDisabledException"
NOT_OFFERED: Final = "UnsupportedVersionException"
REFUSED: Final = "ClusterAuthorizationFailedError"  # kafka-python's name of the same error

JAVA: Final = {
    # topics
    "createTopics": NOTHING,
    "createPartitions": NOTHING,
    "listTopics": JAVAS_OWN,
    "describeTopics": "2",
    "listOffsets": "0",
    "deleteRecords": NOTHING,
    "describeProducers": "0",
    "deleteTopics": NOTHING,
    "describeLogDirs": JAVAS_OWN,
    "describeReplicaLogDirs": "/0",
    "alterReplicaLogDirs": DENIED,
    # settings
    "incrementalAlterConfigs": NOTHING,
    "describeConfigs": "true false",
    "listConfigResources": JAVAS_OWN,
    "listClientMetricsResources": "0",
    # ACLs
    "describeAcls": "[*] 1",
    "createAcls": NOTHING,
    "deleteAcls": "1",
    # groups
    "alterConsumerGroupOffsets": NOTHING,
    "listConsumerGroupOffsets": "0",
    "listGroups": JAVAS_OWN,
    "listConsumerGroups": JAVAS_OWN,
    "describeConsumerGroups": "0",
    "describeClassicGroups": "0",
    "removeMembersFromConsumerGroup": "UnknownMemberIdException",
    "deleteConsumerGroupOffsets": NOTHING,
    "deleteConsumerGroups": NOTHING,
    # share groups
    "alterShareGroupOffsets": NOTHING,
    "describeShareGroups": "true",
    "listShareGroupOffsets": "1",
    "deleteShareGroupOffsets": NOTHING,
    "deleteShareGroups": NOTHING,
    # streams groups: none exist, and methods shared with other groups find nothing
    "describeStreamsGroups": NOT_OFFERED,
    "listStreamsGroupOffsets": "0",
    "deleteStreamsGroups": "GroupIdNotFoundException",
    "deleteStreamsGroupOffsets": "GroupIdNotFoundException",
    "alterStreamsGroupOffsets": NOTHING,
    # transactions
    "fenceProducers": NOTHING,
    "listTransactions": JAVAS_OWN,
    "describeTransactions": "Empty",
    "forceTerminateTransaction": NOTHING,
    "abortTransaction": NOT_OFFERED,  # between brokers
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
    "registerMetricForSubscription": NOTHING,
    "unregisterMetricFromSubscription": NOTHING,
    "close": NOTHING,
}

CONFLUENT: Final = {
    # topics
    "create_topics": DONE,
    "create_partitions": DONE,
    "list_topics": OWN,
    "describe_topics": "2",
    "list_offsets": "3",
    "delete_records": "1",
    "delete_topics": DONE,
    # settings
    "incremental_alter_configs": DONE,
    "alter_configs": DONE,
    "describe_configs": "70000, false",
    # ACLs
    "describe_acls": "['*'] of 1",
    "create_acls": DONE,
    "delete_acls": "1",
    # groups
    "alter_consumer_group_offsets": DONE,
    "list_consumer_group_offsets": "1",
    "list_consumer_groups": OWN,
    "list_groups": OWN,
    "describe_consumer_groups": "EMPTY",
    "delete_consumer_groups": DONE,
    # the cluster
    "cluster_id": "True",
    "describe_cluster": "ALTER, CREATE, DESCRIBE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE",
    "elect_leaders": "CLUSTER_AUTHORIZATION_FAILED",
    "describe_user_scram_credentials": "0",
    "alter_user_scram_credentials": "CLUSTER_AUTHORIZATION_FAILED",
    # the client itself
    "set_sasl_credentials": DONE,
    "poll": "0",
}

KAFKA_PYTHON: Final = {
    # topics
    "create_topics": DONE,
    "wait_for_topics": DONE,
    "create_partitions": DONE,
    "list_topics": OWN,
    "describe_topics": "2",
    "describe_topic_partitions": "2",
    "list_partition_offsets": "True",
    "delete_records": "1",
    "describe_producers": "1",
    "describe_log_dirs": OWN,
    "alter_replica_log_dirs": REFUSED,
    "delete_topics": DONE,
    # settings
    "alter_configs": "OK",
    "describe_configs": "60000",
    "reset_configs": "OK",
    "list_config_resources": OWN,
    # ACLs
    "describe_acls": "['*'] of 1",
    "create_acls": "1",
    "delete_acls": "1",
    # groups
    "alter_group_offsets": DONE,
    "list_group_offsets": "1",
    "reset_group_offsets": "NoError",
    "list_groups": OWN,
    "describe_groups": "Empty",
    "remove_group_members": "UnknownMemberIdError",
    "delete_group_offsets": "NoError",
    "delete_groups": "OK, OK",
    # transactions
    "list_transactions": OWN,
    "describe_transactions": "True",
    "find_hanging_transactions": "0",
    "abort_transaction": "IncompatibleBrokerVersion",  # between brokers
    # the cluster
    "describe_cluster": "True",
    "describe_features": "True",
    "update_features": REFUSED,
    "describe_metadata_quorum": REFUSED,
    "elect_leaders": REFUSED,
    "alter_partition_reassignments": REFUSED,
    "list_partition_reassignments": REFUSED,
    "describe_user_scram_credentials": "0",
    "alter_user_scram_credentials": "The gateway does not serve this API: see docs/gateway-apis.md.",
    # the client itself
    "api_versions": "True",
    "get_broker_version_data": "True",
    "close": DONE,
}

TABLES: Final = {
    "Java's `Admin`": JAVA,
    "confluent-kafka's `AdminClient`": CONFLUENT,
    "kafka-python's `KafkaAdminClient`": KAFKA_PYTHON,
}

# The results in plain words, for the page.
WORDS: Final = {
    NOTHING: "done",
    DONE: "done",
    "OK": "done",
    "OK, OK": "done",
    "NoError": "done",
    JAVAS_OWN: "the tenant's own and nothing else",
    OWN: "the tenant's own and nothing else",
}
