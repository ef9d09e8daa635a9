"""Moving replicas and electing leaders on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import reassignments, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.reassignments import Election
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka


async def placed(client: Client, partition: TopicPartition, replicas: tuple[int, ...]) -> topics.Partition:
    async def there() -> topics.Partition | None:
        topic = results_or_raise(await topics.describe(client, [partition.topic]))[partition.topic]
        moved = topic.partitions[partition.partition]
        return moved if moved.replicas == replicas and set(moved.isr) == set(replicas) else None

    return await eventually(there)


async def test_a_partition_moves_and_its_preferred_replica_is_elected(
    client: Client, make_topic: MakeTopic, produce: Produce
) -> None:
    partition = TopicPartition(await make_topic(replicas={0: [1, 2]}), 0)
    await produce(partition.topic, b"a")

    moved = await reassignments.alter(client, {partition: [2, 1]})
    await placed(client, partition, (2, 1))
    first = await reassignments.elect(client, [partition])
    second = await reassignments.elect(client, [partition])

    assert moved == {partition: None}
    assert await reassignments.under_way(client, [partition]) == {}
    assert (first, second) in (
        ({partition: True}, {partition: False}),
        ({partition: False}, {partition: False}),  # the move itself may have made it leader
    )

    async def leads() -> bool:  # according to the broker that responds
        topic = results_or_raise(await topics.describe(client, [partition.topic]))[partition.topic]
        return topic.partitions[0].leader == 2

    await eventually(leads)


async def test_an_ongoing_reassignment_is_listed_and_can_be_cancelled(
    client: Client, make_topic: MakeTopic, fleet_with_a_paused_broker: int
) -> None:
    paused = fleet_with_a_paused_broker
    home = 1 if paused != 1 else 2
    partition = TopicPartition(await make_topic(replicas={0: [home]}), 0)

    results_or_raise(await reassignments.alter(client, {partition: [paused]}))
    listed = await reassignments.under_way(client)
    cancelled = await reassignments.alter(client, {partition: None})

    assert listed[partition] == reassignments.Reassignment((paused, home), (paused,), (home,))
    assert cancelled == {partition: None}
    assert partition not in await reassignments.under_way(client)
    again = await reassignments.alter(client, {partition: None})
    assert isinstance(again[partition], KafkaMissing)  # no reassignment is ongoing


async def test_a_reassignment_to_an_unknown_broker_is_rejected(client: Client, make_topic: MakeTopic) -> None:
    partition = TopicPartition(await make_topic(), 0)

    outcome = (await reassignments.alter(client, {partition: [99]}))[partition]

    assert isinstance(outcome, KafkaRefused)
    assert outcome.facts["error"] == "INVALID_REPLICA_ASSIGNMENT"


async def test_an_unclean_election_is_not_needed_with_a_live_leader(
    client: Client, make_topic: MakeTopic
) -> None:
    partition = TopicPartition(await make_topic(), 0)

    elected = await reassignments.elect(client, [partition], election=Election.UNCLEAN)

    assert elected == {partition: False}
