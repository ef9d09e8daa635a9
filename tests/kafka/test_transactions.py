"""Transactions and producers on a real cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.kafka import offsets, transactions
from penstock.kafka.offsets import At, Isolation
from penstock.kafka.outcomes import all_done
from penstock.kafka.partitions import TopicPartition
from penstock.model.errors.wire import KafkaMissing
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from penstock.kafka.transactions import Transaction
    from tests.ground.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


def begin(fleet: Fleet, transactional_id: str, topic: str) -> Producer:
    producer = Producer(fleet.client_config(transactional_id=transactional_id))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.flush(30)
    return producer


async def test_an_open_transaction_is_seen_by_coordinator_and_leader_until_it_ends(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("till")
    producer = await asyncio.to_thread(begin, fleet, name, partition.topic)

    opened = all_done(await transactions.describe(client, [name]))[name]
    listed = (await transactions.list_all(client, states=["Ongoing"]))[name]
    (writer,) = all_done(await transactions.producers(client, [partition]))[partition]
    await asyncio.to_thread(producer.commit_transaction, 30)

    assert (opened.state, opened.partitions) == ("Ongoing", {partition})
    assert (listed.producer_id, writer.id) == (opened.producer_id, opened.producer_id)
    assert writer.open_since_offset == 0

    async def completed() -> Transaction | None:
        found = all_done(await transactions.describe(client, [name]))[name]
        return found if found.state == "CompleteCommit" else None

    assert (await eventually(completed)).partitions == frozenset()
    (writer,) = all_done(await transactions.producers(client, [partition]))[partition]
    assert writer.open_since_offset is None


async def test_a_transaction_is_ended_from_outside_so_that_readers_go_on(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await asyncio.to_thread(begin, fleet, unique("till"), partition.topic)
    (writer,) = all_done(await transactions.producers(client, [partition]))[partition]

    await transactions.abort(client, partition, writer)

    (after,) = all_done(await transactions.producers(client, [partition]))[partition]
    stable = await offsets.find(client, {partition: At.LATEST}, isolation=Isolation.READ_COMMITTED)
    assert after.open_since_offset is None
    assert all_done(stable)[partition].offset == 2  # the record and its abort marker


async def test_a_fenced_producer_cannot_commit(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    name = unique("till")
    producer = await asyncio.to_thread(begin, fleet, name, await make_topic())
    before = all_done(await transactions.describe(client, [name]))[name]

    identity = await transactions.fence(client, name)

    assert (identity.producer_id, identity.epoch) != (before.producer_id, before.producer_epoch)
    with pytest.raises(KafkaException):
        await asyncio.to_thread(producer.commit_transaction, 30)


async def test_two_new_producers_have_two_ids(client: Client) -> None:
    first, second = await transactions.new_producer(client), await transactions.new_producer(client)

    assert first.producer_id != second.producer_id
    assert (first.epoch, second.epoch) == (0, 0)


async def test_an_unknown_transactional_id_is_said_to_be_missing(
    client: Client, unique: Callable[[str], str]
) -> None:
    name = unique("till")

    outcome = (await transactions.describe(client, [name]))[name]

    assert isinstance(outcome, KafkaMissing)
