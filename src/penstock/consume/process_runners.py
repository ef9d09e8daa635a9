"""Run CPU-bound handlers in worker processes, which get records in chunks.

A chunk keeps a worker busy for about twenty milliseconds and has at most one record of each key. For a batch
handler, a chunk is one batch.
A worker that dies, or is killed on a time-out, fails its record. If its chunk had several records,
each runs alone next, which isolates the bad one.
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

from penstock.consume.runner import Runner, Running, read_generator
from penstock.model.errors.consume import HandlerTimedOut, PayloadUnsendable, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from penstock.consume.record import Record
    from penstock.consume.runner import Work

CHUNK_SECONDS: Final = 0.02
CHUNK_RECORDS_MAX: Final = 512
Outcome = tuple[bool, bytes | None]  # whether it succeeded; the pickled result or exception
# Not fork: it would copy locks held by the Kafka client's threads.
_context: Final = multiprocessing.get_context("spawn")


def run_worker(connection: Connection, handler: Callable[[Any], object], batches: bool) -> None:
    """The worker process: handles chunks and sends their outcomes until the pipe closes."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            data = connection.recv_bytes()
            started = time.monotonic()
            outcomes = _outcomes(data, handler, batches)
            connection.send((outcomes, time.monotonic() - started))


def _outcomes(data: bytes, handler: Callable[[Any], object], batches: bool) -> list[Outcome]:
    """One outcome for each record, or one for the whole chunk."""
    try:
        records = pickle.loads(data)  # noqa: S301  sent by the consumer
    except Exception as error:  # noqa: BLE001  a class may raise anything when unpickled
        return [(False, _portable(error))]
    return [_outcome(handler, each) for each in ([records] if batches else records)]


def _outcome(handler: Callable[[Any], object], given: Any) -> Outcome:
    try:
        result = read_generator(handler(given))
        return True, None if result is None else pickle.dumps(result)
    except Exception as error:  # noqa: BLE001  sent to the consumer, whose retry policy decides
        return False, _portable(error)


def _portable(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301  pickled on the line before
    except Exception:  # noqa: BLE001  its class may raise anything when pickled
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


@dataclass(slots=True, eq=False)
class Worker:
    """A process, its pipe, and the thread that serves the pipe."""

    process: Any
    connection: Connection
    chunks: queue.SimpleQueue[list[Record] | None] = field(default_factory=queue.SimpleQueue)
    chunk: list[Record] = field(default_factory=list)
    started: float = 0.0
    timed_out: bool = False
    thread: threading.Thread | None = None


class ProcessRunner(Runner):
    """Handles records in `concurrency` worker processes."""

    def __init__(self, work: Work, prepare: Callable[[Record], bool] | None) -> None:
        super().__init__(work)
        self._prepare = prepare  # filter and deserializers; they run in the consumer's process
        self._record_seconds = CHUNK_SECONDS  # moving average; the first chunks have one record
        self._workers = [self._start_worker() for _ in range(self._concurrency)]

    def notify(self) -> None:
        if self._closing:
            return
        free = [worker for worker in self._workers if not worker.chunk]
        for index, worker in enumerate(free):
            if self._batch_records > 1:
                chunk, needed = self._take_batch()
            else:
                size = max(1, min(CHUNK_RECORDS_MAX, int(CHUNK_SECONDS / max(self._record_seconds, 1e-6))))
                fair = -(-self._coordinator.ready_count // (len(free) - index))
                chunk = needed = self._take(min(size, fair))
            if not chunk:
                return
            worker.chunk, worker.started = chunk, time.monotonic()
            worker.chunks.put(needed)

    def running(self) -> Iterator[Running]:
        for worker in self._workers:
            for record in worker.chunk:
                yield Running(record, worker.started)

    def cancel(self, record: Record, *, timed_out: bool) -> None:
        """Kills the worker that handles the record; another replaces it."""
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
            if self._prepare is not None and not self._needs_worker(record):
                continue
            chunk.append(record)
            if self._coordinator.runs_alone(record):  # it may be the one that crashed a worker
                self._coordinator.alone.discard(record)
                self._coordinator.put_back(chunk[:-1])
                return [record]
        return chunk

    def _take_batch(self) -> tuple[list[Record], list[Record]]:
        """The next batch, and those of its records that the handler gets. It is completed as a whole."""
        while batch := self._next_batch():
            try:
                needed = [record for record in batch if self._prepare is None or self._prepare(record)]
            except Exception as error:  # noqa: BLE001  the retry policy decides
                self._completion.fail_batch(batch, error)
                continue
            if needed:
                return batch, needed
            self._core.finish_batch(batch)
        return [], []

    def _needs_worker(self, record: Record) -> bool:
        """Whether a worker must handle this record; completes it here if filtered out or unreadable."""
        assert self._prepare is not None
        try:
            needed = self._prepare(record)
        except Exception as error:  # noqa: BLE001  the retry policy decides
            self._completion.fail(record, error)
            return False
        if not needed:
            self._core.finish(record)
        return needed

    def _start_worker(self) -> Worker:
        parent, child = _context.Pipe()
        process = _context.Process(
            target=run_worker, args=(child, self._handler, self._batch_records > 1),
            name="penstock-worker", daemon=True,
        )  # fmt: skip
        process.start()
        child.close()
        worker = Worker(process, parent)
        worker.thread = threading.Thread(target=self._exchange_chunks, args=(worker,), daemon=True)
        worker.thread.start()
        return worker

    def _exchange_chunks(self, worker: Worker) -> None:
        """On the worker's thread: sends a chunk and receives its outcomes, one chunk at a time."""
        while (chunk := worker.chunks.get()) is not None:
            try:
                data = pickle.dumps(chunk)
            except Exception as error:  # noqa: BLE001  a value's class may raise anything when pickled
                unsendable = PayloadUnsendable(record=chunk[0], cause=repr(error))
                self._loop.call_soon_threadsafe(self._fail_chunk, worker, unsendable)
                continue
            try:
                worker.connection.send_bytes(data)
                outcomes, seconds = worker.connection.recv()
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._replace_worker, worker)
                return
            self._loop.call_soon_threadsafe(self._complete, worker, outcomes, seconds)
        worker.connection.close()

    def _complete(self, worker: Worker, outcomes: list[Outcome], seconds: float) -> None:
        chunk, worker.chunk = worker.chunk, []
        self._record_seconds = 0.5 * self._record_seconds + 0.5 * seconds / len(chunk)
        self._latency.observe(seconds / len(chunk), len(chunk))
        groups = [chunk] if len(outcomes) == 1 else [[record] for record in chunk]
        for group, (succeeded, data) in zip(groups, outcomes, strict=True):
            try:
                outcome: Any = None if data is None else pickle.loads(data)  # noqa: S301  of our worker
            except Exception as error:  # noqa: BLE001  a class may raise anything when unpickled
                self._completion.fail_batch(group, error)
            else:
                complete = self._completion.succeed_batch if succeeded else self._completion.fail_batch
                complete(group, outcome)
        self.notify()
        self._on_progress()

    def _fail_chunk(self, worker: Worker, error: Exception) -> None:
        chunk, worker.chunk = worker.chunk, []
        self._completion.fail_batch(chunk, error)
        self.notify()
        self._on_progress()

    def _replace_worker(self, worker: Worker) -> None:
        """Completes the chunk of a dead worker and starts another worker."""
        worker.process.join()
        chunk, worker.chunk = worker.chunk, []
        self._workers.remove(worker)
        if self._closing:
            for record in chunk:
                self._core.abandon(record)
            return
        self._workers.append(self._start_worker())
        if len(chunk) == 1 and worker.timed_out:
            seconds = time.monotonic() - worker.started
            self._completion.fail(chunk[0], HandlerTimedOut(record=chunk[0], seconds=seconds))
        elif chunk and all(not record.assignment.live for record in chunk):
            for record in chunk:
                self._core.abandon(record)
        elif chunk:
            died = WorkerDied(pid=worker.process.pid, exit_code_seen=worker.process.exitcode, record=chunk[0])
            self._completion.fail_batch(chunk, died)
        self.notify()
