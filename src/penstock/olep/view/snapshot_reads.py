"""Reads several views, with all their partitions, as of one position.

    with Snapshots(log, {"balances": balances, "search": search}, tail=tail, final=FINAL) as snapshots:
        with snapshots.take() as snapshot:
            snapshot["balances"].get(...)       # both show the log at
            snapshot["search"].search(...)      # snapshot.position, and nothing after it

`penstock.olep.view.snapshot_position` explains what a snapshot promises, and why. A thread follows the log
and has the newest consistent position ready, so taking a snapshot needs no call to Kafka.
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
from penstock.model.errors.views import SnapshotUnavailable, ViewBehind, ViewStale, ViewStopped
from penstock.olep.event import Record
from penstock.olep.log import CONSUMER_CONFIG, end_position, log_error, partition_and_offset, position_at_time
from penstock.olep.position import Position
from penstock.olep.view.consistent_reads import age_text
from penstock.olep.view.snapshot_position import CausalityTracker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.olep.log import Log
    from penstock.olep.view.consistent_reads import LogTail, Reads

AGE_SECONDS_MAX: Final = 2.0
REFRESH_SECONDS: Final = 0.05  # between consistent positions
LOOKBACK_SECONDS: Final = 60.0  # how far back the follower starts to read
ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 0.5  # after the log could not be reached


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Readers by view name, all as of `position`."""

    position: Position
    age: float  # seconds, an upper bound
    _readers: Mapping[str, Any]

    def __getitem__(self, view: str) -> Any:
        return self._readers[view]


class Snapshots:
    """A context manager: its thread starts on entry and is joined on exit. Thread-safe.

    `final` are the types that end a request. Without any, causes are not tracked: that is correct for a log
    with one partition, or whose events do not cause one another."""

    def __init__(
        self,
        log: Log,
        views: Mapping[str, Reads],
        *,
        tail: LogTail,
        final: Collection[str] = (),
        lookback_seconds: float = LOOKBACK_SECONDS,
    ) -> None:
        self.log = log
        self._views = dict(views)
        self._tail = tail
        self._causes = CausalityTracker(log.topic_id, final) if final else None
        self._lookback = lookback_seconds
        self._observed: dict[int, int] = {}
        self._position: Position | None = None
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
        self, *, after: str | Position | None = None, age_max: float = AGE_SECONDS_MAX, timeout: float = 5.0
    ) -> Iterator[Snapshot]:
        """A snapshot that includes `after`, if given. Raises ViewBehind, ViewStale, ViewStopped."""
        required = Position.parse(after) if isinstance(after, str) else after
        if required is not None:
            required.of_topic(self.log.topic, self.log.topic_id)
        deadline = time.monotonic() + timeout
        for attempt in range(ATTEMPTS):
            position, age = self._choose(required, age_max, deadline, timeout)
            with ExitStack() as stack:
                try:
                    readers = {
                        name: stack.enter_context(reads.store().reading(position))
                        for name, reads in self._views.items()
                    }
                except SnapshotUnavailable:
                    # A generation was swapped, or this thread was delayed for longer than history is kept.
                    if attempt == ATTEMPTS - 1:
                        raise
                    self._stopping.wait(REFRESH_SECONDS)
                    continue
                yield Snapshot(position, age, readers)
                return

    def _choose(
        self, required: Position | None, age_max: float, deadline: float, timeout: float
    ) -> tuple[Position, float]:
        with self._changed:
            while True:
                if self._failure is not None:
                    raise self._failure
                age = None if self._position is None else self._tail.age(self._position)
                covers = self._position is not None and (required is None or self._position.covers(required))
                if self._position is not None and covers and age is not None and age <= age_max:
                    return self._position, age
                if not self._changed.wait(deadline - time.monotonic()):
                    if not self._thread.is_alive():
                        raise ViewStopped(view=", ".join(self._views))
                    if not covers:
                        raise ViewBehind(view=", ".join(self._views), seconds=timeout)
                    raise ViewStale(view=", ".join(self._views), age=age_text(age), bound=age_max)

    def _run(self) -> None:
        try:
            if self._causes is None:
                while not self._stopping.wait(REFRESH_SECONDS):
                    self._publish()
            while self._causes is not None and not self._stopping.is_set():
                try:
                    self._follow()
                except LogUnavailable:
                    self._stopping.wait(RETRY_SECONDS)  # snapshots age meanwhile, and report it
        except Exception as error:  # noqa: BLE001 - raised to every caller, now and later
            self._failure = error
        with self._changed:
            self._changed.notify_all()

    def _follow(self) -> None:
        """Reads the log independently of the views, to track causes."""
        consumer = Consumer({"group.id": "penstock-olep-snapshots", **self.log.config, **CONSUMER_CONFIG})
        try:
            if not self._observed:
                since = time.time_ns() // 1_000_000 - int(self._lookback * 1000)
                start = position_at_time(self.log, since).meet(end_position(self.log))
                self._observed = dict(start.of_topic(self.log.topic, self.log.topic_id))
            consumer.assign([TopicPartition(self.log.topic, p, at) for p, at in self._observed.items()])
            due = time.monotonic()
            while not self._stopping.is_set():
                self._observe(consumer)
                if time.monotonic() >= due:
                    self._publish()
                    due = time.monotonic() + REFRESH_SECONDS
        finally:
            consumer.close()

    def _observe(self, consumer: Consumer) -> None:
        assert self._causes is not None
        messages = consumer.consume(1000, 0) or consumer.consume(1, REFRESH_SECONDS / 2)
        now = time.monotonic()
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    partition, offset = partition_and_offset(message)
                    self._observed[partition] = max(offset, self._observed.get(partition, 0))
                elif not error.retriable():
                    raise log_error(self.log.topic, message.partition() or 0, error)
                continue
            partition, offset = partition_and_offset(message)
            try:
                record = Record(offset, message.key(), message.value())
                self._causes.observe(self.log.decode(partition, record), now)
            except EventUnreadable:
                pass  # executors and views list it
            self._observed[partition] = offset + 1

    def _publish(self) -> None:
        """Publishes the newest consistent position that every view has reached."""
        try:
            positions = [reads.position() for reads in self._views.values()]
        except PenstockError:
            return  # a store is down: the position ages, and readers get ViewStale
        limit: dict[int, int] = {}
        for partition in range(self.log.partitions):
            limit[partition] = min(position.of(self.log.topic_id, partition) for position in positions)
        if self._causes is not None:
            limit = {p: min(at, self._observed.get(p, 0)) for p, at in limit.items()}
            limit = self._causes.greatest_consistent(limit, time.monotonic())
        with self._changed:
            position = Position({self.log.topic_id: limit})
            # If a new generation is behind the previous one, sessions wait instead of going back.
            if self._position is None or position.covers(self._position):
                self._position = position
                self._changed.notify_all()
