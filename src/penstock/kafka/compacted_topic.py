"""Follow a compacted partition: read it from its start, then keep up with it.

The reader never skips a gap. It starts over when its offset is no longer in the log, or when it was
disconnected for so long that tombstones may have been compacted away. Until it has read to the end
again, it is not caught up.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.partition_log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.admin.partitions import TopicPartition
    from penstock.kafka.client import Client
    from penstock.wire.records import Record

WAIT_MS: Final = 500
PAUSE_SECONDS: Final = 0.25  # after a failed read
# Well below the topics' delete.retention.ms, for which Kafka keeps tombstones readable.
DISCONNECTED_SECONDS_MAX: Final = 3600.0

log = structlog.get_logger("penstock.kafka")


class CompactedTopicReader:
    """Calls `apply` with new records, `reset` before it starts over, and `progressed` after each fetch."""

    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        *,
        apply: Callable[[Sequence[Record]], None],
        reset: Callable[[], None],
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self.partition = partition
        self._apply = apply
        self._reset = reset
        self._progressed = progressed
        self.position = 0  # the next offset to read
        self.end = -1  # the end of the committed records at the last fetch; −1 before the first
        self._position_changed = asyncio.Event()

    @property
    def caught_up(self) -> bool:
        return self.end >= 0 and self.position >= self.end

    async def run(self) -> None:
        """Follow the partition until cancelled."""
        read_at = time.monotonic()
        started = False
        while True:
            try:
                if not started or time.monotonic() - read_at > DISCONNECTED_SECONDS_MAX:
                    self._start_over()
                    first, self.end = await bounds(self._client, self.partition)
                    self.position, started = first, True
                    self._notify()
                lane = f"follow {self.partition}"
                fetched = await read(self._client, self.partition, self.position, wait_ms=WAIT_MS, lane=lane)
            except OffsetOutOfRange:
                started = False
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except PenstockError as failure:
                log.warning("fetch failed", topic=self.partition.topic, error=str(failure))
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            read_at = time.monotonic()
            if fetched.records:
                self._apply(fetched.records)
            self.position, self.end = fetched.position, fetched.end
            self._notify()

    async def wait_for_offset(self, offset: int) -> None:
        """Return once the record at this offset has been applied."""
        while self.position <= offset:
            await self._position_changed.wait()

    async def wait_until_caught_up(self) -> None:
        while not self.caught_up:
            await self._position_changed.wait()

    def _start_over(self) -> None:
        self.end, self.position = -1, 0
        self._reset()

    def _notify(self) -> None:
        self._progressed()
        self._position_changed.set()
        self._position_changed = asyncio.Event()
