"""Writes clients' intents to `_penstock.durability`, at least once.

An intent that comes ten seconds late makes a client's deletion look like a loss. So a partition whose leader
has just died is avoided for a while: the audit reads intents from all of them. While none can be written,
they wait in bounded memory: beyond that the oldest are dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit.topics import PARTITIONS, durability_partition
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.model import key_names
from penstock.model.durability import LogEvent
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.gateway.limits.intents import Intents
    from penstock.kafka.client import Client
    from penstock.model.schema import Event

WAITING_MAX: Final = 10_000
EVENTS_AT_ONCE: Final = 500  # in a few requests, one for each partition
RETRY_SECONDS: Final = 1.0
WRITE_SECONDS_MAX: Final = 2.0  # of one attempt
REST_SECONDS: Final = 15.0  # that a partition which failed is avoided for
FLUSH_SECONDS: Final = 5.0  # for the last ones of a gateway that ends

log = structlog.get_logger("penstock.gateway")


class IntentWriter:
    """Takes a gateway's events once a second, and writes its intents."""

    def __init__(self) -> None:
        self.intents: Intents | None = None  # of the gateway, to count what is lost
        self._waiting: deque[LogEvent] = deque()
        self._arrived = asyncio.Event()
        self._failed_at: dict[TopicPartition, float] = {}  # monotonic

    def __call__(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, LogEvent):
                self._waiting.append(event)
                self._arrived.set()
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            if self.intents is not None:
                self.intents.lost += 1

    async def run(self, client: Client) -> None:
        """Write until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                if not await self._write(client):
                    await asyncio.sleep(RETRY_SECONDS)

    async def flush(self, client: Client) -> None:
        """Write what waits, if that succeeds soon."""
        with suppress(TimeoutError):  # what is left is counted and logged
            async with asyncio.timeout(FLUSH_SECONDS):
                while self._waiting and await self._write(client):
                    pass
        if self._waiting:
            log.warning("intents lost", events=len(self._waiting))

    async def _write(self, client: Client) -> bool:
        by_partition: dict[TopicPartition, list[LogEvent]] = {}
        for event in islice(self._waiting, EVENTS_AT_ONCE):
            by_partition.setdefault(durability_partition(event.key), []).append(event)
        written: set[int] = set()
        try:
            for partition, events in by_partition.items():
                if not await self._append(client, partition, events):
                    return False
                written |= {event.sequence for event in events}
        finally:
            self._waiting = deque(event for event in self._waiting if event.sequence not in written)
        return True

    async def _append(self, client: Client, first: TopicPartition, events: list[LogEvent]) -> bool:
        """To this partition if it works, else to another one."""
        rows, reason = [(event.key, event.to_bytes()) for event in events], ""
        for partition in self._order(first):
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await append(client, partition, rows, attempts_max=2)
            except (PenstockError, TimeoutError) as failure:
                self._failed_at[partition] = time.monotonic()
                reason = str(failure) or "no response"
                continue
            self._failed_at.pop(partition, None)
            return True
        log.warning("intents not written", **{key_names.ERROR: reason})
        return False

    def _order(self, first: TopicPartition) -> list[TopicPartition]:
        """Those that failed lately last."""
        now = time.monotonic()
        every = [TopicPartition(first.topic, (first.partition + n) % PARTITIONS) for n in range(PARTITIONS)]
        return sorted(every, key=lambda each: now - self._failed_at.get(each, float("-inf")) < REST_SECONDS)
