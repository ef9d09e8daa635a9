"""Read the committed records of a partition, and append records in transactions.

`read` is one fetch. A `TransactionalProducer` is fenced by its transactional id: only the latest caller
of `init` can commit, and `init` aborts the transaction its predecessor left open. It uses request
versions from before the second part of KIP-890, so that its epoch does not change between transactions
and a lost response is never mistaken for fencing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.offsets import IsolationLevel, OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import listed
from penstock.kafka.append import produce_body
from penstock.kafka.broker_errors import broker_error, check
from penstock.kafka.connection import CALL_SECONDS
from penstock.kafka.routing import LeaderOf, transaction_coordinator
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import CommitUnfinished, OffsetOutOfRange, ProducerFenced
from penstock.wire.compression import Compression
from penstock.wire.error_codes import STALE_METADATA, Code
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

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.wire.records import Batch

FETCH_BYTES_MAX: Final = 4 << 20
FETCH_BY_NAME_LAST: Final = 12
PRODUCE_UNBUMPED_LAST: Final = 11
ADD_PARTITIONS_LAST: Final = 3
END_UNBUMPED_LAST: Final = 4
READY_POLL_SECONDS: Final = 0.05
BATCH_BYTES_MAX: Final = 512 << 10  # before compression; Kafka accepts about twice as much
MARKERS_POLL_SECONDS: Final = 0.003
LEADER_ATTEMPTS_MAX: Final = 40  # while leadership moves
FENCED: Final = frozenset(
    (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING,
     Code.INVALID_TXN_STATE)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The result of one fetch: committed records, the next position, and the end of the log."""

    records: tuple[Record, ...]
    position: int
    end: int  # of the committed records, at the time of the fetch

    @property
    def caught_up(self) -> bool:
        return self.position >= self.end


async def read(
    client: Client, partition: TopicPartition, position: int, *, wait_ms: int = 0, lane: str = ""
) -> FetchedRecords:
    """Fetch up to a few megabytes from `position`; waits up to `wait_ms` if there is nothing yet."""
    topic, index = partition
    requested = {"Partition": index, "FetchOffset": position, "PartitionMaxBytes": FETCH_BYTES_MAX}
    body = {
        "ReplicaId": -1, "MaxWaitMs": wait_ms, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX,
        "IsolationLevel": IsolationLevel.READ_COMMITTED, "SessionEpoch": -1,
        "Topics": [{"Topic": topic, "Partitions": [requested]}],
    }  # fmt: skip
    to = LeaderOf(*partition)
    response = await client.call("Fetch", body, to=to, version_max=FETCH_BY_NAME_LAST, lane=lane)
    result = response["Responses"][0]["Partitions"][0]
    if result["ErrorCode"] == Code.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(partition=partition, position=position)
    if result["ErrorCode"] in STALE_METADATA:
        await client.leaders([partition.topic], strict=False)
    check("Fetch", result["ErrorCode"], None, f"partition {partition}")
    data, aborted = result["Records"] or b"", result["AbortedTransactions"] or ()
    read_records, position = committed(data, aborted, position)
    return FetchedRecords(tuple(read_records), position, max(position, result["LastStableOffset"]))


def committed(
    data: bytes | memoryview, aborted: Sequence[Mapping[str, int]], position: int
) -> tuple[list[Record], int]:
    """The records from `position` that no aborted transaction wrote, and the position after them."""
    starts = sorted((a["FirstOffset"], a["ProducerId"]) for a in aborted)
    aborting: set[int] = set()  # producers whose transaction here was aborted
    result: list[Record] = []
    for batch in batches(data):
        while starts and starts[0][0] <= batch.last_offset:
            aborting.add(starts.pop(0)[1])
        if batch.is_control:
            if _is_abort(batch):
                aborting.discard(batch.producer.id)
        elif not (batch.is_transactional and batch.producer.id in aborting):
            result += [record for record in records(batch) if record.offset >= position]
        position = max(position, batch.last_offset + 1)
    return result, position


def _is_abort(batch: Batch) -> bool:
    marker = control(records(batch)[0])
    return marker is not None and marker[0] is ControlType.ABORT


async def bounds(client: Client, partition: TopicPartition) -> tuple[int, int]:
    """The log start offset, and the end of the committed records."""
    offsets = []
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        results = await list_offsets(client, {partition: spec}, isolation=IsolationLevel.READ_COMMITTED)
        offsets.append(results_or_raise(results)[partition].offset)
    return offsets[0], offsets[1]


async def ensure_topic(client: Client, topic: kafka_topics.NewTopic) -> None:
    """Create the topic if it does not exist, and return once its partitions have leaders.

    Raises KafkaBusy if they have none within the time limit of a call."""
    created = (await kafka_topics.create(client, [topic]))[topic.name]
    if isinstance(created, PenstockError) and created.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
        raise created
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        leaders = await client.leaders([topic.name], strict=False)
        if leaders and min(leaders.values()) >= 0:
            return
        if time.monotonic() > deadline:
            raise broker_error("Metadata", Code.LEADER_NOT_AVAILABLE, None, f"topic {topic.name!r}")
        await asyncio.sleep(READY_POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to append. Without a value it is a tombstone for its key."""

    partition: TopicPartition
    key: bytes | None
    value: bytes | None


class TransactionalProducer:
    """Appends records in transactions, fenced by a transactional id. Call `init` first."""

    def __init__(self, client: Client, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._to = transaction_coordinator(transactional_id)
        self._producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._committing = asyncio.Lock()
        self._unfinished: PenstockError | None = None  # why the outcome of the last commit is unknown

    async def init(self) -> None:
        """Fence the previous producer with this id; its open transaction is aborted before this returns."""
        async with self._committing:
            await self._init()
            self._unfinished = None

    async def _init(self) -> None:
        body = {
            "TransactionalId": self.transactional_id,
            "TransactionTimeoutMs": self._timeout_ms,
            "ProducerId": -1,
            "ProducerEpoch": -1,
        }
        response = await self._client.call("InitProducerId", body, to=self._to)
        self._check("InitProducerId", response["ErrorCode"])
        self._producer_id, self.epoch = response["ProducerId"], response["ProducerEpoch"]
        self._sequences.clear()

    async def commit(self, new_records: Sequence[ProducerRecord]) -> dict[TopicPartition, int]:
        """Write all records or none; returns the last offset in each partition. One commit runs at a time.

        After an error or a cancellation the outcome is unknown: call `init` here or in a successor, then read
        the log. Until then every commit is refused: its records would have the sequence numbers of those that
        may be in the log, and a broker would acknowledge and drop them as repetitions."""
        assert self._producer_id >= 0, "call init() before commit()"
        async with self._committing:
            if self._unfinished is not None:
                raise self._unfinished.with_traceback(None)
            self._unfinished = CommitUnfinished(transactional_id=self.transactional_id)
            try:
                written = await self._commit(new_records)
            except PenstockError as error:
                self._unfinished = error
                raise
            self._unfinished = None
            return written

    async def _commit(self, new_records: Sequence[ProducerRecord]) -> dict[TopicPartition, int]:
        by_partition: dict[TopicPartition, list[ProducerRecord]] = {}
        for record in new_records:
            by_partition.setdefault(record.partition, []).append(record)
        await self._add(list(by_partition))
        written = await asyncio.gather(*(self._append(p, appended) for p, appended in by_partition.items()))
        await self._end()
        return dict(zip(by_partition, written))

    async def _add(self, partitions: list[TopicPartition]) -> None:
        topics = listed(partitions, indexes="Partitions")
        body = {**self._identity("V3AndBelow"), "V3AndBelowTopics": topics}
        api = "AddPartitionsToTxn"
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            response = await self._client.call(api, body, to=self._to, version_max=ADD_PARTITIONS_LAST)
            results = response["ResultsByTopicV3AndBelow"]
            codes = {r["PartitionErrorCode"] for t in results for r in t["ResultsByPartition"]}
            # The markers of the previous transaction are still being written.
            if Code.CONCURRENT_TRANSACTIONS not in codes or time.monotonic() > deadline:
                break
            await asyncio.sleep(MARKERS_POLL_SECONDS)
        for code in codes:
            self._check(api, code)

    async def _append(self, partition: TopicPartition, new_records: Sequence[ProducerRecord]) -> int:
        """Append in as many batches as needed; returns the last offset."""
        last = -1
        for batch in _batched(new_records):
            last = await self._produce(partition, batch)
        return last

    async def _produce(self, partition: TopicPartition, new_records: Sequence[ProducerRecord]) -> int:
        now = int(time.time() * 1000)
        sequence = self._sequences.get(partition, 0)
        data = write(
            [Record(number, now, record.key, record.value) for number, record in enumerate(new_records)],
            compression=Compression.LZ4,
            producer=Producer(self._producer_id, self.epoch, sequence),
            flags=TRANSACTIONAL,
        )
        body = produce_body(partition, data, transactional_id=self.transactional_id)
        to = LeaderOf(*partition)
        for _ in range(LEADER_ATTEMPTS_MAX):
            response = await self._client.call("Produce", body, to=to, version_max=PRODUCE_UNBUMPED_LAST)
            result = response["Responses"][0]["PartitionResponses"][0]
            if result["ErrorCode"] not in STALE_METADATA:
                break
            await asyncio.sleep(READY_POLL_SECONDS)
            await self._client.leaders([partition.topic], strict=False)
        self._check("Produce", result["ErrorCode"])
        self._sequences[partition] = sequence + len(new_records)
        return int(result["BaseOffset"]) + len(new_records) - 1

    async def _end(self) -> None:
        body = {**self._identity(), "Committed": True}
        response = await self._client.call("EndTxn", body, to=self._to, version_max=END_UNBUMPED_LAST)
        self._check("EndTxn", response["ErrorCode"])

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


def _batched(new_records: Sequence[ProducerRecord]) -> Iterator[list[ProducerRecord]]:
    batch: list[ProducerRecord] = []
    size = 0
    for record in new_records:
        weight = len(record.key or b"") + len(record.value or b"")
        if batch and size + weight > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += weight
    if batch:
        yield batch
