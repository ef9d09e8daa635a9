"""Writes ack evidence to `_penstock.acks`, at least once and in order.

A record is written again until its topic acknowledges it; readers ignore duplicates by its number. While the
topic cannot be written, records wait in bounded memory. Beyond that the oldest are dropped: their numbers are
missing, and the records behind them carry the count of lost ranges.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from penstock.kafka.append import append
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.events import AckRanges
from penstock.quota.topics import acks_partition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.gateway.limits.ack_ranges import Acks
    from penstock.kafka.client import Client
    from penstock.model.schema import Event

WAITING_BYTES_MAX: Final = 8 << 20
RETRY_SECONDS: Final = 1.0  # doubled with each failure
RETRY_SECONDS_MAX: Final = 60.0
FLUSH_SECONDS: Final = 5.0  # for the last records of a gateway that ends
RECORDS_AT_ONCE: Final = 8  # half a megabyte at most

log = structlog.get_logger("penstock.gateway")


class AckWriter:
    """Takes a gateway's events once a second, and writes its ack evidence."""

    def __init__(self) -> None:
        self.acks: Acks | None = None  # of the gateway, to count what is lost
        self.ranges_written = 0
        self.bytes_written = 0
        self.waiting_bytes = 0
        self._waiting: deque[tuple[AckRanges, int]] = deque()  # records and their sizes
        self._arrived = asyncio.Event()
        self._failing = False

    def __call__(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, AckRanges):
                size = len(event.to_bytes())
                self._waiting.append((event, size))
                self.waiting_bytes += size
                self._arrived.set()
        while self.waiting_bytes > WAITING_BYTES_MAX:
            dropped, size = self._waiting.popleft()
            self.waiting_bytes -= size
            if self.acks is not None:
                self.acks.lost += _ranges_in(dropped)

    async def run(self, client: Client) -> None:
        """Write until cancelled."""
        retry_seconds = RETRY_SECONDS
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                if await self._write(client):
                    retry_seconds = RETRY_SECONDS
                    continue
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)

    async def flush(self, client: Client) -> None:
        """Write what waits, if that succeeds soon."""
        with suppress(TimeoutError):  # what is left is counted and logged
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._waiting and await self._write(client):
                    pass
        if self._waiting:
            log.warning("ack evidence lost", records=len(self._waiting))

    async def _write(self, client: Client) -> bool:
        some = list(self._waiting)[:RECORDS_AT_ONCE]
        lost = self.acks.lost if self.acks is not None else 0
        rows = [(record.key, replace(record, lost=max(record.lost, lost)).to_bytes()) for record, _ in some]
        try:
            await append(client, acks_partition(some[0][0].key), rows, attempts_max=2)
        except PenstockError as failure:
            if not self._failing:
                log.warning("ack evidence not written", **{key_names.ERROR: str(failure)})
            self._failing = True
            return False
        self._failing = False
        for record, size in some:  # one of them may have been dropped meanwhile, and was written all the same
            if self._waiting and self._waiting[0][0] is record:
                self._waiting.popleft()
                self.waiting_bytes -= size
            self.ranges_written += _ranges_in(record)
            self.bytes_written += size
        return True


def _ranges_in(record: AckRanges) -> int:
    return sum(map(len, record.ranges.values()))
