"""The runner: follows a log and writes one view.

One process writes a view; it reads all partitions by itself and not through a group, since where to
begin is the view's own word. A store or a broker that is down or full is tried again, with nothing lost: the
view is opened anew and goes on from its own position. Other views have runners of their own and
notice nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.model import faults
from penstock.model.errors.olep import LogUnavailable
from penstock.model.errors.views import ViewFailed
from penstock.olep.event import Record
from penstock.olep.log import READER, ends, log_error, place_of
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.view import COMMIT_AFTER
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.waiters import Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event as Flag

    from confluent_kafka import Message

    from penstock.olep.log import Log
    from penstock.olep.view import Stretch, ViewStore, ViewStores
    from penstock.olep.view.projection import Projection

IDLE_SECONDS: Final = 0.1  # the longest time in which the thread does not look around
RETRY_SECONDS: Final = 0.2  # before a store that failed is opened anew, doubled each time
RETRY_SECONDS_MAX: Final = 5.0
RATE_SECONDS: Final = 5.0  # over which the rate is averaged

CLAIMED = faults.declare("view.claimed", "a view is taken over, nothing has been read")


@dataclass(frozen=True, slots=True)
class Tuning:
    batch_max: int = 1000  # records in one transaction
    linger_seconds: float = 0.002  # how long a batch that is not full waits for more
    gather_seconds: float = 0.005  # how long events may gather at the broker before they are fetched


@dataclass(frozen=True, slots=True)
class Progress:
    """How a view is getting on."""

    view: str
    generation: int
    position: Position
    records: int  # read since the start
    applied: int
    skipped: int
    rate: float  # records a second, lately
    lag: int  # offsets between the view and the end of the log, as last heard
    failure: str | None  # why it does not get on at the moment

    @property
    def seconds_left(self) -> float | None:
        return self.lag / self.rate if self.rate > 0 else None


class ViewRunner:
    """Writes `projection` of `log` into the store; `run` blocks, the rest is safe from other threads."""

    def __init__(
        self,
        projection: Projection,
        log: Log,
        stores: ViewStores,
        *,
        generation: int | None = None,
        tuning: Tuning | None = None,
        client: Mapping[str, Any] | None = None,
        see: Callable[[Progress], None] | None = None,
    ) -> None:
        self.projection = projection
        self.log = log
        self.waiters = Waiters(projection.name)
        self.generation = generation if generation is not None else stores.serving(projection.name) or 1
        self._stores = stores
        self._tuning = tuning or Tuning()
        self._client = dict(client or {})
        self._see = see
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._records = self._applied = self._skipped = 0
        self._rate = 0.0
        self._rate_at = time.monotonic()
        self._rate_records = 0
        self._failure: str | None = None

    def run(self, stopping: Flag, *, until: Position | None = None) -> None:
        """Works until told to stop, or until `until` is reached, or until something stops it."""
        faults.check_armed()
        pause = RETRY_SECONDS
        self.waiters.reached({})  # from here on there is something to wait for
        try:
            while not stopping.is_set():
                try:
                    self._follow(stopping, until)
                    return
                except (ViewFailed, LogUnavailable) as error:
                    pause = RETRY_SECONDS if self._failure is None else min(2 * pause, RETRY_SECONDS_MAX)
                    self._failure = error.message
                    stopping.wait(pause)
        finally:
            self.waiters.stopped()

    def position(self) -> Position:
        return Position({self.log.topic_id: dict(self._positions)})

    def progress(self) -> Progress:
        lag = sum(max(0, end - self._positions.get(p, 0)) for p, end in self._ends.copy().items())
        return Progress(
            self.projection.name,
            self.generation,
            self.position(),
            self._records,
            self._applied,
            self._skipped,
            self._rate,
            lag,
            self._failure,
        )

    def _follow(self, stopping: Flag, until: Position | None) -> None:
        store = self._stores.open(
            self.projection, self.log.topic_id, self.log.partitions, generation=self.generation
        )
        consumer = self._subscribed()
        try:
            if self._stores.serving(self.projection.name) is None:
                self._stores.serve(self.projection.name, self.generation)
            self._positions = dict.fromkeys(range(self.log.partitions), 0) | store.claim()
            faults.reach(CLAIMED)
            folds = {
                p: ViewFold(self.projection, self.log.codec, store, p, fresh=at == 0)
                for p, at in self._positions.items()
            }
            consumer.assign([TopicPartition(self.log.topic, p, at) for p, at in self._positions.items()])
            self.waiters.reached(self._positions)
            while not stopping.is_set() and (until is None or not self.position().covers(until)):
                self._round(consumer, store, folds)
        finally:
            consumer.close()
            store.close()

    def _subscribed(self) -> Consumer:
        gather_ms = int(self._tuning.gather_seconds * 1000)
        return Consumer(
            {
                "group.id": f"penstock-olep-view-{self.projection.name}",
                "queued.min.messages": 20_000,
                "fetch.min.bytes": 100_000 if gather_ms else 1,
                "fetch.wait.max.ms": gather_ms or 500,
                **self.log.config,
                **self._client,
                **READER,
            }
        )

    def _round(self, consumer: Consumer, store: ViewStore, folds: Mapping[int, ViewFold]) -> None:
        messages = self._take(consumer)
        records, ends_met = self._sorted(messages)
        for partition, end in ends_met.items():
            self._ends[partition] = end
            if end > self._positions[partition]:
                records.setdefault(partition, [])
        if records:
            self._commit(store, folds, records, ends_met)
        self._account(consumer, len(messages))

    def _take(self, consumer: Consumer) -> list[Message]:
        most, linger = self._tuning.batch_max, self._tuning.linger_seconds
        messages = consumer.consume(most, 0)
        if not messages:
            messages = consumer.consume(1, IDLE_SECONDS)
            if messages and most > 1 and linger:
                messages += consumer.consume(most - 1, linger)
        return messages

    def _sorted(self, messages: Sequence[Message]) -> tuple[dict[int, list[Record]], dict[int, int]]:
        records: dict[int, list[Record]] = {}
        ends_met: dict[int, int] = {}
        for message in messages:
            error = message.error()
            partition, offset = (
                place_of(message) if error is None else (message.partition(), message.offset())
            )
            if error is None:
                assert partition is not None
                assert offset is not None
                if offset >= self._positions[partition]:
                    records.setdefault(partition, []).append(Record(offset, message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                partition, ends_met[partition] = place_of(message)
            elif not error.retriable():
                at = self._positions.get(partition, 0) if partition is not None else 0
                raise log_error(self.log.topic, partition or 0, error, at)
        return records, ends_met

    def _folded(
        self,
        folds: Mapping[int, ViewFold],
        records: Mapping[int, list[Record]],
        ends_met: Mapping[int, int],
        *,
        strict: bool,
    ) -> list[Stretch]:
        stretches = []
        for partition, found in records.items():
            stretch = folds[partition].take(found, self._positions[partition], strict=strict)
            if stretch.stopped is None:
                # Past markers and aborted records that no reader is shown.
                stretch.position = max(stretch.position, ends_met.get(partition, 0))
            stretches.append(stretch)
        return stretches

    def _commit(
        self,
        store: ViewStore,
        folds: Mapping[int, ViewFold],
        records: Mapping[int, list[Record]],
        ends_met: Mapping[int, int],
    ) -> None:
        stretches = self._folded(folds, records, ends_met, strict=False)
        try:
            try:
                store.commit(stretches)
            except RowsRefused:
                # A row cannot be kept: fold again with every row checked, so that the events to
                # blame are skipped and the rest goes through.
                for fold in folds.values():
                    fold.forget()
                stretches = self._folded(folds, records, ends_met, strict=True)
                store.commit(stretches)
        except RowsRefused as error:
            raise ViewFailed(view=store.name, reason=f"it refuses rows that are in order: {error}") from error
        faults.reach(COMMIT_AFTER)
        self._failure = None
        for stretch in stretches:
            folds[stretch.partition].settle()
            self._positions[stretch.partition] = stretch.position
            self._applied += stretch.applied
            self._skipped += stretch.skipped
        self.waiters.reached({each.partition: each.position for each in stretches})
        for stretch in stretches:
            if stretch.stopped is not None:
                raise stretch.stopped

    def _account(self, consumer: Consumer, count: int) -> None:
        self._records += count
        now = time.monotonic()
        if (past := now - self._rate_at) < 0.5:
            return
        lately = (self._records - self._rate_records) / past
        weight = min(1.0, past / RATE_SECONDS)
        self._rate = lately if not self._rate else self._rate * (1 - weight) + lately * weight
        self._rate_at, self._rate_records = now, self._records
        for partition in range(self.log.partitions):
            place = TopicPartition(self.log.topic, partition)
            _, high = consumer.get_watermark_offsets(place, cached=True)
            if high >= 0:
                self._ends[partition] = high
        if self._see is not None:
            self._see(self.progress())


def run_together(runners: Sequence[ViewRunner], stopping: Flag) -> None:
    """Runs views in threads of one process. One that ends by an error does not end the others; its
    error is raised when all have ended."""
    failures: list[BaseException] = []

    def run(runner: ViewRunner) -> None:
        try:
            runner.run(stopping)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that called
            failures.append(error)

    threads = [
        Thread(target=run, args=(runner,), name=f"olep-view-{runner.projection.name}") for runner in runners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # in pieces, so that signals are heard
    if failures:
        raise failures[0]


def catch_up(runner: ViewRunner, stopping: Flag, *, until: Position | None = None) -> Position:
    """Runs a view to the tail of now, or to `until`; returns where it stands."""
    runner.run(stopping, until=until or ends(runner.log))
    return runner.position()
