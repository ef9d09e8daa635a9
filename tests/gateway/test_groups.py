"""The newer group protocols, and listed transactions, as in a dedicated cluster."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from penstock.kafka.connection import Connection
from penstock.wire.error_codes import Code
from tests.gateway.test_librdkafka import SECONDS, admin, create, produce

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka


def test_java_consumers_by_pattern_and_in_share_groups_stay_in_their_own_cluster(
    java: Callable[..., str], ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    printed = java("NewGroups", ada.bootstrap, topic, group, ada.key, ada.secret, bob.key, bob.secret)

    # name | values | type and topics | values shared | share group | listed, listed | other tenants' names
    lines = [line.split("|") for line in printed.splitlines() if "|" in line]
    for line, name in zip(lines, ("t0", "t1"), strict=True):
        values = ",".join(f"{name}-{n}" for n in range(10))
        assert line == [
            name,
            values,
            f"Consumer [{topic}]",
            values,
            f"{group}-shared",
            "true",
            "true",
            "false",
        ]


def test_a_share_consumer_continues_after_one_of_its_topics_is_deleted(
    java: Callable[..., str], ada: Access, unique: Callable[[str], str]
) -> None:
    """Its forgotten topic must reach the broker, which fails every later fetch of the session otherwise."""
    printed = java(
        "ShareAfterDeletion", ada.bootstrap, unique("orders"), unique("readers"), ada.key, ada.secret
    )

    lines = [line for line in printed.splitlines() if line.startswith("consumed")]  # the client logs as well
    assert lines == ["consumed both", "consumed after the deletion"]


def test_librdkafka_consumes_by_kip_848_by_name_and_by_pattern(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    for access, name in ((ada, "ada"), (bob, "bob")):
        create(access, topic, partitions=2)
        produce(access, topic, [f"{name}-{n}" for n in range(10)])

    for access, name in ((ada, "ada"), (bob, "bob")):
        for number, subscribed in enumerate((topic, f"^{topic[:-3]}.*")):
            config = access.client_config(group_id=unique(f"g{number}"), group_protocol="consumer")
            consumer = Consumer(config | {"auto.offset.reset": "earliest"})
            consumer.subscribe([subscribed])
            values: set[bytes | None] = set()
            while len(values) < 10:
                message = consumer.poll(SECONDS)
                assert message is not None
                assert message.error() is None, message.error()
                values.add(message.value())
            consumer.close()

            assert values == {f"{name}-{n}".encode() for n in range(10)}


async def test_a_pattern_that_reaches_past_the_prefix_is_refused_with_kafkas_error(
    bob: Access, unique: Callable[[str], str]
) -> None:
    host, port = bob.bootstrap.split(",")[0].split(":")
    async with await Connection.open(host, int(port), bob.security()) as connection:
        body = {
            "GroupId": unique("g"),
            "MemberId": "AAAAAAAAAAAAAAAAAAAAAA",
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 10_000,
            "SubscribedTopicNames": [],
            "SubscribedTopicRegex": "a)|(.*",
            "TopicPartitions": [],
        }

        response = await connection.call("ConsumerGroupHeartbeat", body, version=1)

    assert response["ErrorCode"] == Code.INVALID_REGULAR_EXPRESSION


def test_transactions_are_listed_and_described_to_their_own_tenant(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, writer = unique("orders"), unique("writer")
    create(ada, topic, partitions=1)
    producer = Producer(ada.client_config(transactional_id=writer))
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(SECONDS) == 0

    listed = {access.key: transactions(access) for access in (ada, bob)}
    producers = {access.key: active_producers(access, topic) for access in (ada, bob)}
    producer.abort_transaction(SECONDS)

    assert (writer, "Ongoing", [topic]) in listed[ada.key]
    assert all(writer not in row[0] for row in listed[bob.key])
    assert len(set(producers[ada.key])) == 1  # every replica has it
    assert producers[bob.key] == []


def transactions(access: Access) -> list[tuple[str, str, list[str]]]:
    """Every transaction that any broker lists: id, state, topics."""

    async def ask() -> list[tuple[str, str, list[str]]]:
        rows = []
        for place in access.bootstrap.split(","):
            host, port = place.split(":")
            async with await Connection.open(host, int(port), access.security()) as connection:
                body = {"StateFilters": [], "ProducerIdFilters": [], "TransactionalIdPattern": ".*"}
                listed = await connection.call("ListTransactions", body, version=2)
                ids = [row["TransactionalId"] for row in listed["TransactionStates"]]
                described = await connection.call(
                    "DescribeTransactions", {"TransactionalIds": ids}, version=0
                )
                for row in described["TransactionStates"]:
                    topics = [topic["Topic"] for topic in row["Topics"]]
                    rows.append((row["TransactionalId"], row["TransactionState"], topics))
        return rows

    return asyncio.run(ask())


def active_producers(access: Access, topic: str) -> list[int]:
    async def ask() -> list[int]:
        rows = []
        for place in access.bootstrap.split(","):
            host, port = place.split(":")
            async with await Connection.open(host, int(port), access.security()) as connection:
                body = {"Topics": [{"Name": topic, "PartitionIndexes": [0]}]}
                response = await connection.call("DescribeProducers", body, version=0)
                for row in response["Topics"][0]["Partitions"]:
                    if row["ErrorCode"] == Code.NONE:
                        rows += [one["ProducerId"] for one in row["ActiveProducers"]]
        return rows

    return asyncio.run(ask())


def test_an_admin_client_describes_a_group_of_the_consumer_protocol(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    create(ada, topic, partitions=1)
    consumer = Consumer(ada.client_config(group_id=group, group_protocol="consumer"))
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)

    mine, theirs = admin(ada), admin(bob)
    described = mine.describe_consumer_groups([group])[group].result(SECONDS)
    others = theirs.list_consumer_groups().result(SECONDS)
    consumer.close()

    assert [p.topic for member in described.members for p in member.assignment.topic_partitions] == [topic]
    assert group not in {listing.group_id for listing in others.valid}


def test_a_group_moves_between_the_classic_and_the_consumer_protocol(
    ada: Access, unique: Callable[[str], str]
) -> None:
    """While a group has both kinds of members, the coordinator itself reads and writes classic members'
    subscriptions (KIP-848), so with the broker's names.
    """
    topic, group = unique("orders"), unique("readers")
    create(ada, topic, partitions=4)

    def member(protocol: str) -> Consumer:
        made = Consumer(
            ada.client_config(group_id=group, group_protocol=protocol, auto_offset_reset="earliest")
        )
        made.subscribe([topic])
        return made

    def shared(*members: Consumer) -> None:
        """Each member has its share."""
        deadline = time.monotonic() + 4 * SECONDS
        parts = [0]
        while parts != [4 // len(members)] * len(members):
            assert time.monotonic() < deadline, parts
            for one in members:
                one.poll(0.1)
            parts = [sum(p.topic == topic for p in one.assignment()) for one in members]

    kinds = []
    classic = member("classic")
    shared(classic)
    newer = member("consumer")
    shared(classic, newer)
    classic.close()
    shared(newer)
    kinds.append(kind_of(ada, group))
    classic = member("classic")
    shared(classic, newer)
    newer.close()
    shared(classic)
    kinds.append(kind_of(ada, group))
    produce(ada, topic, ["last"])
    last = classic.poll(SECONDS)
    classic.close()

    assert kinds == ["CONSUMER", "CLASSIC"]
    assert last is not None
    assert last.value() == b"last"


def kind_of(access: Access, group: str) -> str:
    client = admin(access)
    listed = client.list_consumer_groups().result(SECONDS).valid
    return str(next(one.type.name for one in listed if one.group_id == group))
