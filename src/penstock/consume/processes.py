"""Runners for work that keeps a processor busy: worker processes, fed in chunks.

A chunk is sized so that a worker is busy for some twenty milliseconds, and its records are of
different lanes. A worker that dies, or outlives the time-out and is killed, fails the record it
was at; if it was at several, each is run alone next, so that the bad one is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.consume.running import Running
from penstock.model.errors.consume import HandlerTimedOut, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from penstock.consume.record import Record
    from penstock.consume.running import Work

CHUNK_SECONDS: Final = 0.02
CHUNK_RECORDS_MAX: Final = 512
_context: Final = multiprocessing.get_context("spawn")  # a fork would copy the Kafka client's threads' locks


def serve(connection: Connection, handler: Callable[[Any], object]) -> None:
    """A worker's life: chunks in, outcomes out, until the pipe closes."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            records = connection.recv()
            outcomes: list[tuple[bool, Any]] = []
            started = time.monotonic()
            for record in records:
                try:
                    outcomes.append((True, handler(record)))
                except Exception as error:  # noqa: BLE001  told to the consumer, which has the policy
                    outcomes.append((False, _portable(error)))
            seconds = time.monotonic() - started
            try:
                connection.send((outcomes, seconds))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                connection.send(([(False, _portable(error))] * len(records), seconds))


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    except Exception:  # noqa: BLE001  whatever its class does when pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@dataclass(slots=True, eq=False)
class Worker:
    """A process, its pipe, and the thread that talks to it."""

    process: Any
    connection: Connection
    chunks: queue.SimpleQueue[list[Record] | None] = field(default_factory=queue.SimpleQueue)
    chunk: list[Record] = field(default_factory=list)
    started: float = 0.0
    timed_out: bool = False
    thread: threading.Thread | None = None


class ProcessRunner:
    """Keeps `concurrency` processes busy."""

    def __init__(self, work: Work, prepare: Callable[[Record], bool] | None = None) -> None:
        self._handler = work.handler
        self._prepare = prepare  # filter and deserialisers run here, in the consumer's own process
        self._core = work.core
        self._coordinator = work.core.coordinator
        self._settlement = work.settlement
        self._latency = work.latency
        self._turn = work.turn
        self._loop = asyncio.get_running_loop()
        self._record_seconds = CHUNK_SECONDS  # of late; the first chunks are of one record
        self._closing = False
        self._workers = [self._hire() for _ in range(work.concurrency)]

    @property
    def can_cancel(self) -> bool:
        return True

    def notify(self) -> None:
        if self._closing:
            return
        free = [worker for worker in self._workers if not worker.chunk]
        for index, worker in enumerate(free):
            size = max(1, min(CHUNK_RECORDS_MAX, int(CHUNK_SECONDS / max(self._record_seconds, 1e-6))))
            fair = -(-self._coordinator.ready_count // (len(free) - index))
            chunk = self._take(min(size, fair))
            if not chunk:
                return
            worker.chunk, worker.started = chunk, time.monotonic()
            worker.chunks.put(chunk)

    def running(self) -> Iterator[Running]:
        for worker in self._workers:
            for record in worker.chunk:
                yield Running(record, worker.started)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Kills the worker that has the record; a new one takes its place."""
        for worker in self._workers:
            if record in worker.chunk:
                worker.timed_out = timed_out
                worker.process.kill()

    async def close(self, seconds: float) -> None:
        self._closing = True
        for worker in self._workers:
            worker.chunks.put(None)
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            await asyncio.to_thread(worker.process.join, max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
            await asyncio.to_thread(worker.process.join)

    def _take(self, size: int) -> list[Record]:
        chunk: list[Record] = []
        while len(chunk) < size:
            record = self._coordinator.take()
            if record is None:
                break
            if self._prepare is not None and not self._is_wanted(record):
                continue
            chunk.append(record)
            if record.attempt > 1:  # it may be the one that kills workers
                self._coordinator.put_back(chunk[:-1])
                return [record]
        return chunk

    def _is_wanted(self, record: Record) -> bool:
        """Settles at once what needs no worker: filtered out, or not to be read."""
        assert self._prepare is not None
        try:
            wanted = self._prepare(record)
        except Exception as error:  # noqa: BLE001  the policy decides what becomes of it
            self._settlement.fail(record, error)
            return False
        if not wanted:
            self._core.finish(record)
        return wanted

    def _hire(self) -> Worker:
        ours, theirs = _context.Pipe()
        process = _context.Process(
            target=serve, args=(theirs, self._handler), name="penstock-worker", daemon=True
        )
        process.start()
        theirs.close()
        worker = Worker(process, ours)
        worker.thread = threading.Thread(target=self._converse, args=(worker,), daemon=True)
        worker.thread.start()
        return worker

    def _converse(self, worker: Worker) -> None:
        """On a thread: one chunk there and back at a time."""
        while (chunk := worker.chunks.get()) is not None:
            try:
                worker.connection.send(chunk)
                outcomes, seconds = worker.connection.recv()
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._bury, worker)
                return
            self._loop.call_soon_threadsafe(self._settle, worker, outcomes, seconds)
        worker.connection.close()

    def _settle(self, worker: Worker, outcomes: list[tuple[bool, Any]], seconds: float) -> None:
        chunk, worker.chunk = worker.chunk, []
        self._record_seconds = 0.5 * self._record_seconds + 0.5 * seconds / len(chunk)
        self._latency.observe(seconds / len(chunk), len(chunk))
        for record, (fine, outcome) in zip(chunk, outcomes, strict=True):
            if fine:
                self._settlement.succeed(record, outcome)
            else:
                self._settlement.fail(record, outcome)
        self.notify()
        self._turn()

    def _bury(self, worker: Worker) -> None:
        """The worker is dead: settle what it had, and hire another."""
        worker.process.join()
        chunk, worker.chunk = worker.chunk, []
        self._workers.remove(worker)
        if self._closing:
            for record in chunk:
                self._core.abandon(record)
            return
        self._workers.append(self._hire())
        if len(chunk) == 1 and worker.timed_out:
            seconds = time.monotonic() - worker.started
            self._settlement.fail(chunk[0], HandlerTimedOut(record=chunk[0], seconds=seconds))
        elif chunk and all(not record.assignment.live for record in chunk):
            for record in chunk:
                self._core.abandon(record)
        elif chunk:
            died = WorkerDied(pid=worker.process.pid, exit_code_seen=worker.process.exitcode, record=chunk[0])
            self._settlement.fail_batch(chunk, died)
        self.notify()
