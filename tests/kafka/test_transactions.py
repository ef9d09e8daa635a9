"""Transactions and producers on a real cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.kafka.admin import offsets, transactions
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors.wire import KafkaMissing
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.admin.transactions import Transaction
    from penstock.kafka.client import Client
    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


def begin(fleet: Fleet, transactional_id: str, topic: str) -> Producer:
    producer = Producer(fleet.client_config(transactional_id=transactional_id))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.flush(30)
    return producer


async def test_coordinator_and_leader_report_an_open_transaction_until_it_ends(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition, name = TopicPartition(await make_topic(), 0), unique("till")
    producer = await asyncio.to_thread(begin, fleet, name, partition.topic)

    opened = results_or_raise(await transactions.describe(client, [name]))[name]
    listed = (await transactions.list_all(client, states=["Ongoing"]))[name]
    (writer,) = results_or_raise(await transactions.producers(client, [partition]))[partition]
    await asyncio.to_thread(producer.commit_transaction, 30)

    assert (opened.state, opened.partitions) == ("Ongoing", frozenset({partition}))
    assert (listed.producer_id, writer.id) == (opened.producer_id, opened.producer_id)
    assert writer.open_since_offset == 0

    async def completed() -> Transaction | None:
        described = results_or_raise(await transactions.describe(client, [name]))[name]
        return described if described.state == "CompleteCommit" else None

    assert (await eventually(completed)).partitions == frozenset()
    (writer,) = results_or_raise(await transactions.producers(client, [partition]))[partition]
    assert writer.open_since_offset is None


async def test_a_hanging_transaction_is_aborted_so_that_readers_continue(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    partition = TopicPartition(await make_topic(), 0)
    await asyncio.to_thread(begin, fleet, unique("till"), partition.topic)
    (writer,) = results_or_raise(await transactions.producers(client, [partition]))[partition]

    await transactions.abort(client, partition, writer)

    (after,) = results_or_raise(await transactions.producers(client, [partition]))[partition]
    stable = await offsets.list_offsets(
        client, {partition: OffsetSpec.LATEST}, isolation=IsolationLevel.READ_COMMITTED
    )
    assert after.open_since_offset is None
    assert results_or_raise(stable)[partition].offset == 2  # the record and its abort marker


async def test_a_fenced_producer_cannot_commit(
    fleet: Fleet, client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    name = unique("till")
    producer = await asyncio.to_thread(begin, fleet, name, await make_topic())
    before = results_or_raise(await transactions.describe(client, [name]))[name]

    identity = await transactions.fence(client, name)

    assert (identity.producer_id, identity.epoch) != (before.producer_id, before.producer_epoch)
    with pytest.raises(KafkaException):
        await asyncio.to_thread(producer.commit_transaction, 30)


async def test_each_new_producer_gets_its_own_id(client: Client) -> None:
    first, second = await transactions.new_producer(client), await transactions.new_producer(client)

    assert first.producer_id != second.producer_id
    assert (first.epoch, second.epoch) == (0, 0)


async def test_an_unknown_transactional_id_is_an_error(client: Client, unique: Callable[[str], str]) -> None:
    name = unique("till")

    outcome = (await transactions.describe(client, [name]))[name]

    assert isinstance(outcome, KafkaMissing)
