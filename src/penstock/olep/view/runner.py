"""Follows a log and writes one view.

One process writes a view. It reads all partitions itself and not through a group, since the view stores the
position to start from. If a store or a broker is down or full, or a store came back with older data, the
runner opens the view again and continues from the stored position; nothing is lost. Other views have
separate runners and are not affected.

The runner writes the generation that serves. A rebuild retires it, then lets another one serve, and the
runner moves there. If the rebuild was killed in between, the runner claims the old generation again.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TopicPartition

from penstock.model import fault_points
from penstock.model.backoff import Backoff
from penstock.model.errors.olep import LogUnavailable
from penstock.model.errors.views import ViewFailed, ViewMoved, ViewRetired
from penstock.olep.log import by_partition, end_position, following, take_available
from penstock.olep.position import Position
from penstock.olep.store import RowsRefused
from penstock.olep.view import COMMIT_AFTER
from penstock.olep.view.fold import ViewFold
from penstock.olep.view.position_waiters import PositionWaiters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event as Flag

    from confluent_kafka import Consumer

    from penstock.olep.event import Record
    from penstock.olep.log import Log
    from penstock.olep.view import ViewBatch, ViewStore, ViewStores
    from penstock.olep.view.projection import Projection

IDLE_SECONDS: Final = 0.1  # the longest wait for records
RETRY: Final = Backoff(0.2, 5.0)  # before a failed store is opened again
RATE_SECONDS: Final = 5.0  # over which the rate is averaged
CHECK_SECONDS: Final = 1.0  # within which an idle runner notices a swap, another writer, a restored store
SERVING_SECONDS: Final = 5.0  # between looks at which generation serves, should a swap not have retired it
SWAP_SECONDS: Final = 15.0  # how long a rebuild may take from retiring a generation to the swap

CLAIMED = fault_points.declare("view.claimed", "a view is claimed, no record is read")


@dataclass(frozen=True, slots=True)
class Tuning:
    batch_max: int = 1000  # records in one transaction
    linger_seconds: float = 0.002  # how long a batch that is not full waits for more records
    gather_seconds: float = 0.005  # how long events gather at the broker before they are fetched


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a view."""

    view: str
    generation: int
    position: Position
    records: int  # read since the start
    applied: int
    skipped: int
    rate: float  # records a second, moving average
    lag: int  # offsets between the view and the last known end of the log
    failure: str | None  # why it cannot continue at the moment

    @property
    def seconds_left(self) -> float | None:
        return self.lag / self.rate if self.rate > 0 else None


class ViewRunner:
    """Writes `projection` of `log` into a store. `run` blocks; the rest is safe from other threads."""

    def __init__(
        self,
        projection: Projection,
        log: Log,
        stores: ViewStores,
        *,
        generation: int | None = None,
        tuning: Tuning | None = None,
        client: Mapping[str, Any] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.projection = projection
        self.log = log
        self.waiters = PositionWaiters(projection.name)
        self.generation = generation or 0  # if not given: the one that serves, once it is claimed
        self._pinned = generation
        self._committed_at = self._served_at = 0.0
        self._stores = stores
        self._tuning = tuning or Tuning()
        self._client = dict(client or {})
        self._on_progress = on_progress
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._records = self._applied = self._skipped = 0
        self._rate = 0.0
        self._rate_at = time.monotonic()
        self._rate_records = 0
        self._failure: str | None = None

    def run(self, stopping: Flag, *, until: Position | None = None) -> None:
        """Runs until `stopping` is set or `until` is reached, or raises the error that stopped it."""
        fault_points.check_armed()
        failures = 0
        self.waiters.reached({})  # readers may wait from now on
        try:
            while not stopping.is_set():
                try:
                    self._follow(stopping, until)
                    return
                except ViewRetired as error:
                    if self._pinned is not None:
                        raise
                    self._failure = error.message
                    self._await_swap(stopping)
                except (ViewFailed, ViewMoved, LogUnavailable) as error:
                    failures = 1 if self._failure is None else failures + 1
                    self._failure = error.message
                    stopping.wait(RETRY.seconds(failures))
        finally:
            self.waiters.stopped()

    def position(self) -> Position:
        return Position({self.log.topic_id: dict(self._positions)})

    def progress(self) -> Progress:
        lag = sum(max(0, end - self._positions.get(p, 0)) for p, end in self._ends.copy().items())
        counts = (self._records, self._applied, self._skipped)
        name, position = self.projection.name, self.position()
        return Progress(name, self.generation, position, *counts, self._rate, lag, self._failure)

    def not_ready(self) -> str:
        """Why the view does not follow its log, for `/readyz`; empty if it does."""
        return self._failure or ("" if self._positions else "no generation of the view is claimed")

    def _follow(self, stopping: Flag, until: Position | None) -> None:
        topic_id, partitions = self.log.topic_id, self.log.partitions
        self.generation = self._pinned or self._stores.serving(self.projection.name) or 1
        store = self._stores.open(self.projection, topic_id, partitions, generation=self.generation)
        group = f"penstock-olep-view-{self.projection.name}"
        consumer = following(self.log, group, self._tuning.gather_seconds, **self._client)
        try:
            if self._stores.serving(self.projection.name) is None:
                self._stores.serve(self.projection.name, self.generation)
            self._positions = dict.fromkeys(range(self.log.partitions), 0) | store.claim()
            self._committed_at = time.monotonic()
            self._check_serving(self._committed_at)
            fault_points.reach(CLAIMED)
            folds = {
                p: ViewFold(self.projection, self.log.codec, store, p, fresh=at == 0)
                for p, at in self._positions.items()
            }
            consumer.assign([TopicPartition(self.log.topic, p, at) for p, at in self._positions.items()])
            self.waiters.reached(self._positions)
            while not stopping.is_set() and (until is None or not self.position().covers(until)):
                self._poll_once(consumer, store, folds)
        finally:
            consumer.close()
            store.close()

    def _poll_once(self, consumer: Consumer, store: ViewStore, folds: Mapping[int, ViewFold]) -> None:
        tuning = self._tuning
        messages = take_available(consumer, tuning.batch_max, idle=IDLE_SECONDS, linger=tuning.linger_seconds)
        records, ends = by_partition(self.log.topic, messages, lambda p: self._positions.get(p, 0))
        for partition, end in ends.items():
            self._ends[partition] = end
            if end > self._positions[partition]:
                records.setdefault(partition, [])
        now = time.monotonic()
        if not records and now - self._committed_at > CHECK_SECONDS:
            records = {partition: [] for partition in folds}  # commits nothing, but compares
        if records:
            self._commit(store, folds, records, ends)
            self._committed_at = now
        if now - self._served_at > SERVING_SECONDS:
            self._check_serving(now)
        self._update_progress(consumer, len(messages))

    def _check_serving(self, now: float) -> None:
        self._served_at = now
        name = self.projection.name
        if self._pinned is None and self._stores.serving(name) != self.generation:
            raise ViewRetired(view=f"generation {self.generation} of {name}")

    def _await_swap(self, stopping: Flag) -> None:
        """Waits until another generation serves; not for ever, since the rebuild may have been killed."""
        deadline = time.monotonic() + SWAP_SECONDS
        while time.monotonic() < deadline and not stopping.wait(RETRY.seconds(1)):
            with suppress(ViewFailed):
                if self._stores.serving(self.projection.name) != self.generation:
                    return

    def _folded(
        self,
        folds: Mapping[int, ViewFold],
        records: Mapping[int, list[Record]],
        ends: Mapping[int, int],
        *,
        strict: bool,
    ) -> list[ViewBatch]:
        batches = []
        for partition, fetched in records.items():
            batch = folds[partition].process(fetched, self._positions[partition], strict=strict)
            if batch.stopped is None:
                # Past markers and aborted records, which the client skips.
                batch.position = max(batch.position, ends.get(partition, 0))
            batches.append(batch)
        return batches

    def _commit(
        self,
        store: ViewStore,
        folds: Mapping[int, ViewFold],
        records: Mapping[int, list[Record]],
        ends: Mapping[int, int],
    ) -> None:
        batches = self._folded(folds, records, ends, strict=False)
        try:
            try:
                store.commit(batches)
            except RowsRefused:
                # The store cannot store a row: fold again with every row checked, so that only the
                # events at fault are skipped.
                for fold in folds.values():
                    fold.discard()
                batches = self._folded(folds, records, ends, strict=True)
                store.commit(batches)
        except RowsRefused as error:
            raise ViewFailed(view=store.name, reason=f"it refuses rows that are valid: {error}") from error
        fault_points.reach(COMMIT_AFTER)
        self._failure = None
        for batch in batches:
            folds[batch.partition].committed()
            self._positions[batch.partition] = batch.position
            self._applied += batch.applied
            self._skipped += batch.skipped
        self.waiters.reached({each.partition: each.position for each in batches})
        for batch in batches:
            if batch.stopped is not None:
                raise batch.stopped

    def _update_progress(self, consumer: Consumer, count: int) -> None:
        self._records += count
        now = time.monotonic()
        if (elapsed := now - self._rate_at) < 0.5:
            return
        current = (self._records - self._rate_records) / elapsed
        weight = min(1.0, elapsed / RATE_SECONDS)
        self._rate = current if not self._rate else self._rate * (1 - weight) + current * weight
        self._rate_at, self._rate_records = now, self._records
        for partition in range(self.log.partitions):
            topic_partition = TopicPartition(self.log.topic, partition)
            _, high = consumer.get_watermark_offsets(topic_partition, cached=True)
            if high >= 0:
                self._ends[partition] = high
        if self._on_progress is not None:
            self._on_progress(self.progress())


def run_together(runners: Sequence[ViewRunner], stopping: Flag) -> None:
    """Runs views in threads of this process. If one fails, the others continue; its error is raised when
    all have ended."""
    failures: list[BaseException] = []

    def run(runner: ViewRunner) -> None:
        try:
            runner.run(stopping)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the caller
            failures.append(error)

    threads = [
        Thread(target=run, args=(runner,), name=f"olep-view-{runner.projection.name}") for runner in runners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # with a timeout, so that signals are handled
    if failures:
        raise failures[0]


def catch_up(runner: ViewRunner, stopping: Flag, *, until: Position | None = None) -> Position:
    """Runs a view to the current end of the log, or to `until`; returns its position."""
    runner.run(stopping, until=until or end_position(runner.log))
    return runner.position()
