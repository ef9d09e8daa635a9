"""Run plain-function handlers on a bounded set of threads.

A thread cannot be cancelled. A handler that outlives its time limit or its partition is reported,
keeps its queue blocked, and its late result is dropped.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from penstock.consume.runner import Runner, Running, read_generator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.consume.record import Record
    from penstock.consume.runner import Work


class ThreadRunner(Runner):
    """Handles up to `concurrency` records or batches at once; starts threads on demand."""

    can_cancel = False

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._work: queue.SimpleQueue[list[Record] | None] = queue.SimpleQueue()
        self._results: deque[tuple[list[Record], object, BaseException | None, float]] = deque()
        self._signalled = False
        self._threads: list[threading.Thread] = []
        self._in_flight = 0  # batches queued or being handled
        self._running: dict[int, tuple[list[Record], float]] = {}  # by id of the batch

    def notify(self) -> None:
        while self._in_flight < self._concurrency and not self._closing:
            batch = self._next_batch()
            if not batch:
                return
            self._in_flight += 1
            if self._in_flight > len(self._threads):
                thread = threading.Thread(target=self._serve, name="penstock-handler", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._running[id(batch)] = (batch, time.monotonic())
            self._work.put(batch)

    def running(self) -> Iterator[Running]:
        for batch, started in list(self._running.values()):
            for record in batch:
                yield Running(record, started)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Does nothing: the record counts as running until its handler returns."""

    async def close(self, seconds: float) -> None:
        self._closing = True
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        while (batch := self._work.get()) is not None:
            started = time.monotonic()
            self._running[id(batch)] = (batch, started)
            result: object = None
            error: BaseException | None = None
            try:
                result = read_generator(self._handler(batch if self._batch_records > 1 else batch[0]))
            except BaseException as caught:  # noqa: BLE001  Completion decides
                error = caught
            self._results.append((batch, result, error, time.monotonic() - started))
            if not self._signalled:
                self._signalled = True
                self._loop.call_soon_threadsafe(self._complete)

    def _complete(self) -> None:
        self._signalled = False
        while self._results:
            batch, result, error, seconds = self._results.popleft()
            self._in_flight -= 1
            del self._running[id(batch)]
            self._latency.observe(seconds, len(batch))
            if error is None:
                self._completion.succeed_batch(batch, result)
            elif isinstance(error, Exception):
                self._completion.fail_batch(batch, error)
            else:
                self._completion.abort(batch, error)
        self.notify()
        self._on_progress()
