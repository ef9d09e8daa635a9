"""Reading one view with a consistency that one chooses, read by read.

    latest()            what is there now; says which position that is
    after(token)        what one has written, or what one has read elsewhere: waits, with a deadline
    fresh(seconds)      not older than this, or an error at once
    linearizable()      all that anybody has written before this call: asks for the log's tail, waits
    through_log()       as of a place of its own in the log, which is appended: a read with a position

Each gives a reader whose `position` is the answer's own: hand it to the next read, of this view or
another, and the session never goes back.
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
from penstock.olep.log import Appender, ends
from penstock.olep.position import Position
from penstock.olep.view.waiters import Arrival, Waiters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.olep.log import Log
    from penstock.olep.view import ViewReader, ViewStore, ViewStores
    from penstock.olep.view.projection import Projection
    from penstock.olep.view.runner import ViewRunner

READ: Final = "olep.read"  # an event that changes nothing and has a position
WAIT_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.004  # between looks at a view that another process writes, while somebody waits
SWITCH_SECONDS: Final = 1.0  # how long a swap of generations may go unnoticed by a process that reads
TAIL_SECONDS: Final = 0.2  # between looks at the log's tail
TAILS_KEPT: Final = 3000


class Tail:
    """Knows how old a position is: when it covered all that was in the log.

    A context manager: its thread asks for the tail now and then. The time is taken before asking,
    so an age is never too small."""

    def __init__(self, log: Log, *, every_seconds: float = TAIL_SECONDS) -> None:
        self.log = log
        self._every = every_seconds
        self._samples: deque[tuple[float, Position]] = deque(maxlen=TAILS_KEPT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="olep-tail", daemon=True)

    def __enter__(self) -> Self:
        self.ask()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def ask(self) -> Position:
        """The tail of now."""
        at = time.monotonic()
        tail = ends(self.log)
        self._samples.append((at, tail))
        return tail

    def age(self, position: Position) -> float | None:
        """Seconds, at most; none if it covers no tail that is remembered."""
        samples = [*self._samples]
        # Tails only grow, so those that are covered are the first ones.
        covered = bisect_left(samples, True, key=lambda sample: not position.covers(sample[1]))
        return None if not covered else time.monotonic() - samples[covered - 1][0]

    def _follow(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.ask()
            except PenstockError:
                continue  # ages grow meanwhile, which is the truth


class Reads:
    """Reads of one view. Thread-safe; closes what it opened.

    With `runner`, waiters are woken by the very thread that writes the view. Without it the view is
    written elsewhere, and one thread looks at its position for all who wait."""

    def __init__(
        self,
        projection: Projection,
        log: Log,
        stores: ViewStores,
        *,
        runner: ViewRunner | None = None,
        tail: Tail | None = None,
    ) -> None:
        self.projection = projection
        self.log = log
        self._stores = stores
        self._runner = runner
        self._tail = tail
        self._lock = threading.Lock()
        self._open: dict[int, ViewStore] = {}
        self._serving: int | None = None
        self._looked = 0.0
        self._appender: Appender | None = None
        self._waiters = Waiters(projection.name)
        self._wanted = threading.Event()
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
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        for store in self._open.values():
            store.close()
        self._open = {}

    def position(self) -> Position:
        return self.store().position()

    @contextmanager
    def latest(self) -> Iterator[Any]:
        with self.store().reading() as reader:
            yield reader

    @contextmanager
    def after(self, token: str | Position, *, timeout: float = WAIT_SECONDS) -> Iterator[Any]:
        """Raises ViewBehind, ViewStopped, TokenForeign, TokenUnreadable."""
        with self.wait(token, timeout=timeout).reading() as reader:
            yield reader

    @contextmanager
    def fresh(self, seconds: float) -> Iterator[Any]:
        """Raises ViewStale, at once. Needs a `Tail`."""
        assert self._tail is not None, "bounded staleness is measured against a Tail"
        with self.store().reading() as reader:
            age = self._tail.age(reader.position)
            if age is None or age > seconds:
                told = "longer than is known" if age is None else f"{age:.2f} s"
                raise ViewStale(view=self.name, age=told, bound=seconds)
            yield reader

    @contextmanager
    def linearizable(self, *, timeout: float = WAIT_SECONDS) -> Iterator[Any]:
        tail = self._tail.ask() if self._tail is not None else ends(self.log)
        with self.after(tail, timeout=timeout) as reader:
            yield reader

    @contextmanager
    def through_log(self, *, timeout: float = WAIT_SECONDS) -> Iterator[Any]:
        """The view exactly as of an event that is appended to each partition for this read."""
        place = self._placed(timeout)
        with self.wait(place, timeout=timeout).reading(place) as reader:
            yield reader

    def wait(self, token: str | Position, *, timeout: float = WAIT_SECONDS) -> ViewStore:
        """The generation that covers the token: the one that serves, or one that is being built."""
        position = Position.parse(token) if isinstance(token, str) else token
        wanted = position.of_topic(self.log.topic, self.log.topic_id)
        store = self.store()
        if self._runner is not None and self._runner.generation == store.generation:
            arrival = self._runner.waiters.wait(wanted, timeout)
        elif store.position().covers(position):
            return store
        else:
            self._look()
            arrival = self._waiters.wait(wanted, timeout, tell=self._wanted.set)
        if arrival is Arrival.TIMED_OUT:
            raise ViewBehind(view=self.name, seconds=timeout)
        if arrival is Arrival.STOPPED:
            raise ViewStopped(view=self.name)
        if store.position().covers(position):
            return store
        # A swap may have come in between; whichever generation reached the position is asked.
        for each in self._candidates():
            if each.position().covers(position):
                return each
        raise ViewBehind(view=self.name, seconds=timeout)

    def store(self) -> ViewStore:
        """The generation that serves."""
        now = time.monotonic()
        with self._lock:
            if self._serving is None or now - self._looked > SWITCH_SECONDS:
                serving = self._stores.serving(self.name)
                if serving is None:
                    raise ViewMissing(view=self.name, generation="any")
                self._looked = now
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
        """The generation that serves, then newer ones that the same projection makes."""
        found = [self.store()]
        with self._lock:
            for generation in self._stores.generations(self.name):
                if generation > found[0].generation:
                    try:
                        found.append(self._opened(generation))
                    except PenstockError:
                        continue  # made by another version of the projection: not ours to read
        return found

    def _look(self) -> None:
        """Has the looking thread at work."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="olep-view-reads", daemon=True)
                self._thread.start()
            self._waiters.reached({})  # the view is being looked at

    def _follow(self) -> None:
        while not self._closing.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while not self._closing.is_set():
                try:
                    best: dict[int, int] = {}
                    for store in self._candidates():
                        here = store.position().offsets.get(self.log.topic_id, {})
                        if not best or all(here.get(p, 0) >= at for p, at in best.items()):
                            best = dict(here)
                    self._waiters.reached(best)
                except PenstockError:
                    # The store is gone or cannot be asked: whoever waits is told, and may try again.
                    self._waiters.stopped()
                    break
                if not self._waiters.waiting():
                    break
                self._closing.wait(LOOK_SECONDS)
        self._waiters.stopped()

    def _placed(self, timeout: float) -> Position:
        with self._lock:
            if self._appender is None:
                self._appender = Appender(self.log)
            name = uuid.uuid4().hex
            now = time.time_ns() // 1_000_000
            futures = [
                self._appender.begin(
                    "", Event(f"read-{name}", READ, {}, request=f"read-{name}", time=now), partition=partition
                )
                for partition in range(self.log.partitions)
            ]
            deadline = time.monotonic() + timeout
            while not all(future.done() for future in futures):
                if time.monotonic() > deadline:
                    raise ViewBehind(view=self.name, seconds=timeout)
                self._appender.poll(0.01)
        place = Position()
        for future in futures:
            place = place.join(future.result())
        return place


def token_of(reader: ViewReader) -> str:
    """What a session carries to its next read."""
    return reader.position.token()
