"""Snapshots: several views and all partitions as of one position.

    with Snapshots(log, {"balances": balances, "search": search}, tail=tail, final=FINAL) as snapshots:
        with snapshots.take() as snapshot:
            snapshot["balances"].get(...)       # both show the log at
            snapshot["search"].search(...)      # snapshot.position, and nothing after it

What a snapshot promises and why is the subject of `penstock.olep.view.cut`. A thread follows the
log and keeps the newest consistent cut at hand, so taking a snapshot costs no call to Kafka.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.model.errors import PenstockError
from penstock.model.errors.olep import EventUnreadable, LogUnavailable
from penstock.model.errors.views import SnapshotGone, ViewBehind, ViewStale, ViewStopped
from penstock.olep.event import Record
from penstock.olep.log import READER, at_time, ends, log_error, place_of
from penstock.olep.position import Position
from penstock.olep.view.cut import Causes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.olep.log import Log
    from penstock.olep.view.reads import Reads, Tail

AGE_SECONDS_MAX: Final = 2.0
CUT_SECONDS: Final = 0.05  # between cuts
LOOKBACK_SECONDS: Final = 60.0  # what the follower reads of the past when it starts
TRIES: Final = 5
RETRY_SECONDS: Final = 0.5  # before the log is followed again after it could not be reached


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Readers by name, all of them as of `position`."""

    position: Position
    age: float  # seconds, at most
    _readers: Mapping[str, Any]

    def __getitem__(self, view: str) -> Any:
        return self._readers[view]


class Snapshots:
    """A context manager: its thread starts on entry and is joined on exit. Thread-safe.

    `final` are the types that end a request; without any, causes are not followed, which is right for
    a log whose events nobody derives from one another, or that has one partition."""

    def __init__(
        self,
        log: Log,
        views: Mapping[str, Reads],
        *,
        tail: Tail,
        final: Collection[str] = (),
        lookback_seconds: float = LOOKBACK_SECONDS,
    ) -> None:
        self.log = log
        self._views = dict(views)
        self._tail = tail
        self._causes = Causes(log.topic_id, final) if final else None
        self._lookback = lookback_seconds
        self._seen: dict[int, int] = {}
        self._cut: Position | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="olep-snapshots", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @contextmanager
    def take(
        self,
        *,
        after: str | Position | None = None,
        age_max: float = AGE_SECONDS_MAX,
        timeout: float = 5.0,
    ) -> Iterator[Snapshot]:
        """A snapshot that holds `after`, if given. Raises ViewBehind, ViewStale, ViewStopped."""
        wanted = Position.parse(after) if isinstance(after, str) else after
        if wanted is not None:
            wanted.of_topic(self.log.topic, self.log.topic_id)
        deadline = time.monotonic() + timeout
        for attempt in range(TRIES):
            cut, age = self._choose(wanted, age_max, deadline, timeout)
            with ExitStack() as stack:
                try:
                    readers = {
                        name: stack.enter_context(reads.store().reading(cut))
                        for name, reads in self._views.items()
                    }
                except SnapshotGone:
                    # A generation was swapped, or this thread was held up for longer than rows are kept.
                    if attempt == TRIES - 1:
                        raise
                    self._stopping.wait(CUT_SECONDS)
                    continue
                yield Snapshot(cut, age, readers)
                return

    def _choose(
        self, wanted: Position | None, age_max: float, deadline: float, timeout: float
    ) -> tuple[Position, float]:
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                age = None if self._cut is None else self._tail.age(self._cut)
                covers = self._cut is not None and (wanted is None or self._cut.covers(wanted))
                if self._cut is not None and covers and age is not None and age <= age_max:
                    return self._cut, age
                if not self._changed.wait(deadline - time.monotonic()):
                    if not self._thread.is_alive():
                        raise ViewStopped(view=", ".join(self._views))
                    if not covers:
                        raise ViewBehind(view=", ".join(self._views), seconds=timeout)
                    told = "longer than is known" if age is None else f"{age:.2f} s"
                    raise ViewStale(view=", ".join(self._views), age=told, bound=age_max)

    def _run(self) -> None:
        try:
            if self._causes is None:
                while not self._stopping.wait(CUT_SECONDS):
                    self._publish()
            while self._causes is not None and not self._stopping.is_set():
                try:
                    self._follow()
                except LogUnavailable:
                    self._stopping.wait(RETRY_SECONDS)  # snapshots grow old meanwhile, and say so
        except Exception as error:  # noqa: BLE001 - handed to every caller, now and later
            self._failure = error
        with self._changed:
            self._changed.notify_all()

    def _follow(self) -> None:
        """Reads the log beside the views, for who caused what."""
        consumer = Consumer({"group.id": "penstock-olep-snapshots", **self.log.config, **READER})
        try:
            if not self._seen:
                since = time.time_ns() // 1_000_000 - int(self._lookback * 1000)
                start = at_time(self.log, since).meet(ends(self.log))
                self._seen = dict(start.of_topic(self.log.topic, self.log.topic_id))
            consumer.assign([TopicPartition(self.log.topic, p, at) for p, at in self._seen.items()])
            due = time.monotonic()
            while not self._stopping.is_set():
                self._take(consumer)
                if time.monotonic() >= due:
                    self._publish()
                    due = time.monotonic() + CUT_SECONDS
        finally:
            consumer.close()

    def _take(self, consumer: Consumer) -> None:
        assert self._causes is not None
        messages = consumer.consume(1000, 0) or consumer.consume(1, CUT_SECONDS / 2)
        now = time.monotonic()
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    partition, offset = place_of(message)
                    self._seen[partition] = max(offset, self._seen.get(partition, 0))
                elif not error.retriable():
                    raise log_error(self.log.topic, message.partition() or 0, error)
                continue
            partition, offset = place_of(message)
            try:
                record = Record(offset, message.key(), message.value())
                self._causes.see(self.log.decode(partition, record), now)
            except EventUnreadable:
                pass  # views and executors list it
            self._seen[partition] = offset + 1

    def _publish(self) -> None:
        """The newest cut that every view has reached."""
        try:
            positions = [reads.position() for reads in self._views.values()]
        except PenstockError:
            return  # a store is down: the cut grows old, and readers are told
        limit: dict[int, int] = {}
        for partition in range(self.log.partitions):
            limit[partition] = min(position.of(self.log.topic_id, partition) for position in positions)
        if self._causes is not None:
            limit = {p: min(at, self._seen.get(p, 0)) for p, at in limit.items()}
            limit = self._causes.greatest(limit, time.monotonic())
        with self._changed:
            cut = Position({self.log.topic_id: limit})
            # Where a rebuilt store stands lower than before, the session waits and does not go back.
            if self._cut is None or cut.covers(self._cut):
                self._cut = cut
                self._changed.notify_all()
