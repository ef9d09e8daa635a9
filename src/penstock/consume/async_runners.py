"""Run coroutine handlers: long-lived tasks that pull the next record themselves.

No task is created for a record. A worker task takes a record, awaits the handler, completes the
record and takes the next. A handler that never suspends costs one coroutine and no event-loop
iteration. A task that was woken and takes a record wakes two more if records remain. One task thus
does a batch of instant records, and a batch of n slow ones is started within log n iterations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.consume.runner import LATENCY_BOUNDS, Runner, Running
from penstock.model.errors.consume import HandlerTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.consume.record import Record
    from penstock.consume.runner import Work

log = logging.getLogger("penstock.consume")

RECORDS_PER_STEP_MAX: Final = 256  # then check whether to yield to the event loop
STEP_SECONDS_MAX: Final = 0.005


@dataclass(slots=True, eq=False)
class WorkerTask:
    """One of `concurrency` tasks, and the record it handles."""

    task: asyncio.Task[None] | None = None
    waiter: asyncio.Future[None] | None = None
    record: Record | None = None
    records: list[Record] = field(default_factory=list)  # the batch, for a batch handler
    started: float = 0.0
    cancelled: float | None = None  # when the runner cancelled its handler
    timed_out: bool = False


class AsyncRunner(Runner):
    """Handles up to `concurrency` records at once on the event loop."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self._workers: list[WorkerTask] = []
        self._idle: list[WorkerTask] = []
        self._waking = 0  # tasks woken that have not run since

    def notify(self) -> None:
        """Wakes a task if a record is ready."""
        if not self._waking and self._coordinator.has_ready:
            self._wake_one()

    def running(self) -> Iterator[Running]:
        for worker in self._workers:
            for record in worker.records if self._batch_records > 1 else (worker.record,):
                if record is not None:
                    yield Running(record, worker.started, worker.cancelled)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Cancels the handler of this record; its task continues with the next."""
        for worker in self._workers:
            handles = worker.record is record or record in worker.records
            if handles and worker.cancelled is None and worker.task:
                worker.cancelled = time.monotonic()
                worker.timed_out = timed_out
                worker.task.cancel()

    async def close(self, seconds: float) -> None:
        """Cancels all tasks; logs those that ignore it and leaves them behind."""
        self._closing = True
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=seconds)
            for worker in self._workers:
                if worker.task in pending:
                    log.error("handler of %s ignored its cancellation; left running", worker.record)

    def _wake_one(self) -> None:
        if self._closing:
            return
        if self._idle:
            waiter = self._idle.pop().waiter
            if waiter is not None and not waiter.done():
                self._waking += 1
                waiter.set_result(None)
        elif len(self._workers) < self._concurrency:
            self._waking += 1
            worker = WorkerTask()
            self._workers.append(worker)
            work = self._run_batches(worker) if self._batch_records > 1 else self._run(worker)
            worker.task = asyncio.create_task(work, name=f"penstock-handler-{len(self._workers)}")

    async def _park(self, worker: WorkerTask) -> None:
        worker.waiter = self._loop.create_future()
        self._idle.append(worker)
        self._on_progress()
        await worker.waiter
        self._waking -= 1

    async def _run(self, worker: WorkerTask) -> None:
        handler, take, finish = self._handler, self._coordinator.take, self._core.finish
        latency, clock, completion = self._latency, time.monotonic, self._completion
        buckets = latency.buckets
        ready_partitions, shortest = self._coordinator.ready_partitions, LATENCY_BOUNDS[0]
        count = 0
        now = yielded = clock()
        self._waking -= 1
        woken = True
        while True:
            record = take()
            if record is None:
                await self._park(worker)
                now = yielded = clock()
                woken = True
                continue
            if ready_partitions and (woken or not self._waking):
                self._wake_one()
                if woken:
                    woken = False
                    self._wake_one()
            worker.record = record
            worker.started = started = now
            try:
                result = await handler(record)
            except Exception as error:  # noqa: BLE001  the retry policy decides
                worker.record = None
                self._end_cancel(worker)
                completion.fail(record, error)
            except BaseException as error:  # noqa: BLE001  cancelled, or escalated by `_ended`
                worker.record = None
                self._ended(worker, [record], error)
            else:
                worker.record = None
                if worker.cancelled is not None:
                    self._end_cancel(worker)
                if result is None:
                    finish(record)
                else:
                    completion.succeed(record, result)
            now = clock()
            seconds = now - started
            buckets[0 if seconds <= shortest else bisect_left(LATENCY_BOUNDS, seconds)] += 1
            latency.seconds += seconds
            count += 1
            if count >= RECORDS_PER_STEP_MAX:
                count = 0
                self._on_progress()
                if now - yielded > STEP_SECONDS_MAX:
                    await asyncio.sleep(0)
                    now = yielded = clock()

    async def _run_batches(self, worker: WorkerTask) -> None:
        self._waking -= 1
        while True:
            batch = worker.records = self._next_batch()
            if not batch:
                await self._park(worker)
                continue
            if self._coordinator.has_ready and not self._waking:
                self._wake_one()
            worker.record = batch[0]
            worker.started = time.monotonic()
            try:
                result = await self._handler(batch)
            except Exception as error:  # noqa: BLE001  the retry policy decides
                worker.record, worker.records = None, []
                self._end_cancel(worker)
                self._completion.fail_batch(batch, error)
            except BaseException as error:  # noqa: BLE001  cancelled, or escalated by `_ended`
                worker.record, worker.records = None, []
                self._ended(worker, batch, error)
            else:
                worker.record, worker.records = None, []
                self._end_cancel(worker)
                self._completion.succeed_batch(batch, result)
            self._latency.observe(time.monotonic() - worker.started, len(batch))
            self._on_progress()

    def _end_cancel(self, worker: WorkerTask) -> None:
        if worker.cancelled is not None:
            worker.cancelled = None
            if worker.task is not None:
                worker.task.uncancel()

    def _ended(self, worker: WorkerTask, batch: list[Record], error: BaseException) -> None:
        """Completes records whose handler raised something other than an Exception."""
        completion = self._completion
        if not isinstance(error, asyncio.CancelledError):
            completion.abort(batch, error)
        elif self._closing:
            for record in batch:
                self._core.abandon(record)
            raise error
        elif worker.cancelled is None:  # not ours: something the handler awaited was cancelled
            completion.fail_batch(batch, error)
        elif worker.timed_out:
            seconds = time.monotonic() - worker.started
            self._end_cancel(worker)
            completion.fail_batch(batch, HandlerTimedOut(record=batch[0], seconds=seconds))
        else:  # a partition was revoked; the rest of the batch runs again
            self._end_cancel(worker)
            self._core.counts.abandoned += sum(not record.assignment.live for record in batch)
            self._coordinator.put_back(batch)
            self.notify()
