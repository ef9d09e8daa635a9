"""Runs an application on the partitions of a log that this process owns.

Any number of executors share a log through a consumer group. Each assigned partition becomes a partition
task with a separate store. One thread takes records, and for each task decides, commits and sends.

An executor reads its start position from the store, which commits it with the state, never from the group.
To the group it commits the position up to which all emitted events are acknowledged. That is for
monitoring, and a successor that restores older state need not send those events again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from penstock.model import fault_points
from penstock.model.errors.olep import (
    AppendUnknown,
    HistoryMissing,
    LogGrown,
    LogUnavailable,
    StoreFenced,
    StoreUnavailable,
)
from penstock.model.key_names import ERROR, PARTITION
from penstock.olep.event import VERSION, request
from penstock.olep.fold import Fold, PurityChecks, Source
from penstock.olep.log import CALL_SECONDS, Appender, by_partition, following, take_available
from penstock.olep.outbox_sender import OutboxSender
from penstock.olep.partition_task import ExecutorCounters, PartitionTask
from penstock.olep.position import Position
from penstock.olep.rows import CACHED_ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event as Flag

    from confluent_kafka import Consumer

    from penstock.model.errors import PenstockError
    from penstock.olep.application import Application
    from penstock.olep.event import Record
    from penstock.olep.log import Log
    from penstock.olep.state_snapshot import StateSnapshots
    from penstock.olep.store import Stores

IDLE_SECONDS: Final = 0.2  # the longest wait for records
RESUME_SECONDS: Final = 1.0  # for the brokers, while a partition is tried again: the others wait meanwhile
GROUP_CONFIG: Final[Mapping[str, Any]] = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 5_000,  # refreshes notice added partitions
}
_logger = logging.getLogger("penstock.olep")
_PASSING: Final = (StoreUnavailable, LogUnavailable, AppendUnknown)  # the partition is tried again
METADATA: Final = "penstock-olep"  # marks a group offset that an executor committed

ASSIGNED = fault_points.declare("olep.assigned", "a partition is claimed, no record of it is read")
REVOKED = fault_points.declare("olep.revoked", "a partition is being released, its outbox may not be empty")


@dataclass(frozen=True, slots=True)
class Tuning:
    batch_max: int = 1000  # records of a partition in one transaction
    linger_seconds: float = 0.002  # how long a batch that is not full waits for more records
    # How long events gather at the broker before they are fetched, and in the client before they are sent:
    # fewer and larger requests, for this much more latency in each hop.
    gather_seconds: float = 0.005
    group_seconds: float = 1.0  # between commits to the group
    unacknowledged_max: int = 100_000  # events sent and not acknowledged; above it, the executor waits
    cached_rows_max: int = CACHED_ROWS_MAX
    purity_checks: PurityChecks = PurityChecks.SAMPLED


class TaskStatus(NamedTuple):
    """Status of one partition of an executor."""

    partition: int
    position: int
    unacknowledged: int  # events


class Executor:
    """Runs `application` on `log`. `logs` are the other logs it emits to."""

    def __init__(
        self,
        application: Application,
        log: Log,
        stores: Stores,
        *,
        logs: Sequence[Log] = (),
        group: str | None = None,
        tuning: Tuning | None = None,
        snapshots: StateSnapshots | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.application = application
        self.log = log
        self.group = group or f"penstock-olep-{application.name}"
        self.counters = ExecutorCounters()
        self._stores = stores
        self._logs = {log.name: log, **{each.name: each for each in logs}}
        self._tuning = tuning or Tuning()
        self._snapshots = snapshots
        self._client = dict(client or {})
        self._tasks: dict[int, PartitionTask] = {}
        self._suspended: dict[int, str] = {}  # partition → why its store is not open
        self._failure: BaseException | None = None
        self._running = False

    def run(self, stopping: Flag) -> None:
        """Runs until `stopping` is set, or raises the error that stopped it."""
        fault_points.check_armed()
        gather_ms = int(self._tuning.gather_seconds * 1000)
        self._sender = OutboxSender(self._logs, self.log.config, **{"linger.ms": gather_ms})
        config = {**GROUP_CONFIG, **self.log.config, **self._client}
        self._consumer = following(self.log, self.group, self._tuning.gather_seconds, **config)
        self._consumer.subscribe(
            [self.log.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._group_due = time.monotonic() + self._tuning.group_seconds
        self._running = True
        try:
            while not stopping.is_set():
                self._poll_once()
                self._wait_for_acknowledgements(stopping)
        finally:
            self._running = False
            self._stop()

    def position(self) -> Position:
        """The position of its partitions. Safe from other threads."""
        return Position({self.log.topic_id: {p: task.position for p, task in self._tasks.copy().items()}})

    def tasks(self) -> list[TaskStatus]:
        """The status of its partitions. Safe from other threads."""
        tasks = sorted(self._tasks.copy().items())
        return [TaskStatus(partition, task.position, task.in_flight.events) for partition, task in tasks]

    def suspended(self) -> dict[int, str]:
        """Partitions whose store is unavailable, and why. Safe from other threads."""
        return self._suspended.copy()

    def not_ready(self) -> str:
        """Why it does not process events, for `/readyz`; empty if it does. Safe from other threads."""
        if not self._running:
            return "the executor does not run"
        return "; ".join(f"partition {each}: {why}" for each, why in sorted(self.suspended().items()))

    def _poll_once(self) -> None:
        """Takes available records, applies them, and handles acknowledgements and the group."""
        tuning = self._tuning
        limit = tuning.batch_max * max(1, len(self._tasks))
        messages = take_available(self._consumer, limit, idle=IDLE_SECONDS, linger=tuning.linger_seconds)
        if self._failure is not None:
            raise self._failure
        self._sender.poll()
        records, ends = by_partition(self.log.topic, messages, self._position_of)
        for partition, partition_records in records.items():
            self._apply(partition, partition_records)
        for partition, end in ends.items():
            task = self._tasks.get(partition)
            if task is not None:
                self._attempt(partition, partial(task.advance, end))
        if time.monotonic() >= self._group_due:
            self._group_due = time.monotonic() + tuning.group_seconds
            self._maintain()

    def _position_of(self, partition: int) -> int:
        task = self._tasks.get(partition)
        return task.position if task else 0

    def _wait_for_acknowledgements(self, stopping: Flag) -> None:
        """Back-pressure: waits for the brokers while too many events are unacknowledged."""
        limit = self._tuning.unacknowledged_max
        while sum(task.in_flight.events for task in self._tasks.values()) > limit and not stopping.is_set():
            self._sender.poll(0.05)

    def _apply(self, partition: int, records: list[Record]) -> None:
        task = self._tasks.get(partition)
        if task is None:
            return
        size = self._tuning.batch_max
        for at in range(0, len(records), size):
            if not self._attempt(partition, partial(task.apply, records[at : at + size])):
                return
            self._sender.poll()

    def _attempt(self, partition: int, call: Callable[[], None]) -> bool:
        """Whether the call succeeded; if the store is lost or unavailable, suspends the partition.

        A store is lost if the group assigned the partition to another executor and will revoke it here, or
        if a paused executor resumed and claimed it by mistake; then `_resume` claims it back."""
        try:
            call()
            return True
        except (StoreFenced, StoreUnavailable) as error:
            self._close(self._tasks.pop(partition))
            self._suspend(partition, error)
            return False

    def _suspend(self, partition: int, error: PenstockError) -> None:
        _logger.warning("partition suspended", extra={PARTITION: partition, ERROR: str(error)})
        self._suspended[partition] = error.message
        self._consumer.pause([TopicPartition(self.log.topic, partition)])

    def _resume(self, partition: int) -> None:
        """Continues from the position of the store, if it can be opened."""
        try:
            self._open(partition, seconds=RESUME_SECONDS)
        except _PASSING as error:
            self._suspended[partition] = error.message
            return
        start = self._start_of(partition)
        try:
            self._consumer.seek(start)
            self._consumer.resume([start])
        except KafkaException as error:  # the client does not know the partition's leader yet
            self._close(self._tasks.pop(partition))
            self._suspended[partition] = error.args[0].str()
            return
        del self._suspended[partition]

    def _maintain(self) -> None:
        """Periodic: resumes suspended partitions, commits to the group, prunes outboxes, saves snapshots."""
        for partition in [*self._suspended]:
            self._resume(partition)
        for partition, task in [*self._tasks.items()]:
            if not task.in_flight.pending and not self._attempt(partition, task.prune_outbox):
                continue
            if self._snapshots is not None:
                self._snapshots.save(task.store, task.position)
        self._commit_to_group(self._tasks)

    def _commit_to_group(self, tasks: Mapping[int, PartitionTask], *, wait: bool = False) -> None:
        offsets = []
        for partition, task in tasks.items():
            at = task.in_flight.acknowledged_position(task.position)
            offsets.append(TopicPartition(self.log.topic, partition, at, self._offset_metadata(at)))
        if offsets:
            try:
                if wait:
                    self._consumer.commit(offsets=offsets, asynchronous=False)
                else:
                    self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException:
                # The group's copy is only informative; the store has the position.
                return

    def _offset_metadata(self, offset: int) -> str:
        return f"{METADATA} {self.log.topic_id} {offset}"

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            grown = max((each.partition for each in partitions), default=0) + 1
            if grown > self.log.partitions:
                # The group reports added partitions while the executor runs; at a start, the store does.
                store, expected = f"this executor's state of `{self.log.topic}`", self.log.partitions
                raise LogGrown(what=f"`{self.log.topic}`", store=store, expected=expected, actual=grown)
            unopened: dict[int, PenstockError] = {}
            for each in partitions:
                try:
                    self._open(each.partition)
                except _PASSING as error:
                    unopened[each.partition] = error
            consumer.incremental_assign([self._start_of(each.partition) for each in partitions])
            for partition, reason in unopened.items():
                self._suspend(partition, reason)
        except BaseException as error:  # noqa: BLE001 - raised inside a client callback; `_poll_once` raises it again
            self._failure = error

    def _start_of(self, partition: int) -> TopicPartition:
        task = self._tasks.get(partition)
        return TopicPartition(self.log.topic, partition, task.position if task else OFFSET_END)

    def _open(self, partition: int, *, seconds: float = CALL_SECONDS) -> None:
        """Raises StoreUnavailable, LogUnavailable or AppendUnknown if it may succeed later."""
        if self._snapshots is not None:
            self._snapshots.restore(self._stores, self.application, self.log.topic_id, partition)
        store = self._stores.open(self.application, self.log.topic_id, partition)
        try:
            position, _ = store.claim(self.log.partitions)
            fault_points.reach(ASSIGNED)
            self._check_history(partition, position, seconds)
            source = Source(self.log.name, self.log.topic_id, partition)
            checks, cached_max = self._tuning.purity_checks, self._tuning.cached_rows_max
            fold = Fold(
                self.application, source, self.log.codec, store, purity_checks=checks, cached_max=cached_max
            )
            if fold.application.version < self.application.version:
                self._announce_version(partition)
            acknowledged = self._acknowledged_in_group(partition, seconds)
            task = PartitionTask(fold, store, self._sender, self.counters, position, acknowledged)
        except BaseException:
            store.close()
            raise
        self._tasks[partition] = task

    def _announce_version(self, partition: int) -> None:
        """Appends the event after which this version decides; the one before decides what precedes it."""
        name, version = self.application.name, self.application.version
        payload = {"application": name, "version": version}
        event = request(f"version-{name}-{version}", VERSION, payload, time=time.time_ns() // 1_000_000)
        Appender(self.log).append("", event, partition=partition)

    def _check_history(self, partition: int, position: int, seconds: float) -> None:
        try:
            topic_partition = TopicPartition(self.log.topic, partition)
            start, _ = self._consumer.get_watermark_offsets(topic_partition, timeout=seconds)
        except KafkaException as error:
            raise LogUnavailable(topic=self.log.topic, reason=error.args[0].str()) from error
        if position < start:
            raise HistoryMissing(topic=self.log.topic, partition=partition, start=start, position=position)

    def _acknowledged_in_group(self, partition: int, seconds: float) -> int:
        """The position up to which earlier owners saw all events acknowledged.

        A group's offsets may be set by hand. Trusting a wrong one would lose events, so only an offset
        with an executor's metadata counts."""
        try:
            requested = [TopicPartition(self.log.topic, partition)]
            (committed,) = self._consumer.committed(requested, timeout=seconds)
        except KafkaException:
            return 0
        is_ours = committed.offset > 0 and committed.metadata == self._offset_metadata(committed.offset)
        return committed.offset if is_ours else 0

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = [each.partition for each in partitions if each.partition in self._tasks]
        leaving = {partition: self._tasks.pop(partition) for partition in revoked}
        for each in partitions:
            self._suspended.pop(each.partition, None)
        fault_points.reach(REVOKED)
        self._sender.flush()
        self._commit_to_group(leaving, wait=True)
        for task in leaving.values():
            if self._snapshots is not None:
                self._snapshots.save(task.store, task.position, now=True)
            self._close(task)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._suspended.pop(each.partition, None)
            if (task := self._tasks.pop(each.partition, None)) is not None:
                self._close(task)

    def _close(self, task: PartitionTask) -> None:
        if self._snapshots is not None:
            self._snapshots.close(task.store)
        task.store.close()

    def _stop(self) -> None:
        try:
            self._consumer.close()  # revokes, which flushes and commits to the group
        finally:
            for task in self._tasks.values():
                self._close(task)
            self._tasks = {}
            self._sender.close()
