"""Topics on a real cluster: create, describe, add partitions, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.topics import NewTopic, Topic
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


async def described(client: Client, name: str) -> Topic:
    async def has_leaders() -> Topic | None:
        outcome = (await topics.describe(client, [name]))[name]
        return (
            outcome if isinstance(outcome, Topic) and all(p.leader >= 0 for p in outcome.partitions) else None
        )

    return await eventually(has_leaders)


async def test_a_new_topic_is_described_as_requested(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("orders")

    created = results_or_raise(await topics.create(client, [NewTopic(name, 3, 2)]))

    topic = await described(client, name)
    assert (topic.name, topic.id, topic.internal) == (name, created[name], False)
    assert [p.index for p in topic.partitions] == [0, 1, 2]
    assert all(len(p.replicas) == 2 and p.leader in p.replicas for p in topic.partitions)


async def test_replicas_are_placed_as_requested(client: Client, make_topic: MakeTopic) -> None:
    name = await make_topic(replicas={0: [2, 3], 1: [3, 1]})

    topic = await described(client, name)

    assert [p.replicas for p in topic.partitions] == [(2, 3), (3, 1)]


async def test_each_of_several_topics_has_its_own_outcome(client: Client, make_topic: MakeTopic) -> None:
    existing = await make_topic()

    created = await topics.create(client, [NewTopic(existing, 1, 1), NewTopic("not/allowed", 1, 1)])

    assert {type(outcome) for outcome in created.values()} == {KafkaRefused}
    assert [outcome.facts["error"] for outcome in created.values() if isinstance(outcome, KafkaRefused)] == [
        "TOPIC_ALREADY_EXISTS",
        "INVALID_TOPIC_EXCEPTION",
    ]


async def test_a_validated_topic_is_not_created(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("orders")

    results_or_raise(await topics.create(client, [NewTopic(name, 1, 1)], validate_only=True))

    assert name not in await topics.describe(client)


async def test_a_missing_topic_is_an_error(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("orders")

    outcomes = await topics.describe(client, [name], ids=[UUID(int=77)])

    assert {type(outcome) for outcome in outcomes.values()} == {KafkaMissing}
    with pytest.raises(KafkaMissing, match="UNKNOWN_TOPIC"):
        results_or_raise(outcomes)


async def test_partitions_can_be_added(client: Client, make_topic: MakeTopic) -> None:
    name = await make_topic(partitions=1)

    grown = await topics.add_partitions(client, {name: 3}, replicas={name: [[1], [2]]})
    shrunk = await topics.add_partitions(client, {name: 1})

    assert grown == {name: None}
    assert isinstance(shrunk[name], KafkaRefused)

    async def all_three() -> Topic | None:
        topic = await described(client, name)
        return topic if len(topic.partitions) == 3 else None

    assert [p.replicas for p in (await eventually(all_three)).partitions][1:] == [(1,), (2,)]


async def test_a_topic_is_deleted_by_name_or_by_id(client: Client, make_topic: MakeTopic) -> None:
    by_name, by_id = await make_topic(), await make_topic()
    topic_id = (await described(client, by_id)).id

    deleted = await topics.delete(client, [by_name], ids=[topic_id])

    assert deleted == {by_name: None, topic_id: None}

    async def are_deleted() -> bool:
        return not {by_name, by_id} & (await topics.describe(client)).keys()

    assert await eventually(are_deleted)
