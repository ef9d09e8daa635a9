"""Reads one view, with a consistency that you choose for each read.

    latest()            the current rows, with their position
    after(token)        includes your writes, or an earlier read; waits, with a timeout
    fresh(seconds)      at most this old, or an error at once
    linearizable()      includes everything written before the call: gets the log's end, then waits
    through_log()       as of events that are appended to the log for this read

Each gives a reader with a `position`. Pass it to the next read, of this view or another, and the session
never goes back.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.model.errors import PenstockError
from penstock.model.errors.views import ViewBehind, ViewMissing, ViewStale, ViewStopped
from penstock.olep.event import Event
from penstock.olep.log import Appender, end_position
from penstock.olep.position import Position
from penstock.olep.view.position_waiters import PositionWaiters, WaitResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from penstock.olep.log import Log
    from penstock.olep.view import ViewStore, ViewStores
    from penstock.olep.view.projection import Projection
    from penstock.olep.view.runner import ViewRunner

READ: Final = "olep.read"  # type of the event that `through_log` appends
WAIT_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.004  # between polls of a view that another process writes, while a reader waits
SWITCH_SECONDS: Final = 1.0  # within which a reader notices a swap of generations
TAIL_SECONDS: Final = 0.2  # between samples of the log's end
TAILS_KEPT: Final = 3000


class LogTail:
    """Samples the end of the log, to know how old a position is.

    A context manager: its thread takes the samples. The time of a sample is that before the call, so an age
    is never too small."""

    def __init__(self, log: Log, *, every_seconds: float = TAIL_SECONDS) -> None:
        self.log = log
        self._every = every_seconds
        self._samples: deque[tuple[float, Position]] = deque(maxlen=TAILS_KEPT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="olep-tail", daemon=True)

    def __enter__(self) -> Self:
        self.refresh()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def refresh(self) -> Position:
        """The current end of the log."""
        at = time.monotonic()
        tail = end_position(self.log)
        self._samples.append((at, tail))
        return tail

    def age(self, position: Position) -> float | None:
        """The age in seconds, an upper bound; None if the position covers no sample."""
        samples = [*self._samples]
        # Samples only grow, so the covered ones are the first.
        covered = bisect_left(samples, True, key=lambda sample: not position.covers(sample[1]))
        return None if not covered else time.monotonic() - samples[covered - 1][0]

    def _sample(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.refresh()
            except PenstockError:
                continue  # ages grow meanwhile, as they should


class Reads:
    """Reads of one view. Thread-safe; a context manager that closes the stores it opened.

    With `runner`, the thread that writes the view wakes waiting readers. Without it, another process writes
    the view, and one thread polls its position for all waiting readers."""

    def __init__(
        self,
        projection: Projection,
        log: Log,
        stores: ViewStores,
        *,
        runner: ViewRunner | None = None,
        tail: LogTail | None = None,
    ) -> None:
        self.projection = projection
        self.log = log
        self._stores = stores
        self._runner = runner
        self._tail = tail
        self._lock = threading.Lock()
        self._open: dict[int, ViewStore] = {}
        self._serving: int | None = None
        self._checked_at = 0.0
        self._appender: Appender | None = None
        self._waiters = PositionWaiters(projection.name)
        self._waiting = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self.projection.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        self._waiting.set()
        if self._thread is not None:
            self._thread.join()
        for store in self._open.values():
            store.close()
        self._open = {}

    def position(self) -> Position:
        return self.store().position()

    def latest(self) -> AbstractContextManager[Any]:
        return self.store().reading()

    def after(self, token: str | Position, *, timeout: float = WAIT_SECONDS) -> AbstractContextManager[Any]:
        """Raises ViewBehind, ViewStopped, TokenForeign, TokenUnreadable."""
        return self.wait(token, timeout=timeout).reading()

    @contextmanager
    def fresh(self, seconds: float) -> Iterator[Any]:
        """Raises ViewStale at once if the view is older. Needs a `LogTail`."""
        assert self._tail is not None, "fresh() needs a LogTail"
        with self.store().reading() as reader:
            age = self._tail.age(reader.position)
            if age is None or age > seconds:
                raise ViewStale(view=self.name, age=age_text(age), bound=seconds)
            yield reader

    def linearizable(self, *, timeout: float = WAIT_SECONDS) -> AbstractContextManager[Any]:
        tail = self._tail.refresh() if self._tail is not None else end_position(self.log)
        return self.after(tail, timeout=timeout)

    def through_log(self, *, timeout: float = WAIT_SECONDS) -> AbstractContextManager[Any]:
        """The view exactly as of events that are appended to each partition for this read."""
        position = self._append_reads(timeout)
        return self.wait(position, timeout=timeout).reading(position)

    def wait(self, token: str | Position, *, timeout: float = WAIT_SECONDS) -> ViewStore:
        """Waits for a generation that covers the token: the serving one, or one that is being built."""
        position = Position.parse(token) if isinstance(token, str) else token
        offsets = position.of_topic(self.log.topic, self.log.topic_id)
        store = self.store()
        if self._runner is not None and self._runner.generation == store.generation:
            arrival = self._runner.waiters.wait(offsets, timeout)
        elif store.position().covers(position):
            return store
        else:
            self._start_polling()
            arrival = self._waiters.wait(offsets, timeout, on_registered=self._waiting.set)
        if arrival is WaitResult.TIMED_OUT:
            raise ViewBehind(view=self.name, seconds=timeout)
        if arrival is WaitResult.STOPPED:
            raise ViewStopped(view=self.name)
        if store.position().covers(position):
            return store
        # Generations may have been swapped meanwhile: use any that has reached the position.
        for each in self._candidates():
            if each.position().covers(position):
                return each
        raise ViewBehind(view=self.name, seconds=timeout)

    def store(self) -> ViewStore:
        """The serving generation."""
        now = time.monotonic()
        with self._lock:
            if self._serving is None or now - self._checked_at > SWITCH_SECONDS:
                serving = self._stores.serving(self.name)
                if serving is None:
                    raise ViewMissing(view=self.name, generation="any")
                self._checked_at = now
                if serving != self._serving:
                    self._opened(serving)
                    self._serving = serving
            return self._open[self._serving]

    def _opened(self, generation: int) -> ViewStore:
        if generation not in self._open:
            self._open[generation] = self._stores.open(
                self.projection, self.log.topic_id, self.log.partitions, generation=generation
            )
        return self._open[generation]

    def _candidates(self) -> list[ViewStore]:
        """The serving generation, then newer ones of the same projection."""
        stores = [self.store()]
        with self._lock:
            for generation in self._stores.generations(self.name):
                if generation > stores[0].generation:
                    try:
                        stores.append(self._opened(generation))
                    except PenstockError:
                        continue  # built by another version of the projection
        return stores

    def _start_polling(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._poll, name="olep-view-reads", daemon=True)
                self._thread.start()
            self._waiters.reached({})  # readers may wait from now on

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._waiting.wait()
            self._waiting.clear()
            while not self._closing.is_set():
                try:
                    best: dict[int, int] = {}
                    for store in self._candidates():
                        here = store.position().offsets.get(self.log.topic_id, {})
                        if not best or all(here.get(p, 0) >= at for p, at in best.items()):
                            best = dict(here)
                    self._waiters.reached(best)
                except PenstockError:
                    # The store is unavailable: waiting readers get ViewStopped and may retry.
                    self._waiters.stopped()
                    break
                if not self._waiters.waiting():
                    break
                self._closing.wait(POLL_SECONDS)
        self._waiters.stopped()

    def _append_reads(self, timeout: float) -> Position:
        with self._lock:
            if self._appender is None:
                self._appender = Appender(self.log)
            name = uuid.uuid4().hex
            now = time.time_ns() // 1_000_000
            futures = [
                self._appender.submit(
                    "", Event(f"read-{name}", READ, {}, request=f"read-{name}", time=now), partition=partition
                )
                for partition in range(self.log.partitions)
            ]
            deadline = time.monotonic() + timeout
            while not all(future.done() for future in futures):
                if time.monotonic() > deadline:
                    raise ViewBehind(view=self.name, seconds=timeout)
                self._appender.poll(0.01)
        position = Position()
        for future in futures:
            position = position.join(future.result())
        return position


def age_text(age: float | None) -> str:
    return "an unknown time" if age is None else f"{age:.2f} s"
