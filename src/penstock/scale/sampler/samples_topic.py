"""The samples topic: one partition with short retention that every instance writes and reads.

Instances agree on its order: each evaluates only what it reads back, its own samples included. They also
agree on time, which is the broker's: their own clocks may be wrong.
`InMemoryJournal` replaces the topic for a single instance that may lose its windows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.kafka.admin import configs
from penstock.kafka.admin import offsets as kafka_offsets
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.offsets import OffsetSpec
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.broker_errors import check
from penstock.kafka.routing import LeaderOf
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import KafkaMissing
from penstock.scale.sampler.records import Sampled, Watched, decoded, encoded
from penstock.wire.error_codes import Code
from penstock.wire.records import batches, records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.kafka.client import Client

    Event = Sampled | Watched
    EventHandler = Callable[[Event, bool], Awaitable[None]]  # (event, live); not live: history

RETENTION_MS: Final = 30 * 60 * 1000
SEGMENT_MS: Final = 10 * 60 * 1000
TIMESTAMPS: Final = {"message.timestamp.type": "LogAppendTime"}
FETCH_BYTES_MAX: Final = 1 << 20
FETCH_WAIT_MS: Final = 500
TOO_LARGE: Final = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
BATCH_BYTES_MAX: Final = 64 << 10  # before compression; a reader decodes a batch in one step
PAUSE_SECONDS: Final = 1.0  # after a failed read
READY_POLL_SECONDS: Final = 0.05
FETCH_BY_NAME_LAST: Final = 12

LANE: Final = "journal"  # a separate connection, so that a long poll does not delay other calls


def _parts(event: Event, refused: PenstockError) -> list[Event]:
    """Smaller events instead of one that is too large: one for each group, or the failure of the only one."""
    if isinstance(event, Watched) or not event.samples:
        raise refused
    others = replace(event, samples={}, memories={})
    if len(event.samples) == 1:
        return [replace(others, failures={**event.failures, **dict.fromkeys(event.samples, str(refused))})]
    alone = [
        replace(event, samples={group: sample}, missing={}, failures={})
        for group, sample in event.samples.items()
    ]
    return [others, *alone] if event.missing or event.failures else list(alone)


class _OffsetLost(Exception):
    """The next offset does not exist: retention deleted it, or the topic was recreated."""


class Journal(Protocol):
    """An ordered log of events that all instances share."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Appends events, which every instance then reads, this one included."""
        ...

    async def follow(self, handle: EventHandler) -> None:
        """Calls `handle` with each event in order, history first, until cancelled."""
        ...


class InMemoryJournal:
    """The journal of a single instance, without a topic."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue(maxsize=10_000)

    async def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            await self._events.put(event)

    async def follow(self, handle: EventHandler) -> None:
        while True:
            await handle(await self._events.get(), True)


class SamplesTopic:
    """The journal as a Kafka topic."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        history_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock  # by which samples are taken
        self._topic = topic
        self._history_seconds = history_seconds
        self._partition = TopicPartition(topic, 0)

    async def prepare(self) -> None:
        """Creates the topic if there is none, and returns when its leader accepts requests."""
        await self._create()
        while not await self._has_leader():
            await asyncio.sleep(READY_POLL_SECONDS)
            await self._create()  # it may have been deleted meanwhile

    async def _create(self) -> None:
        values = {
            "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS), "segment.ms": str(SEGMENT_MS),
            **TIMESTAMPS,
        }  # fmt: skip
        topic = kafka_topics.NewTopic(self._topic, 1, configs=values)
        result = (await kafka_topics.create(self._client, [topic]))[self._topic]
        if isinstance(result, PenstockError):
            if result.facts.get("error_code") != Code.TOPIC_ALREADY_EXISTS:
                raise result
            # It may have been created by hand. Without the right to alter it, the writers' clocks count.
            with suppress(PenstockError):
                await configs.alter(self._client, {configs.topic(self._topic): configs.changes(TIMESTAMPS)})

    async def _has_leader(self) -> bool:
        """Asks the leader itself: metadata may name it before it accepts requests."""
        try:
            await self._offset(OffsetSpec.LATEST)
        except PenstockError as failure:
            if isinstance(failure, KafkaMissing) or failure.retriable:
                return False
            raise
        return True

    async def publish(self, events: Sequence[Event]) -> None:
        """Returns when all in-sync replicas have the events."""
        batch: list[tuple[Event, bytes]] = []
        size = 0
        for event in events:
            value = encoded(event, self._clock())
            if batch and size + len(value) > BATCH_BYTES_MAX:
                await self._append(batch)
                batch, size = [], 0
            batch.append((event, value))
            size += len(value)
        if batch:
            await self._append(batch)

    async def _append(self, batch: Sequence[tuple[Event, bytes]]) -> None:
        """Appends one batch; what exceeds the topic's limit fails the group that it belongs to."""
        try:
            await append(self._client, self._partition, [(None, value) for _, value in batch], attempts_max=1)
        except PenstockError as failure:
            if failure.facts.get("error_code") not in TOO_LARGE:
                raise
            parts = list(batch)
            if len(batch) == 1:
                parts = [(part, encoded(part, self._clock())) for part in _parts(batch[0][0], failure)]
            for part in parts:
                await self._append([part])

    async def follow(self, handle: EventHandler) -> None:
        position, live_from = await self._start_offsets()
        while True:
            try:
                position = await self._read(position, live_from, handle)
            except _OffsetLost:
                position, live_from = await self._start_offsets()
            except KafkaMissing:
                await self._recreate()
                position, live_from = await self._start_offsets()
            except PenstockError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def read_back(self, handle: EventHandler) -> None:
        """Reads the history only; nothing if there is no topic."""
        try:
            position, end = await self._offset_range()
        except KafkaMissing:
            return
        while position < end:
            position = await self._read(position, end, handle)

    async def _recreate(self) -> None:
        """Creates the topic again after it was deleted."""
        try:
            await self.prepare()
        except PenstockError:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _start_offsets(self) -> tuple[int, int]:
        """(first offset to read, end of the history); retries until it knows."""
        while True:
            try:
                return await self._offset_range()
            except PenstockError:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _offset_range(self) -> tuple[int, int]:
        # The end first: records written between the calls are then read, not skipped.
        end = (await self._offset(OffsetSpec.LATEST)).offset
        newest = await self._offset(OffsetSpec.MAX_TIMESTAMP)
        if newest.offset < 0:
            return end, end
        since = await self._offset(newest.timestamp_ms - int(self._history_seconds * 1000))
        return (since.offset if since.offset >= 0 else end), end

    async def _offset(self, spec: int) -> kafka_offsets.Offset:
        result = (await kafka_offsets.list_offsets(self._client, {self._partition: spec}))[self._partition]
        if isinstance(result, PenstockError):
            raise result
        return result

    async def _read(self, position: int, live_from: int, handle: EventHandler) -> int:
        fetched = {"Partition": 0, "FetchOffset": position, "PartitionMaxBytes": FETCH_BYTES_MAX}
        body = {
            "ReplicaId": -1, "MaxWaitMs": FETCH_WAIT_MS, "MinBytes": 1, "MaxBytes": FETCH_BYTES_MAX,
            "SessionEpoch": -1, "Topics": [{"Topic": self._topic, "Partitions": [fetched]}],
        }  # fmt: skip
        response = await self._client.call(
            "Fetch", body, to=LeaderOf(*self._partition), version_max=FETCH_BY_NAME_LAST, lane=LANE
        )
        result = response["Responses"][0]["Partitions"][0]
        if result["ErrorCode"] == Code.OFFSET_OUT_OF_RANGE:
            raise _OffsetLost
        check("Fetch", result["ErrorCode"], None, f"topic {self._topic!r}")
        for batch in batches(result["Records"] or b""):
            if not batch.is_control:
                for row in records(batch):
                    event = decoded(row.value or b"", row.timestamp_ms / 1000)
                    if row.offset >= position and event is not None:
                        await handle(event, row.offset >= live_from)
            position = max(position, batch.last_offset + 1)
        return position
