"""Following a compacted partition: rebuild from its start, then stay with it.

Whoever follows says how far it is. It never goes on over a gap: when its place in the log is gone,
or when it was out of touch for so long that deletions may have been compacted away, it begins
again from the start, and is not caught up until it is.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.log import bounds, read
from penstock.model.errors import PenstockError
from penstock.model.errors.wire import PlaceLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client
    from penstock.kafka.partitions import TopicPartition
    from penstock.wire.records import Record

WAIT_MS: Final = 500
PAUSE_SECONDS: Final = 0.25  # after a failed read
# Well below the topics' delete.retention.ms, for which Kafka keeps deletions readable.
TOUCH_SECONDS_MAX: Final = 3600.0

log = structlog.get_logger("penstock.kafka")


class Follower:
    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        *,
        take: Callable[[Sequence[Record]], None],
        reset: Callable[[], None],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self.partition = partition
        self._take = take
        self._reset = reset
        self._told = moved
        self.position = 0  # the next offset to be read
        self.end = -1  # of what was committed, when last asked; −1: never
        self.rebuilds = 0
        self._moved = asyncio.Event()

    @property
    def caught_up(self) -> bool:
        return self.end >= 0 and self.position >= self.end

    async def run(self) -> None:
        """Until cancelled."""
        touched = time.monotonic()
        started = False
        while True:
            try:
                if not started or time.monotonic() - touched > TOUCH_SECONDS_MAX:
                    self._begin()
                    first, self.end = await bounds(self._client, self.partition)
                    self.position, started = first, True
                    self._tell()
                lane = f"follow {self.partition}"
                chunk = await read(self._client, self.partition, self.position, wait_ms=WAIT_MS, lane=lane)
            except PlaceLost:
                started = False
                continue
            except PenstockError as failure:
                log.warning("cannot follow", topic=self.partition.topic, error=str(failure))
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            touched = time.monotonic()
            if chunk.records:
                self._take(chunk.records)
            self.position, self.end = chunk.position, chunk.end
            self._tell()

    async def until(self, offset: int) -> None:
        """Returns when everything up to and with this offset was taken."""
        while self.position <= offset:
            await self._moved.wait()

    async def until_caught_up(self) -> None:
        while not self.caught_up:
            await self._moved.wait()

    def _begin(self) -> None:
        self.end, self.position = -1, 0
        self.rebuilds += 1
        self._reset()

    def _tell(self) -> None:
        self._told()
        self._moved.set()
        self._moved = asyncio.Event()
