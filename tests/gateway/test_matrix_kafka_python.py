"""Every method of kafka-python's admin client as two tenants, compared with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import (
    ACL,
    AbortTransactionSpec,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    MemberToRemove,
    OffsetSpec,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from kafka.errors import CoordinatorNotAvailableError
from kafka.structs import OffsetAndMetadata, TopicPartition, TopicPartitionReplica

from kafka import KafkaAdminClient, KafkaProducer
from tests.gateway.admin_scenarios import AdminScenario, run_both, with_uncalled_methods
from tests.gateway.tables import KAFKA_PYTHON
from tests.gateway.test_kafka_python import login
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka
RECORDS = 3
ANY_ACL = ACLFilter(
    None,
    None,
    ACLOperation.ANY,
    ACLPermissionType.ANY,
    ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
)


def only(result: Any) -> Any:
    """The one value of a mapping, or the one element."""
    (value,) = result.values() if isinstance(result, dict) else result
    return value


def error(result: Any) -> str:
    """Errors that are returned instead of raised are classes or instances."""
    return result.__name__ if isinstance(result, type) else type(result).__name__


class KafkaPythons(AdminScenario):
    def run(self) -> None:
        self.client = KafkaAdminClient(**login(self.access))
        self.first = TopicPartition(self.topic, 0)
        self.writer = f"{self.group}-writer"
        self.topics()
        self.settings()
        self.rules()
        self.groups()
        self.transactions()
        self.platform()

    def topics(self) -> None:
        client, topic, first = self.client, self.topic, self.first
        new = {name: {"num_partitions": 1, "replication_factor": 3} for name in (topic, self.alone)}
        self.call("create_topics", lambda: client.create_topics(new) and None)
        self.call("wait_for_topics", lambda: client.wait_for_topics([topic, self.alone]))
        self.settle(topic, 1)
        self.call("create_partitions", lambda: client.create_partitions({topic: 2}) and None)
        self.settle(topic, 2)
        self.settle(self.alone, 1)
        producer = KafkaProducer(**login(self.access), transactional_id=self.writer)
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(RECORDS):
            producer.send(topic, b"x", partition=0)
        producer.commit_transaction()
        producer.close()
        self.call("list_topics", lambda: self.seen(client.list_topics(), topic, self.alone))
        self.call("describe_topics", lambda: len(only(client.describe_topics([topic]))["partitions"]))
        self.call(
            "describe_topic_partitions",
            lambda: len(only(client.describe_topic_partitions([topic])["topics"])["partitions"]),
        )
        self.call(
            "list_partition_offsets",
            lambda: only(client.list_partition_offsets({first: OffsetSpec.LATEST})).offset >= RECORDS,
        )
        self.call("delete_records", lambda: only(client.delete_records({first: 1}))["low_watermark"])
        self.call(
            "describe_producers", lambda: len(only(client.describe_producers([first])).active_producers)
        )

        def sizes() -> str:
            result = [
                entry["name"]
                for broker in client.describe_log_dirs(brokers=[1])
                for place in broker["log_dirs"]
                for entry in place["topics"]
            ]
            return self.seen(result, topic, self.alone)

        self.call("describe_log_dirs", sizes)
        replica = TopicPartitionReplica(topic, 0, 1)
        self.call(
            "alter_replica_log_dirs", lambda: error(only(client.alter_replica_log_dirs({replica: "/x"})))
        )

    def settings(self) -> None:
        client = self.client

        def ours(configs: Any) -> list[ConfigResource]:
            return [ConfigResource(ConfigResourceType.TOPIC, self.topic, configs)]

        def of(result: Any) -> Any:
            return result["topic"][self.topic]

        self.call("alter_configs", lambda: of(client.alter_configs(ours({"retention.ms": "60000"}))))

        def described() -> str:
            seen = ""

            def arrived() -> bool:  # settings reach each broker separately
                nonlocal seen
                settings = of(client.describe_configs(ours(["retention.ms"])))
                seen = str(settings.get("retention.ms", {}).get("value"))  # defaults are left out
                return seen == "60000"

            wait_for(arrived, what="the setting")
            return seen

        self.call("describe_configs", described)
        self.call("reset_configs", lambda: of(client.reset_configs(ours(["retention.ms"]))))
        self.call(
            "list_config_resources",
            lambda: self.seen(only(client.list_config_resources(["TOPIC"])), self.topic, self.alone),
        )

    def rules(self) -> None:
        client = self.client
        rule = ACL(
            f"User:{self.access.account}",
            "*",
            ACLOperation.READ,
            ACLPermissionType.ALLOW,
            ResourcePattern(ResourceType.TOPIC, self.topic),
        )
        which = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.TOPIC, self.topic, ACLResourcePatternType.LITERAL),
        )

        def described() -> str:
            result, _ = client.describe_acls(ANY_ACL)
            names = sorted({rule.resource_pattern.resource_name for rule in result})
            return f"{names} of {len({rule.principal for rule in result})}"

        def deleted() -> int:
            gone: list[Any] = []
            while not gone:  # ACLs reach each broker separately
                ((_, gone, _),) = client.delete_acls([which])
            return len(gone)

        self.call("describe_acls", described)
        self.call("create_acls", lambda: len(client.create_acls([rule])["succeeded"]))
        self.call("delete_acls", deleted)

    def groups(self) -> None:
        client, group, first = self.client, self.group, self.first
        place = {first: OffsetAndMetadata(1, "", -1)}

        def committed(name: str) -> bool:
            # A group's coordinator may have to load first, which kafka-python reports.
            try:
                return error(only(client.alter_group_offsets(name, place))) == "NoError"
            except CoordinatorNotAvailableError:
                return False

        def altered() -> None:
            for name in (group, self.hermits):
                wait_for(lambda: committed(name), what="offsets to be committed")  # noqa: B023  (called at once)

        self.call("alter_group_offsets", altered)
        self.call("list_group_offsets", lambda: client.list_group_offsets([group])[group][first].offset)
        self.call(
            "reset_group_offsets",
            lambda: error(only(client.reset_group_offsets(group, {first: OffsetSpec.LATEST}))["error"]),
        )
        self.call(
            "list_groups",
            lambda: self.seen([one["group_id"] for one in client.list_groups()], group, self.hermits),
        )
        self.call("describe_groups", lambda: only(client.describe_groups([group]))["group_state"])
        self.call(
            "remove_group_members",
            lambda: error(only(client.remove_group_members(group, [MemberToRemove(member_id="nobody")]))),
        )
        self.call("delete_group_offsets", lambda: error(only(client.delete_group_offsets(group, [first]))))
        altered()

    def transactions(self) -> None:
        client, writer = self.client, self.writer
        self.call(
            "list_transactions",
            lambda: self.seen(
                [one.transactional_id for some in client.list_transactions().values() for one in some],
                writer,
            ),
        )
        self.call("describe_transactions", lambda: bool(only(client.describe_transactions([writer])).state))
        self.call("find_hanging_transactions", lambda: len(client.find_hanging_transactions()))
        spec = AbortTransactionSpec(self.first, 1, 0, 0)
        self.call("abort_transaction", lambda: client.abort_transaction(spec))

    def platform(self) -> None:
        client, access = self.client, self.access

        def described() -> bool:
            result = client.describe_cluster()
            places = {f"{broker['host']}:{broker['port']}" for broker in result["brokers"]}
            return result["cluster_id"] == access.tenant.id and places == set(access.bootstrap.split(","))

        self.call("describe_cluster", described)
        self.call("describe_features", lambda: "metadata.version" in client.describe_features())
        self.call("update_features", lambda: client.update_features({"metadata.version": 1}))
        self.call("describe_metadata_quorum", lambda: client.describe_metadata_quorum())
        self.call("elect_leaders", lambda: client.elect_leaders(0, {self.topic: [0]}))
        self.call(
            "alter_partition_reassignments", lambda: client.alter_partition_reassignments({self.first: [1]})
        )
        self.call("list_partition_reassignments", lambda: client.list_partition_reassignments())
        self.call("describe_user_scram_credentials", lambda: len(client.describe_user_scram_credentials()))
        gone = UserScramCredentialDeletion("me", ScramMechanism.SCRAM_SHA_512)
        self.call("alter_user_scram_credentials", lambda: only(client.alter_user_scram_credentials([gone])))
        self.call("api_versions", lambda: bool(client.api_versions()))
        self.call("get_broker_version_data", lambda: client.get_broker_version_data(1) is not None)

    def delete_everything(self) -> None:
        client = self.client
        self.call(
            "delete_groups",
            lambda: ", ".join(client.delete_groups([self.group, self.hermits]).values()),
        )
        self.call("delete_topics", lambda: client.delete_topics([self.topic, self.alone]) and None)

    def close(self) -> None:
        self.call("close", self.client.close)

    def names(self) -> set[str]:
        return {*self.client.list_topics(), *(one["group_id"] for one in self.client.list_groups())}


def test_every_method_of_kafka_pythons_admin_client_matches_the_table(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    both = run_both([KafkaPythons(access, topic, group, number) for number, access in enumerate((ada, bob))])

    for results in both:
        assert with_uncalled_methods(results, KafkaAdminClient) == KAFKA_PYTHON
