"""Documents that several tasks write at once, and transactions that are interrupted: nothing is dropped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.backup.restore_store import RestoreStore
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer
from penstock.model.errors.wire import CommitUnfinished, KafkaBusy
from penstock.wire.records import batches, records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.client import Client

PLACE = TopicPartition("plans", 0)


class OneBroker:
    """Acknowledges a batch with a sequence number that it has seen, and drops it, as a broker does."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.end = asyncio.Event()  # of a transaction: a broker responds only then
        self.end.set()
        self.failing: set[str] = set()
        self._sequence = 0

    async def call(self, api: str, body: Mapping[str, Any], **_: object) -> dict[str, Any]:
        await asyncio.sleep(0)
        if api in self.failing:
            raise KafkaBusy(subject="", api=api, detail="REQUEST_TIMED_OUT")
        match api:
            case "InitProducerId":
                self._sequence = 0
                return {"ErrorCode": 0, "ProducerId": 7, "ProducerEpoch": 0}
            case "AddPartitionsToTxn":
                return {"ResultsByTopicV3AndBelow": [{"ResultsByPartition": [{"PartitionErrorCode": 0}]}]}
            case "Produce":
                (batch,) = batches(body["TopicData"][0]["PartitionData"][0]["Records"])
                if batch.producer.sequence == self._sequence:
                    self._sequence += batch.count
                    self.keys += [record.key for record in records(batch)]
                return {
                    "Responses": [{"PartitionResponses": [{"ErrorCode": 0, "BaseOffset": len(self.keys)}]}]
                }
            case _:
                await self.end.wait()
                return {"ErrorCode": 0}


@pytest.fixture
async def broker() -> OneBroker:
    return OneBroker()


async def claimed(broker: OneBroker) -> RestoreStore:
    store = RestoreStore(cast("Client", broker))
    store._producer = TransactionalProducer(cast("Client", broker), "_penstock.restore")
    await store._producer.init()
    return store


async def test_documents_that_two_partitions_write_at_once_are_both_stored(broker: OneBroker) -> None:
    store = await claimed(broker)
    await asyncio.gather(*(store.put(f"lineage/first/orders/{index}", {"epoch": 1}) for index in range(5)))
    assert sorted(broker.keys, key=str) == [f"lineage/first/orders/{index}".encode() for index in range(5)]


async def test_a_document_is_stored_although_its_writer_is_cancelled(broker: OneBroker) -> None:
    store = await claimed(broker)
    broker.end.clear()
    first = asyncio.create_task(store.put("lineage/first/orders/0", {"epoch": 1}))
    while not broker.keys:
        await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(store.put("restore/first", {"step": "leads"}))
    await asyncio.sleep(0)
    broker.end.set()
    await second
    assert broker.keys == [b"lineage/first/orders/0", b"restore/first"]


async def test_a_producer_whose_commit_was_cancelled_refuses_the_next_one(broker: OneBroker) -> None:
    producer = TransactionalProducer(cast("Client", broker), "_penstock.plans")
    await producer.init()
    broker.end.clear()
    first = asyncio.create_task(producer.commit([ProducerRecord(PLACE, b"first", b"")]))
    while not broker.keys:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    broker.end.set()
    with pytest.raises(CommitUnfinished):
        await producer.commit([ProducerRecord(PLACE, b"second", b"")])
    await producer.init()
    await producer.commit([ProducerRecord(PLACE, b"second", b"")])
    assert broker.keys == [b"first", b"second"]


async def test_a_producer_whose_commit_failed_refuses_the_next_one_with_the_reason(broker: OneBroker) -> None:
    producer = TransactionalProducer(cast("Client", broker), "_penstock.plans")
    await producer.init()
    broker.failing.add("EndTxn")
    with pytest.raises(KafkaBusy):
        await producer.commit([ProducerRecord(PLACE, b"first", b"")])
    broker.failing.clear()
    with pytest.raises(KafkaBusy):
        await producer.commit([ProducerRecord(PLACE, b"second", b"")])
    await producer.init()
    await producer.commit([ProducerRecord(PLACE, b"second", b"")])
    assert broker.keys == [b"first", b"second"]
