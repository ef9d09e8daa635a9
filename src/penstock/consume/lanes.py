"""Runners for coroutine handlers: long-lived tasks that pull the next record themselves.

No task is made for a record. A lane takes a record, awaits the handler, settles the result and
takes the next; a handler that never suspends costs one coroutine and no turn of the event loop.
Lanes are woken one after the other: whoever takes a record wakes one more if there is more to
take, so that a batch of instant records is done by one lane, and a batch of slow ones by all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from penstock.consume.running import LATENCY_BOUNDS, Running
from penstock.model.errors.consume import HandlerTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.consume.record import Record
    from penstock.consume.running import Work

log = logging.getLogger("penstock.consume")

RECORDS_PER_TURN_MAX: Final = 256  # then look whether others wait for the event loop
TURN_SECONDS_MAX: Final = 0.005


class Lane:
    """One of `concurrency` tasks, and what it is doing."""

    __slots__ = ("cancelled", "record", "records", "started", "task", "timed_out", "waiter")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.record: Record | None = None
        self.records: list[Record] = []  # the batch, when records are handled together
        self.started = 0.0
        self.cancelled: float | None = None  # when we cancelled its handler, and why
        self.timed_out = False


class AsyncRunner:
    """Up to `concurrency` records at once, on the event loop."""

    def __init__(self, work: Work) -> None:
        self._handler = work.handler
        self._concurrency = work.concurrency
        self._batch_records = work.batch_records
        self._core = work.core
        self._coordinator = work.core.coordinator
        self._settlement = work.settlement
        self._latency = work.latency
        self._turn = work.turn
        self._lanes: list[Lane] = []
        self._idle: list[Lane] = []
        self._waking = False
        self._closing = False

    def notify(self) -> None:
        """There may be something to take."""
        if not self._waking and self._coordinator.has_ready:
            self._wake_one()

    def running(self) -> Iterator[Running]:
        for lane in self._lanes:
            for record in lane.records if self._batch_records > 1 else (lane.record,):
                if record is not None:
                    yield Running(record, lane.started, lane.cancelled)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Ends the handler of this record; its lane goes on with others."""
        for lane in self._lanes:
            if (lane.record is record or record in lane.records) and lane.cancelled is None and lane.task:
                lane.cancelled = time.monotonic()
                lane.timed_out = timed_out
                lane.task.cancel()

    @property
    def can_cancel(self) -> bool:
        return True

    async def close(self, seconds: float) -> None:
        """Ends all lanes; those that do not let themselves be cancelled are left behind and named."""
        self._closing = True
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=seconds)
            for lane in self._lanes:
                if lane.task in pending:
                    log.error("the handler of %s does not end when cancelled; it is left behind", lane.record)

    def _wake_one(self) -> None:
        if self._closing:
            return
        if self._idle:
            self._waking = True
            waiter = self._idle.pop().waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        elif len(self._lanes) < self._concurrency:
            self._waking = True
            lane = Lane()
            self._lanes.append(lane)
            work = self._run_batches(lane) if self._batch_records > 1 else self._run(lane)
            lane.task = asyncio.create_task(work, name=f"penstock-lane-{len(self._lanes)}")

    async def _park(self, lane: Lane) -> None:
        lane.waiter = asyncio.get_running_loop().create_future()
        self._idle.append(lane)
        self._turn()
        await lane.waiter
        self._waking = False

    async def _run(self, lane: Lane) -> None:
        handler, take, finish = self._handler, self._coordinator.take, self._core.finish
        buckets, latency, clock, settlement = (
            self._latency.buckets,
            self._latency,
            time.monotonic,
            self._settlement,
        )
        turns, shortest = self._coordinator.turns, LATENCY_BOUNDS[0]
        count = 0
        now = yielded = clock()
        self._waking = False
        while True:
            record = take()
            if record is None:
                await self._park(lane)
                now = yielded = clock()
                continue
            if turns and not self._waking:
                self._wake_one()
            lane.record = record
            lane.started = started = now
            try:
                result = await handler(record)
            except Exception as error:  # noqa: BLE001  the policy decides what becomes of it
                lane.record = None
                self._end_cancel(lane)
                settlement.fail(record, error)
            except BaseException as error:  # noqa: BLE001  cancelled by us, or escalated by `_ended`
                lane.record = None
                self._ended(lane, [record], error)
            else:
                lane.record = None
                if lane.cancelled is not None:
                    self._end_cancel(lane)
                if result is None:
                    finish(record)
                else:
                    settlement.succeed(record, result)
            now = clock()
            seconds = now - started
            buckets[0 if seconds <= shortest else bisect_left(LATENCY_BOUNDS, seconds)] += 1
            latency.seconds += seconds
            count += 1
            if count >= RECORDS_PER_TURN_MAX:
                count = 0
                self._turn()
                if now - yielded > TURN_SECONDS_MAX:
                    await asyncio.sleep(0)
                    now = yielded = clock()

    async def _run_batches(self, lane: Lane) -> None:
        self._waking = False
        while True:
            batch = lane.records = self._coordinator.take_batch(self._batch_records)
            if not batch:
                await self._park(lane)
                continue
            if self._coordinator.has_ready and not self._waking:
                self._wake_one()
            lane.record = batch[0]
            lane.started = time.monotonic()
            try:
                result = await self._handler(batch)
            except Exception as error:  # noqa: BLE001  the policy decides what becomes of it
                lane.record, lane.records = None, []
                self._end_cancel(lane)
                self._settlement.fail_batch(batch, error)
            except BaseException as error:  # noqa: BLE001  cancelled by us, or escalated by `_ended`
                lane.record, lane.records = None, []
                self._ended(lane, batch, error)
            else:
                lane.record, lane.records = None, []
                self._end_cancel(lane)
                self._settlement.succeed_batch(batch, result)
            self._latency.observe(time.monotonic() - lane.started, len(batch))
            self._turn()

    def _end_cancel(self, lane: Lane) -> None:
        if lane.cancelled is not None:
            lane.cancelled = None
            if lane.task is not None:
                lane.task.uncancel()

    def _ended(self, lane: Lane, batch: list[Record], error: BaseException) -> None:
        """The handler ended with something that is no Exception."""
        settlement = self._settlement
        if not isinstance(error, asyncio.CancelledError):
            for record in batch[1:]:
                self._core.abandon(record)
            settlement.abort(batch[0], error)
        elif self._closing:
            for record in batch:
                self._core.abandon(record)
            raise error
        elif lane.cancelled is None:  # the handler's own doing: something it awaited was cancelled
            settlement.fail_batch(batch, error)
        elif lane.timed_out:
            seconds = time.monotonic() - lane.started
            self._end_cancel(lane)
            settlement.fail_batch(batch, HandlerTimedOut(record=batch[0], seconds=seconds))
        else:  # a partition went; those of the batch that are still ours run again
            self._end_cancel(lane)
            self._core.counts.abandoned += sum(not record.assignment.live for record in batch)
            self._coordinator.put_back(batch)
            self.notify()
