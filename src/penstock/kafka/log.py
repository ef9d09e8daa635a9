"""A partition as a log: read what is committed, in order; append atomically, fenced by an id.

`read` is one fetch. `Appender` writes transactions under one transactional id: whoever calls
`begin` last is the only one that can still commit, and what its predecessor left open is aborted.
It speaks the versions before KIP-890's second part, so that its epoch stands still between
transactions and a lost answer is never mistaken for a fence.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka import topics as kafka_topics
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.offsets import At, Isolation, find
from penstock.kafka.refusals import check
from penstock.kafka.routing import LeaderOf, transaction_coordinator
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import PlaceLost, ProducerFenced
from penstock.wire.codes import STALE_METADATA, Code
from penstock.wire.compression import Compression
from penstock.wire.records import (
    TRANSACTIONAL,
    ControlType,
    Producer,
    Record,
    batches,
    control,
    records,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.partitions import TopicPartition
    from penstock.wire.records import Batch

FETCH_BYTES_MAX: Final = 4 << 20
FETCH_BY_NAME_LAST: Final = 12
PRODUCE_UNBUMPED_LAST: Final = 11
ADD_PARTITIONS_LAST: Final = 3
END_UNBUMPED_LAST: Final = 4
READY_POLL_SECONDS: Final = 0.05
BATCH_BYTES_MAX: Final = 512 << 10  # before compression; Kafka takes about twice as much
MARKERS_POLL_SECONDS: Final = 0.003
LEADER_TRIES_MAX: Final = 40  # while leadership moves
FENCED: Final = frozenset(
    (
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_TXN_STATE,
    )
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one fetch brought: records that count, where to go on, and how far the log goes."""

    records: tuple[Record, ...]
    position: int
    end: int  # of what is committed, when this was answered

    @property
    def caught_up(self) -> bool:
        return self.position >= self.end


async def read(
    client: Client, partition: TopicPartition, position: int, *, wait_ms: int = 0, lane: str = ""
) -> Chunk:
    """From `position` on, up to a few megabytes; waits up to `wait_ms` where there is nothing."""
    wanted = {"Partition": partition.partition, "FetchOffset": position, "PartitionMaxBytes": FETCH_BYTES_MAX}
    body = {
        "ReplicaId": -1, "MaxWaitMs": wait_ms, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX,
        "IsolationLevel": Isolation.READ_COMMITTED, "SessionEpoch": -1,
        "Topics": [{"Topic": partition.topic, "Partitions": [wanted]}],
    }  # fmt: skip
    to = LeaderOf(partition.topic, partition.partition)
    answer = await client.call("Fetch", body, to=to, newest=FETCH_BY_NAME_LAST, lane=lane)
    found = answer["Responses"][0]["Partitions"][0]
    if found["ErrorCode"] == Code.OFFSET_OUT_OF_RANGE:
        raise PlaceLost(partition=partition, position=position)
    if found["ErrorCode"] in STALE_METADATA:
        await client.leaders([partition.topic], strict=False)
    check("Fetch", found["ErrorCode"], None, f"partition {partition}")
    counted, position = committed(found["Records"] or b"", found["AbortedTransactions"] or (), position)
    return Chunk(tuple(counted), position, max(position, found["LastStableOffset"]))


def committed(
    data: bytes | memoryview, aborted: Sequence[Mapping[str, int]], position: int
) -> tuple[list[Record], int]:
    """The records from `position` on that no aborted transaction wrote, and where they end."""
    starts = sorted((a["FirstOffset"], a["ProducerId"]) for a in aborted)
    undone: set[int] = set()
    kept: list[Record] = []
    for batch in batches(data):
        while starts and starts[0][0] <= batch.last_offset:
            undone.add(starts.pop(0)[1])
        if batch.is_control:
            if _is_abort(batch):
                undone.discard(batch.producer.id)
        elif not (batch.is_transactional and batch.producer.id in undone):
            kept += [record for record in records(batch) if record.offset >= position]
        position = max(position, batch.last_offset + 1)
    return kept, position


def _is_abort(batch: Batch) -> bool:
    found = control(records(batch)[0])
    return found is not None and found[0] is ControlType.ABORT


async def bounds(client: Client, partition: TopicPartition) -> tuple[int, int]:
    """Where the log begins, and where what is committed ends."""
    ends = []
    for place in (At.EARLIEST, At.LATEST):
        answers = await find(client, {partition: place}, isolation=Isolation.READ_COMMITTED)
        answer = answers[partition]
        if isinstance(answer, PenstockError):
            raise answer
        ends.append(answer.offset)
    return ends[0], ends[1]


async def ensure_topic(client: Client, wanted: kafka_topics.NewTopic) -> None:
    """Make the topic if there is none, and return when its partitions have leaders."""
    made = (await kafka_topics.create(client, [wanted]))[wanted.name]
    if isinstance(made, PenstockError) and made.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
        raise made
    while True:
        leaders = await client.leaders([wanted.name], strict=False)
        if leaders and min(leaders.values()) >= 0:
            return
        await asyncio.sleep(READY_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Row:
    """One record to append. Without a value it deletes its key where the topic is compacted."""

    partition: TopicPartition
    key: bytes | None
    value: bytes | None


class Appender:
    def __init__(self, client: Client, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._to = transaction_coordinator(transactional_id)
        self._producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    async def begin(self) -> None:
        """Fence whoever had this id before; its open transaction is aborted before this returns."""
        body = {
            "TransactionalId": self.transactional_id,
            "TransactionTimeoutMs": self._timeout_ms,
            "ProducerId": -1,
            "ProducerEpoch": -1,
        }
        answer = await self._client.call("InitProducerId", body, to=self._to)
        self._check("InitProducerId", answer["ErrorCode"])
        self._producer_id, self.epoch = answer["ProducerId"], answer["ProducerEpoch"]
        self._sequences.clear()

    async def commit(self, rows: Sequence[Row]) -> dict[TopicPartition, int]:
        """All of them or none; the last offset in each partition.

        After an error nobody knows which: `begin` again, or let a successor, and read what is there.
        """
        assert self._producer_id >= 0, "an appender begins before it commits"
        by_partition: dict[TopicPartition, list[Row]] = {}
        for row in rows:
            by_partition.setdefault(row.partition, []).append(row)
        await self._add(list(by_partition))
        written = await asyncio.gather(*(self._append(p, some) for p, some in by_partition.items()))
        await self._end()
        return dict(zip(by_partition, written))

    async def _add(self, partitions: list[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        body = {
            **self._identity("V3AndBelow"),
            "V3AndBelowTopics": [{"Name": name, "Partitions": numbers} for name, numbers in topics.items()],
        }
        api = "AddPartitionsToTxn"
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            answer = await self._client.call(api, body, to=self._to, newest=ADD_PARTITIONS_LAST)
            topics_said = answer["ResultsByTopicV3AndBelow"]
            codes = {r["PartitionErrorCode"] for t in topics_said for r in t["ResultsByPartition"]}
            # The markers of the transaction before are still being written.
            if Code.CONCURRENT_TRANSACTIONS not in codes or time.monotonic() > deadline:
                break
            await asyncio.sleep(MARKERS_POLL_SECONDS)
        for code in codes:
            self._check(api, code)

    async def _append(self, partition: TopicPartition, rows: Sequence[Row]) -> int:
        """In as many batches as it takes; the last offset."""
        last = -1
        for some in _batched(rows):
            last = await self._produce(partition, some)
        return last

    async def _produce(self, partition: TopicPartition, rows: Sequence[Row]) -> int:
        now = int(time.time() * 1000)
        sequence = self._sequences.get(partition, 0)
        data = write(
            [Record(number, now, row.key, row.value) for number, row in enumerate(rows)],
            compression=Compression.LZ4,
            producer=Producer(self._producer_id, self.epoch, sequence),
            flags=TRANSACTIONAL,
        )
        body: dict[str, Any] = {
            "TransactionalId": self.transactional_id, "Acks": -1, "TimeoutMs": 10_000,
            "TopicData": [
                {"Name": partition.topic, "PartitionData": [{"Index": partition.partition, "Records": data}]}
            ],
        }  # fmt: skip
        to = LeaderOf(partition.topic, partition.partition)
        for _ in range(LEADER_TRIES_MAX):
            answer = await self._client.call("Produce", body, to=to, newest=PRODUCE_UNBUMPED_LAST)
            found = answer["Responses"][0]["PartitionResponses"][0]
            if found["ErrorCode"] not in STALE_METADATA:
                break
            await asyncio.sleep(READY_POLL_SECONDS)
            await self._client.leaders([partition.topic], strict=False)
        self._check("Produce", found["ErrorCode"])
        self._sequences[partition] = sequence + len(rows)
        return int(found["BaseOffset"]) + len(rows) - 1

    async def _end(self) -> None:
        body = {**self._identity(), "Committed": True}
        answer = await self._client.call("EndTxn", body, to=self._to, newest=END_UNBUMPED_LAST)
        self._check("EndTxn", answer["ErrorCode"])

    def _identity(self, prefix: str = "") -> dict[str, Any]:
        return {
            f"{prefix}TransactionalId": self.transactional_id,
            f"{prefix}ProducerId": self._producer_id,
            f"{prefix}ProducerEpoch": self.epoch,
        }

    def _check(self, api: str, code: int) -> None:
        if code in FENCED:
            raise ProducerFenced(transactional_id=self.transactional_id, api=api)
        check(api, code, None, f"transactional id {self.transactional_id!r}")


def _batched(rows: Sequence[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        weight = len(row.key or b"") + len(row.value or b"")
        if batch and size + weight > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += weight
    if batch:
        yield batch
