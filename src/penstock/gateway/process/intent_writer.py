"""Writes clients' intents to `_penstock.durability`, at least once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from penstock.audit.topics import durability_partition
from penstock.kafka.append import append
from penstock.model import key_names
from penstock.model.durability import LogEvent
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.kafka.client import Client
    from penstock.model.schema import Event

WAITING_MAX: Final = 10_000
RETRY_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 5.0  # for the last ones of a gateway that ends

log = structlog.get_logger("penstock.gateway")


class IntentWriter:
    """Takes a gateway's events once a second, and writes its intents."""

    def __init__(self) -> None:
        self._waiting: deque[LogEvent] = deque(maxlen=WAITING_MAX)
        self._arrived = asyncio.Event()

    def __call__(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, LogEvent):
                self._waiting.append(event)
                self._arrived.set()

    async def run(self, client: Client) -> None:
        """Write until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting and not await self._write(client):
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
        event = self._waiting[0]
        try:
            row = (event.key, event.to_bytes())
            await append(client, durability_partition(event.key), [row], attempts_max=2)
        except PenstockError as failure:
            log.warning("intent not written", **{key_names.ERROR: str(failure)})
            return False
        if self._waiting and self._waiting[0] is event:
            self._waiting.popleft()
        return True
