"""confluent-kafka as two tenants with the same names at once: what each sees, and what it does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from penstock.model.durability import Deleted, Intent, named_subject
from tests.harness.fleet import wait_for
from tests.harness.gateway import wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka
SECONDS = 30.0


def admin(access: Access) -> AdminClient:
    return AdminClient(access.client_config())


def create(access: Access, *topics: str, partitions: int = 2) -> None:
    client = admin(access)
    futures = client.create_topics([NewTopic(name, partitions, 3) for name in topics])
    for name, future in futures.items():
        future.result(SECONDS)
        asyncio.run(wait_for_topic(access, name))


def watermarks(access: Access, topic: str) -> tuple[int, int]:
    """First and end offset of partition 0."""
    consumer = Consumer(access.client_config(group_id="unused"))
    offsets: tuple[int, int] = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
    consumer.close()
    return offsets


def produce(access: Access, topic: str, values: list[str], *, partition: int = -1, **config: object) -> None:
    producer = Producer(access.client_config(linger_ms=0, **config))
    errors: list[Any] = []
    for value in values:
        producer.produce(
            topic,
            value.encode(),
            partition=partition,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(SECONDS) == 0
    assert not any(errors)


def consume(access: Access, topics: list[str], group: str, count: int, **config: object) -> list[str]:
    """Read so many values and commit. Any other record would come before the end of the partitions."""
    consumer = Consumer(
        access.client_config(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **config)
    )
    consumer.subscribe(topics)
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{len(values)} of {count} came"
        assert message.error() is None, message.error()
        values.append((message.value() or b"").decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_two_tenants_with_the_same_topic_name_have_separate_records(
    ada: Access, bob: Access, unique: Callable[[str], str], acks: object
) -> None:
    topic, group = unique("orders"), unique("readers")
    create(ada, topic)
    create(bob, topic)

    produce(ada, topic, [f"ada-{n}" for n in range(20)], acks=acks)
    produce(bob, topic, [f"bob-{n}" for n in range(20)], acks=acks, enable_idempotence=acks == "all")

    assert consume(ada, [topic], group, 20) == sorted(f"ada-{n}" for n in range(20))
    assert consume(bob, [topic], group, 20) == sorted(f"bob-{n}" for n in range(20))


def test_metadata_shows_only_the_tenants_topics_and_the_gateways_addresses(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    mine, theirs = unique("mine"), unique("theirs")
    create(ada, mine)
    create(bob, theirs)

    client = admin(ada)
    seen = client.list_topics(timeout=SECONDS)

    assert mine in seen.topics
    assert theirs not in seen.topics
    assert not any(name.startswith(("lkc-", "_")) for name in seen.topics)
    assert str(seen.cluster_id) == ada.tenant.id
    offered = set(ada.bootstrap.split(","))
    assert {f"{broker.host}:{broker.port}" for broker in seen.brokers.values()} == offered


def test_a_transaction_commits_records_and_offsets_or_neither(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    source, target, group, writer = unique("in"), unique("out"), unique("readers"), unique("writer")
    for access, name in ((ada, "ada"), (bob, "bob")):
        create(access, source, target, partitions=1)
        produce(access, source, [f"{name}-{n}" for n in range(5)])

    for access in (ada, bob):
        copy_in_transactions(access, source, target, group, writer, count=5)

    committed = [TopicPartition(source, 0)]
    for access, name in ((ada, "ada"), (bob, "bob")):
        values = consume(access, [target], unique("check"), 5, isolation_level="read_committed")
        assert values == [f"{name}-{n}" for n in range(5)]
        consumer = Consumer(access.client_config(group_id=group))
        assert [p.offset for p in consumer.committed(committed, timeout=SECONDS)] == [5]
        consumer.close()


def copy_in_transactions(
    access: Access, source: str, target: str, group: str, writer: str, count: int
) -> None:
    """Copy with one aborted and one committed transaction."""
    consumer = Consumer(
        access.client_config(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    )
    producer = Producer(access.client_config(transactional_id=writer))
    producer.init_transactions(SECONDS)
    consumer.subscribe([source])
    producer.begin_transaction()
    producer.produce(target, b"never seen")
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()
    for _ in range(count):
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        producer.produce(target, message.value())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), SECONDS
    )
    producer.commit_transaction(SECONDS)
    consumer.close()


def test_groups_are_listed_described_and_deleted_within_a_tenant(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group, other = unique("orders"), unique("readers"), unique("others")
    for access, name in ((ada, group), (bob, group), (bob, other)):
        if name == group:
            create(access, topic)
            produce(access, topic, ["x"])
        consume(access, [topic], name, 1)

    client = admin(ada)
    listed = client.list_consumer_groups().result(SECONDS)
    described = client.describe_consumer_groups([group])[group].result(SECONDS)
    client.delete_consumer_groups([group])[group].result(SECONDS)

    names = {one.group_id for one in listed.valid}
    assert group in names
    assert other not in names
    assert not any(name.startswith("lkc-") for name in names)
    assert described.group_id == group
    left = {one.group_id for one in admin_groups(bob)}
    assert {group, other} <= left
    assert group not in {one.group_id for one in admin_groups(ada)}


def admin_groups(access: Access) -> list[Any]:
    client = admin(access)
    return list(client.list_consumer_groups().result(SECONDS).valid)


def test_a_group_rebalances_over_two_members_and_commits_stay_the_tenants(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    create(ada, topic, partitions=4)
    create(bob, topic, partitions=4)
    config = {"group_id": group, "auto_offset_reset": "earliest"}
    first, second = (Consumer(ada.client_config(**config)) for _ in range(2))

    for consumer in (first, second):
        consumer.subscribe([topic])
    wait_until(lambda: shares(first, second) == [2, 2], first, second)

    client = admin(ada)
    members = client.describe_consumer_groups([group])[group].result(SECONDS).members
    assigned = {p.topic for member in members for p in member.assignment.topic_partitions}
    assert assigned == {topic}
    foreign = admin(bob)
    theirs = foreign.describe_consumer_groups([group])[group].result(SECONDS)
    assert theirs.members == []
    first.close()
    second.close()


def shares(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def wait_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    for _ in range(600):
        for consumer in consumers:
            consumer.poll(0.05)
        if condition():
            return
    raise AssertionError("the group did not settle")


def test_admin_changes_partitions_settings_and_records_of_own_topics(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    create(ada, topic, partitions=2)
    create(bob, topic, partitions=2)
    for access in (ada, bob):
        produce(access, topic, ["a", "b", "c"], partition=0)
    client = admin(ada)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    client.create_partitions([NewPartitions(topic, 5)])[topic].result(SECONDS)
    asyncio.run(wait_for_topic(ada, topic, 5))
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
    )
    client.incremental_alter_configs([resource])[resource].result(SECONDS)
    wait_for(lambda: watermarks(ada, topic)[1] == 3, what="the records")
    deleted = client.delete_records([TopicPartition(topic, 0, 1)])

    def kept() -> Any:
        return client.describe_configs([resource])[resource].result(SECONDS)["retention.ms"].value

    wait_for(lambda: kept() == "123456789", what="the setting")  # each broker receives it by itself
    other = admin(bob)
    theirs = other.describe_configs([resource])[resource].result(SECONDS)
    assert theirs["retention.ms"].value != "123456789"
    assert next(iter(deleted.values())).result(SECONDS).low_watermark == 1
    assert watermarks(ada, topic) == (1, 3)
    assert watermarks(bob, topic) == (0, 3)
    assert len(client.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 5
    assert len(other.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 2


def test_what_may_delete_records_is_recorded_for_the_durability_audit(
    gateway: RunningGateway, ada: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    create(ada, topic)
    produce(ada, topic, ["a", "b", "c"], partition=0)
    client, inside = admin(ada), gateway.gateway
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
    )

    client.incremental_alter_configs([resource])[resource].result(SECONDS)
    next(iter(client.delete_records([TopicPartition(topic, 0, 1)]).values())).result(SECONDS)

    events = gateway.do(lambda: inside.services.intents.take(inside.report_source, 1))
    name = f"{ada.prefix}{topic}"
    account = str(ada.account)
    reported = {each.subject: each.read_facts() for each in events if name in each.subject}
    assert reported == {
        named_subject(name): Intent("config", account),
        named_subject(name, 0): Deleted(1, account, str(ada.tenant.id)),
    }


def test_deleting_a_topic_leaves_the_other_tenants_alone(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    create(ada, topic)
    create(bob, topic)
    client = admin(ada)

    client.delete_topics([topic])[topic].result(SECONDS)

    wait_for(lambda: topic not in client.list_topics(timeout=SECONDS).topics, what="it to be gone")
    other = admin(bob)
    assert topic in other.list_topics(timeout=SECONDS).topics


def test_replicas_of_a_new_topic_are_in_distinct_zones(
    ada: Access, fleet: Fleet, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")

    create(ada, topic, partitions=6)

    client = AdminClient(fleet.client_config())
    name = ada.prefix + topic
    partitions = client.list_topics(name, timeout=SECONDS).topics[name].partitions
    zone_of = {node.spec.id: node.spec.zone for node in fleet.brokers}
    assert len(partitions) == 6
    assert all(len({zone_of[r] for r in p.replicas}) == 3 for p in partitions.values())
    assert {p.leader for p in partitions.values()} == set(zone_of)
