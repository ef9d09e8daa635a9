"""Runners for plain functions: a fixed set of threads, fed and emptied in batches.

A thread cannot be cancelled: a handler that outlives its time-out or its partition is reported,
keeps its lane, and its late result is dropped.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from penstock.consume.running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.consume.record import Record
    from penstock.consume.running import Work


class ThreadRunner:
    """Up to `concurrency` records, or batches of them, at once; threads are started as they are needed."""

    def __init__(self, work: Work) -> None:
        self._handler = work.handler
        self._concurrency = work.concurrency
        self._batch_records = work.batch_records
        self._coordinator = work.core.coordinator
        self._core = work.core
        self._settlement = work.settlement
        self._latency = work.latency
        self._turn = work.turn
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[list[Record] | None] = queue.SimpleQueue()
        self._results: deque[tuple[list[Record], object, BaseException | None, float]] = deque()
        self._signalled = False
        self._threads: list[threading.Thread] = []
        self._given = 0  # batches in the threads' hands
        self._started: dict[int, tuple[list[Record], float]] = {}
        self._closing = False

    @property
    def can_cancel(self) -> bool:
        return False

    def notify(self) -> None:
        while self._given < self._concurrency and not self._closing:
            batch = self._coordinator.take_batch(self._batch_records)
            if not batch:
                return
            self._given += 1
            if self._given > len(self._threads):
                thread = threading.Thread(target=self._serve, name="penstock-handler", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(batch)

    def running(self) -> Iterator[Running]:
        for batch, started in list(self._started.values()):
            for record in batch:
                yield Running(record, started)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Not possible; the record counts as running until its thread comes back."""

    async def close(self, seconds: float) -> None:
        self._closing = True
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        me = threading.get_ident()
        while (batch := self._work.get()) is not None:
            started = time.monotonic()
            self._started[me] = (batch, started)
            result: object = None
            error: BaseException | None = None
            try:
                result = self._handler(batch if self._batch_records > 1 else batch[0])
            except BaseException as caught:  # noqa: BLE001  the settlement decides what becomes of it
                error = caught
            del self._started[me]
            self._results.append((batch, result, error, time.monotonic() - started))
            if not self._signalled:
                self._signalled = True
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._signalled = False
        while self._results:
            batch, result, error, seconds = self._results.popleft()
            self._given -= 1
            self._latency.observe(seconds, len(batch))
            if error is None:
                self._settlement.succeed_batch(batch, result)
            elif isinstance(error, Exception):
                self._settlement.fail_batch(batch, error)
            else:
                for record in batch[1:]:
                    self._core.abandon(record)
                self._settlement.abort(batch[0], error)
        self.notify()
        self._turn()
