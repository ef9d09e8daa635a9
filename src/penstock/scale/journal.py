"""The samples topic: one partition, short retention, written and read by every instance.

Its order is what instances agree on: each judges only what it has read back from here, its own
samples included. `Alone` is the same without a topic, for one instance that may lose its windows.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.kafka import offsets as kafka_offsets
from penstock.kafka import topics as kafka_topics
from penstock.kafka.offsets import At
from penstock.kafka.partitions import TopicPartition
from penstock.kafka.refusals import check
from penstock.kafka.routing import LeaderOf
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.scale.records import decoded, encoded
from penstock.scale.turns import Turns
from penstock.wire.codes import Code
from penstock.wire.compression import Compression
from penstock.wire.records import Record, batches, records, write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.kafka.client import Client
    from penstock.scale.records import Sampled, Watched

    Told = Sampled | Watched
    Taker = Callable[[Told, bool], Awaitable[None]]  # the record, and whether it is live (not history)

RETENTION_MS: Final = 30 * 60 * 1000
SEGMENT_MS: Final = 10 * 60 * 1000
FETCH_BYTES_MAX: Final = 1 << 20
FETCH_WAIT_MS: Final = 500
BATCH_BYTES_MAX: Final = 64 << 10  # before compression: opened in one step when read back
PAUSE_SECONDS: Final = 1.0  # after a failed read
READY_POLL_SECONDS: Final = 0.05
FETCH_BY_NAME_LAST: Final = 12
PRODUCE_BY_NAME_LAST: Final = 12
LANE: Final = "journal"  # a long poll must not hold up other calls


class _LostPlace(Exception):
    """What was to be read next is not there: retention, or the topic was made anew."""


class Journal(Protocol):
    async def publish(self, told: Sequence[Told]) -> None:
        """Hands records to every instance, this one included."""
        ...

    async def follow(self, take: Taker) -> None:
        """Calls `take` with each record in order, history first, until cancelled."""
        ...


class Alone:
    """One instance, no topic: what is published is taken at once."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[Told] = asyncio.Queue(maxsize=10_000)

    async def publish(self, told: Sequence[Told]) -> None:
        for record in told:
            await self._told.put(record)

    async def follow(self, take: Taker) -> None:
        while True:
            await take(await self._told.get(), True)


class TopicJournal:
    def __init__(self, client: Client, topic: str, *, history_seconds: float) -> None:
        self._client = client
        self._topic = topic
        self._history_seconds = history_seconds
        self._route = LeaderOf(topic, 0)

    async def prepare(self) -> None:
        """Makes the topic if there is none, and returns when it has a leader that knows it is one."""
        await self._create()
        while not await self._led():
            await asyncio.sleep(READY_POLL_SECONDS)
            await self._create()  # it may have been deleted meanwhile

    async def _create(self) -> None:
        configs = {
            "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS), "segment.ms": str(SEGMENT_MS),
        }  # fmt: skip
        wanted = kafka_topics.NewTopic(self._topic, 1, configs=configs)
        made = (await kafka_topics.create(self._client, [wanted]))[self._topic]
        if isinstance(made, PenstockError) and made.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
            raise made

    async def _led(self) -> bool:
        """Others may say who leads before that one has heard of it."""
        try:
            await self._find(At.LATEST)
        except PenstockError as failure:
            if isinstance(failure, KafkaMissing) or failure.retriable:
                return False
            raise
        return True

    async def publish(self, told: Sequence[Told]) -> None:
        """Acknowledged by all in-sync replicas when it returns."""
        rows: list[Record] = []
        size = 0
        now = int(time.time() * 1000)
        turns = Turns()
        for record in told:
            await turns.taken()
            value = encoded(record)
            if rows and size + len(value) > BATCH_BYTES_MAX:
                await self._produce(rows)
                rows, size = [], 0
            rows.append(Record(len(rows), now, None, value))
            size += len(value)
        if rows:
            await self._produce(rows)

    async def follow(self, take: Taker) -> None:
        position, live_from = await self._begin()
        while True:
            try:
                position = await self._read(position, live_from, take)
            except _LostPlace:
                position, live_from = await self._begin()
            except KafkaMissing:
                await self._again()
                position, live_from = await self._begin()
            except PenstockError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def read_back(self, take: Taker) -> None:
        """The history alone; nothing where there is no topic."""
        try:
            position, end = await self._places()
        except KafkaMissing:
            return
        while position < end:
            position = await self._read(position, end, take)

    async def _again(self) -> None:
        """The topic was deleted under us."""
        try:
            await self.prepare()
        except PenstockError:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _begin(self) -> tuple[int, int]:
        """(where to read from, where history ends), however long it takes to learn."""
        while True:
            try:
                return await self._places()
            except PenstockError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _places(self) -> tuple[int, int]:
        since = int((time.time() - self._history_seconds) * 1000)
        # The end first: what is written between the two calls is then read, not skipped.
        end = await self._find(At.LATEST)
        begin = await self._find(since)
        return (begin if begin >= 0 else end), end

    async def _find(self, place: int) -> int:
        key = TopicPartition(self._topic, 0)
        found = (await kafka_offsets.find(self._client, {key: place}))[key]
        if isinstance(found, PenstockError):
            raise found
        return found.offset

    async def _read(self, position: int, live_from: int, take: Taker) -> int:
        wanted = {"Partition": 0, "FetchOffset": position, "PartitionMaxBytes": FETCH_BYTES_MAX}
        body = {
            "ReplicaId": -1, "MaxWaitMs": FETCH_WAIT_MS, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX,
            "SessionEpoch": -1, "Topics": [{"Topic": self._topic, "Partitions": [wanted]}],
        }  # fmt: skip
        answer = await self._client.call("Fetch", body, to=self._route, newest=FETCH_BY_NAME_LAST, lane=LANE)
        found = answer["Responses"][0]["Partitions"][0]
        if found["ErrorCode"] == Code.OFFSET_OUT_OF_RANGE:
            raise _LostPlace
        check("Fetch", found["ErrorCode"], None, f"topic {self._topic!r}")
        turns = Turns()
        for batch in batches(found["Records"] or b""):
            await turns.taken()
            if not batch.is_control:
                for row in records(batch):
                    if row.offset >= position and (record := decoded(row.value or b"")) is not None:
                        await take(record, row.offset >= live_from)
            position = max(position, batch.last_offset + 1)
        return position

    async def _produce(self, rows: Sequence[Record]) -> None:
        data = write(rows, compression=Compression.LZ4)
        body: dict[str, Any] = {
            "TransactionalId": None, "Acks": -1, "TimeoutMs": 10_000,
            "TopicData": [{"Name": self._topic, "PartitionData": [{"Index": 0, "Records": data}]}],
        }  # fmt: skip
        answer = await self._client.call("Produce", body, to=self._route, newest=PRODUCE_BY_NAME_LAST)
        found = answer["Responses"][0]["PartitionResponses"][0]
        check("Produce", found["ErrorCode"], found.get("ErrorMessage"), f"topic {self._topic!r}")
