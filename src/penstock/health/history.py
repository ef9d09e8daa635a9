"""The history of probes: `_penstock.health` on each physical cluster.

Probes are written to whichever partition works: one whose leader is the sick broker is avoided for a while,
so that a broker's fault does not hide its own evidence. Readers read all partitions. Acknowledgement by the
leader suffices: after a failover some probes are missing, and missing evidence is unknown.

A reader that starts gets the history of all partitions about in order of time: error budgets are computed
minute by minute, and a probe of a minute that is closed does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import LEADER, PRODUCE_BY_NAME_LAST, produce_body
from penstock.kafka.broker_errors import check
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.kafka.routing import LeaderOf
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.health import HistoryUnreadable, HistoryUnwritable
from penstock.model.errors.wire import OffsetOutOfRange
from penstock.model.events import HealthProbe
from penstock.timed_wait import wait_at_most
from penstock.wire.compression import Compression
from penstock.wire.records import Record, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client

PARTITIONS: Final = 3
RETENTION_MS: Final = 4 * 24 * 3600 * 1000  # longer than the longest burn window
BUFFERED_MAX: Final = 50_000  # probes that wait to be written; beyond that the oldest are dropped
BATCH_MAX: Final = 1_000
FLUSH_SECONDS: Final = 0.5
WRITE_SECONDS_MAX: Final = 2.0
REST_SECONDS: Final = 15.0  # that a partition which failed is avoided for
WAIT_MS: Final = 500
READ_SECONDS_MAX: Final = 4.0
PAUSE_SECONDS: Final = 0.5
RECORDS_PER_STEP: Final = 2_000  # parsed between two looks at other work
AHEAD_MS_MAX: Final = 5 * 60 * 1000  # of one partition before the others, while they are read from the start
WAITS_SECONDS_MAX: Final = 60.0  # for a partition that cannot be read

log = structlog.get_logger("penstock.health")


async def ensure_health_topic(client: Client) -> None:
    configs = {"retention.ms": str(RETENTION_MS)}
    await ensure_topic(client, NewTopic(key_names.HEALTH_TOPIC, PARTITIONS, configs=configs))


class ProbeWriter:
    """Buffers probes, and writes them twice a second."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[HealthProbe] = deque(maxlen=BUFFERED_MAX)
        self._failed_at: dict[int, float] = {}  # partitions, monotonic
        self.written = 0
        self.dropped = 0
        self.last_error = ""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, probe: HealthProbe) -> None:
        self.dropped += len(self._waiting) == BUFFERED_MAX
        self._waiting.append(probe)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            while self._waiting and await self._flush():
                pass

    async def _flush(self) -> bool:
        """Writes one batch; False if no partition accepts it."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
        now_ms = int(time.time() * 1000)
        records = [Record(n, now_ms, each.key, each.to_bytes()) for n, each in enumerate(batch)]
        data = write(records, compression=Compression.LZ4)
        for number in self._order():
            try:
                await self._write(number, data)
            except PenstockError as failure:
                self._failed_at[number] = time.monotonic()
                self._report(str(failure))
                continue
            self._failed_at.pop(number, None)
            self.written += len(batch)
            self.last_error = ""
            return True
        self._waiting.extendleft(reversed(batch))
        return False

    def _order(self) -> list[int]:
        """Partitions that worked first; those that failed lately last."""
        now = time.monotonic()
        rested = {n: now - at > REST_SECONDS for n, at in self._failed_at.items()}
        return sorted(range(PARTITIONS), key=lambda n: (not rested.get(n, True), n))

    async def _write(self, number: int, data: bytes) -> None:
        partition = TopicPartition(key_names.HEALTH_TOPIC, number)
        body = produce_body(partition, data, acks=LEADER)
        to, lane = LeaderOf(*partition), f"health-{number}"
        async with _limited(partition):
            response = await self._client.call(
                "Produce", body, to=to, timeout=WRITE_SECONDS_MAX,
                version_max=PRODUCE_BY_NAME_LAST, retry=False, lane=lane,
            )  # fmt: skip
        result = response["Responses"][0]["PartitionResponses"][0]
        check("Produce", result["ErrorCode"], result.get("ErrorMessage"), f"partition {partition}")

    def _report(self, reason: str) -> None:
        if not self.last_error:
            failure = HistoryUnwritable(reason=reason)
            log.warning("probes not written", **{key_names.ERROR: str(failure)}, remedy=failure.advice)
        self.last_error = reason


class _limited:  # noqa: N801 - a context manager
    """Ends a write that hangs even while its client looks up the leader."""

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._timeout = asyncio.timeout(2 * WRITE_SECONDS_MAX)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]  # passed on as it came
        except TimeoutError:
            raise HistoryUnwritable(reason=f"no response of {self._partition} in time") from None


class ProbeReader:
    """Follows all partitions; `on_probes` gets what each fetch returned."""

    def __init__(self, client: Client, on_probes: Callable[[Sequence[HealthProbe]], None]) -> None:
        self._client = client
        self._on_probes = on_probes
        self._caught_up = [asyncio.Event() for _ in range(PARTITIONS)]
        self._reached = [0.0] * PARTITIONS  # the time of the last probe that each has delivered
        self._moved = asyncio.Event()  # one of them
        self.last_error = ""
        self.skipped = 0  # records that could not be read

    @property
    def caught_up(self) -> bool:
        return all(each.is_set() for each in self._caught_up)

    async def run(self, since_ms: int) -> None:
        """Until cancelled; starts with the probes written since then."""
        async with asyncio.TaskGroup() as group:
            for number in range(PARTITIONS):
                group.create_task(self._follow(TopicPartition(key_names.HEALTH_TOPIC, number), since_ms))

    async def _follow(self, partition: TopicPartition, since_ms: int) -> None:
        position: int | None = None
        lane = f"health-read-{partition.partition}"
        while True:
            try:
                if position is None:
                    position = await self._start(partition, since_ms)
                async with asyncio.timeout(READ_SECONDS_MAX):
                    chunk = await read(self._client, partition, position, wait_ms=WAIT_MS, lane=lane)
                for first in range(0, len(chunk.records), RECORDS_PER_STEP):
                    some = self._parsed(chunk.records[first : first + RECORDS_PER_STEP])
                    await self._deliver(partition.partition, some)
                    await asyncio.sleep(0)
                position, self.last_error = chunk.position, ""
                if chunk.caught_up:
                    self._caught_up[partition.partition].set()
                    self._reach(partition.partition, math.inf)
            except OffsetOutOfRange:
                position = None
            except (PenstockError, TimeoutError) as failure:
                reason = str(failure) or f"no response within {READ_SECONDS_MAX:g} s"
                if not self.last_error:
                    unreadable = HistoryUnreadable(reason=reason)
                    log.warning("probes not read", **{key_names.ERROR: str(unreadable)})
                self.last_error = reason
                self._reach(partition.partition, math.inf)  # the others do not wait for it
                await self._find_leader(partition)

    async def _deliver(self, number: int, probes: Sequence[HealthProbe]) -> None:
        """In steps: none of them is much later than what the other partitions have delivered."""
        while probes and not self._caught_up[number].is_set():
            limit_ms = min(self._reached[:number] + self._reached[number + 1 :]) + AHEAD_MS_MAX
            count = next((n for n, each in enumerate(probes) if each.time_ms > limit_ms), len(probes))
            if count:
                self._on_probes(probes[:count])
                self._reach(number, probes[count - 1].time_ms)
                probes = probes[count:]
                continue
            # The others must see how far this one is, or each would wait for another.
            self._reach(number, probes[0].time_ms)
            self._moved.clear()
            if not await wait_at_most(self._moved, WAITS_SECONDS_MAX):
                break
        if probes:
            self._on_probes(probes)

    def _reach(self, number: int, time_ms: float) -> None:
        self._reached[number] = time_ms
        self._moved.set()

    async def _find_leader(self, partition: TopicPartition) -> None:
        """The leader may be the broker that hangs: then another has been elected."""
        await asyncio.sleep(PAUSE_SECONDS)
        with contextlib.suppress(PenstockError):  # the next read reports it
            await self._client.leaders([partition.topic], strict=False, timeout=READ_SECONDS_MAX)

    async def _start(self, partition: TopicPartition, since_ms: int) -> int:
        results = await list_offsets(self._client, {partition: since_ms})
        offset = results[partition]
        if isinstance(offset, PenstockError):
            raise offset
        return offset.offset if offset.offset >= 0 else (await bounds(self._client, partition))[1]

    def _parsed(self, records: Sequence[Record]) -> list[HealthProbe]:
        probes = []
        for record in records:
            try:
                probes.append(HealthProbe.from_bytes(record.value or b""))
            except PenstockError as failure:  # perhaps of a newer checker
                if not self.skipped:
                    log.warning("probe not understood", **{key_names.ERROR: str(failure)})
                self.skipped += 1
        return probes
