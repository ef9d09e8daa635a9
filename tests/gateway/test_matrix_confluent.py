"""Every method of confluent-kafka's admin client as two tenants, compared with the table.

Run by `make test-peers`: when a group's coordinator returned an error, this client has ended the whole
process with a segmentation fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    IsolationLevel,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)

from tests.gateway.admin_scenarios import SECONDS, AdminScenario, run_both, with_uncalled_methods
from tests.gateway.tables import CONFLUENT
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from tests.harness.gateway import Access

pytestmark = [pytest.mark.kafka, pytest.mark.peers]
_ANY: Any = None  # matches any name, principal and host
ANY_ACL = AclBindingFilter(
    ResourceType.ANY, _ANY, ResourcePatternType.ANY, _ANY, _ANY, AclOperation.ANY, AclPermissionType.ANY
)


def of(futures: Mapping[Any, Future[Any]]) -> Any:
    """The result of the last future; the first failure is raised."""
    result = None
    for future in futures.values():
        result = future.result(SECONDS)
    return result


class Librdkafkas(AdminScenario):
    def run(self) -> None:
        self.client = AdminClient(self.access.client_config())
        self.topics()
        self.settings()
        self.rules()
        self.groups()
        self.platform()

    def topics(self) -> None:
        client, topic = self.client, self.topic
        first = TopicPartition(topic, 0)
        self.call(
            "create_topics",
            lambda: of(client.create_topics([NewTopic(topic, 1, 3), NewTopic(self.alone, 1, 3)])),
        )
        self.call("create_partitions", lambda: of(client.create_partitions([NewPartitions(topic, 2)])))
        self.settle(topic, 2)
        self.settle(self.alone, 1)
        producer = Producer(self.access.client_config(linger_ms=0))
        for _ in range(3):
            producer.produce(topic, b"x", partition=0)
        assert producer.flush(SECONDS) == 0
        self.call(
            "list_topics", lambda: self.seen(client.list_topics(timeout=SECONDS).topics, topic, self.alone)
        )
        self.call(
            "describe_topics", lambda: len(of(client.describe_topics(TopicCollection([topic]))).partitions)
        )
        self.call(
            "list_offsets",
            lambda: (
                of(
                    client.list_offsets(
                        {first: OffsetSpec.latest()},  # type: ignore[no-untyped-call]  # confluent-kafka has no types here
                        isolation_level=IsolationLevel.READ_UNCOMMITTED,
                    )
                ).offset
            ),
        )
        self.call(
            "delete_records", lambda: of(client.delete_records([TopicPartition(topic, 0, 1)])).low_watermark
        )

    def settings(self) -> None:
        client = self.client
        change = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
        self.call(
            "incremental_alter_configs",
            lambda: of(
                client.incremental_alter_configs(
                    [ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[change])]
                )
            ),
        )
        with pytest.warns(DeprecationWarning, match="deprecated"):
            self.call(
                "alter_configs",
                lambda: of(
                    client.alter_configs(
                        [ConfigResource(ResourceType.TOPIC, self.topic, set_config={"retention.ms": "70000"})]
                    )
                ),
            )

        def described() -> str:
            requested = [
                ConfigResource(ResourceType.TOPIC, self.topic),
                ConfigResource(ResourceType.BROKER, "1"),
            ]
            results: dict[str, Any] = {}

            def arrived() -> bool:  # settings reach each broker separately
                described = client.describe_configs(requested).items()
                results.update({resource.name: future.result(SECONDS) for resource, future in described})
                return bool(results[self.topic]["retention.ms"].value == "70000")

            wait_for(arrived, what="the setting")
            kept = results[self.topic]["retention.ms"].value
            return f"{kept}, {results['1']['auto.create.topics.enable'].value}"

        self.call("describe_configs", described)

    def rules(self) -> None:
        client = self.client
        own = f"User:{self.access.account}"
        rule = AclBinding(
            ResourceType.TOPIC,
            self.topic,
            ResourcePatternType.LITERAL,
            own,
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        which = AclBindingFilter(
            ResourceType.TOPIC,
            self.topic,
            ResourcePatternType.LITERAL,
            _ANY,
            _ANY,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )

        def described() -> str:
            results = client.describe_acls(ANY_ACL).result(SECONDS)
            return f"{sorted({a.name for a in results})} of {len({a.principal for a in results})}"

        def deleted() -> int:
            gone: list[Any] = []
            while not gone:  # ACLs reach each broker separately
                gone = of(client.delete_acls([which]))
            return len(gone)

        self.call("describe_acls", described)
        self.call("create_acls", lambda: of(client.create_acls([rule])))
        self.call("delete_acls", deleted)

    def groups(self) -> None:
        client, group = self.client, self.group
        place = TopicPartition(self.topic, 0, 1)

        def committed(name: str) -> bool:
            requested = ConsumerGroupTopicPartitions(name, [place])
            (results,) = of(client.alter_consumer_group_offsets([requested])).topic_partitions
            # A group's coordinator may have to load first; librdkafka reports that and does not retry.
            return results.error is None

        def altered() -> None:
            for name in (group, self.hermits):
                wait_for(lambda: committed(name), what="offsets to be committed")  # noqa: B023  (called at once)

        self.call("alter_consumer_group_offsets", altered)
        self.call(
            "list_consumer_group_offsets",
            lambda: (
                of(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
                .topic_partitions[0]
                .offset
            ),
        )
        self.call(
            "list_consumer_groups",
            lambda: self.seen(
                [one.group_id for one in client.list_consumer_groups().result(SECONDS).valid],
                group,
                self.hermits,
            ),
        )
        with pytest.warns(DeprecationWarning, match="deprecated"):
            self.call(
                "list_groups",
                lambda: self.seen(
                    [one.id for one in client.list_groups(timeout=SECONDS)],
                    group,
                    self.hermits,
                ),
            )
        self.call("describe_consumer_groups", lambda: of(client.describe_consumer_groups([group])).state.name)

    def platform(self) -> None:
        client, access = self.client, self.access
        self.call("cluster_id", lambda: client.cluster_id(SECONDS) == access.tenant.id)

        def described() -> str:
            results = client.describe_cluster(include_authorized_operations=True).result(SECONDS)
            assert results.cluster_id == access.tenant.id
            assert {f"{node.host}:{node.port}" for node in results.nodes} == set(access.bootstrap.split(","))
            return ", ".join(sorted(operation.name for operation in results.authorized_operations))

        self.call("describe_cluster", described)
        places = [TopicPartition(self.topic, 0)]
        self.call(
            "elect_leaders", lambda: client.elect_leaders(ElectionType.PREFERRED, places).result(SECONDS)
        )
        self.call(
            "describe_user_scram_credentials",
            lambda: len(client.describe_user_scram_credentials().result(SECONDS)),
        )
        gone = UserScramCredentialDeletion("me", ScramMechanism.SCRAM_SHA_512)
        self.call("alter_user_scram_credentials", lambda: of(client.alter_user_scram_credentials([gone])))
        self.call("set_sasl_credentials", lambda: client.set_sasl_credentials(access.key, access.secret))
        self.call("poll", lambda: client.poll(0))

    def delete_everything(self) -> None:
        client = self.client
        self.call(
            "delete_consumer_groups", lambda: of(client.delete_consumer_groups([self.group, self.hermits]))
        )
        self.call("delete_topics", lambda: of(client.delete_topics([self.topic, self.alone])))

    def names(self) -> set[str]:
        groups = self.client.list_consumer_groups().result(SECONDS).valid
        return {*self.client.list_topics(timeout=SECONDS).topics, *(one.group_id for one in groups)}


def test_every_method_of_confluents_admin_client_matches_the_table(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    both = run_both([Librdkafkas(access, topic, group, number) for number, access in enumerate((ada, bob))])

    for results in both:
        assert with_uncalled_methods(results, AdminClient) == CONFLUENT
