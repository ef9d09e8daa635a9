"""The executor: a process that owns some partitions of a log and runs an application on them.

Any number of them share a log through a consumer group. Each partition it is given becomes a lane
with a store of its own; one thread takes records, and for each lane decides, commits and sends.
Where to begin is read from the store, never from the group: the store commits its position with
its state. The group learns the position up to which everything caused was acknowledged, for
monitoring, and so that a successor that restores an older state need not send it all again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.model import faults
from penstock.model.errors.olep import HistoryMissing, LogGrown, LogUnavailable, StoreFenced
from penstock.olep.event import Record
from penstock.olep.fold import Fold, Source, Watch
from penstock.olep.lane import Figures, Lane
from penstock.olep.log import CALL_SECONDS, READER, log_error, place_of
from penstock.olep.position import Position
from penstock.olep.rows import CACHED_ROWS_MAX
from penstock.olep.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from threading import Event as Flag

    from confluent_kafka import Message

    from penstock.olep.application import Application
    from penstock.olep.log import Log
    from penstock.olep.snapshot import Snapshots
    from penstock.olep.store import Stores

IDLE_SECONDS: Final = 0.2  # the longest time in which the thread does not look around
FETCH_BYTES: Final = 100_000  # a fetch is answered at once when there is so much
METADATA_MS: Final = 5_000  # within which added partitions are noticed
METADATA: Final = "penstock-olep"  # marks a group offset as an executor's own word

_record: Final[Callable[[tuple[Any, ...]], Record]] = partial(tuple.__new__, Record)

ASSIGNED = faults.declare("olep.assigned", "a partition is claimed, nothing of it has been read")
REVOKED = faults.declare("olep.revoked", "a partition is about to be given up, its outbox may not be empty")


@dataclass(frozen=True, slots=True)
class Tuning:
    batch_max: int = 1000  # records of a partition in one transaction
    linger_seconds: float = 0.002  # how long a batch that is not full waits for more
    gather_seconds: float = 0.005  # how long events may gather at the broker before they are fetched, and
    # in the client before they are sent: fewer and larger requests, at so much more latency a hop
    group_seconds: float = 1.0  # between commits to the group
    unacknowledged_max: int = 100_000  # events sent and not acknowledged; above, the executor waits
    cached_rows_max: int = CACHED_ROWS_MAX
    watch: Watch = Watch.SAMPLED


class LaneView(NamedTuple):
    """A partition of an executor, as it stood a moment ago."""

    partition: int
    position: int
    unacknowledged: int  # events


class Executor:
    """Runs `application` on `log`. `logs` are those it emits to, by the names it uses."""

    def __init__(
        self,
        application: Application,
        log: Log,
        stores: Stores,
        *,
        logs: Sequence[Log] = (),
        group: str | None = None,
        tuning: Tuning | None = None,
        snapshots: Snapshots | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.application = application
        self.log = log
        self.group = group or f"penstock-olep-{application.name}"
        self.figures = Figures()
        self._stores = stores
        self._logs = {log.name: log, **{each.name: each for each in logs}}
        self._tuning = tuning or Tuning()
        self._snapshots = snapshots
        self._client = dict(client or {})
        self._lanes: dict[int, Lane] = {}
        self._failure: BaseException | None = None

    def run(self, stopping: Flag) -> None:
        """Works until told to stop, or until something stops it; raises that."""
        faults.check_armed()
        gather_ms = int(self._tuning.gather_seconds * 1000)
        self._sender = Sender(self._logs, self.log.config, **{"linger.ms": gather_ms})
        self._consumer = Consumer(
            {
                "group.id": self.group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 10_000,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "queued.min.messages": 20_000,
                "fetch.min.bytes": FETCH_BYTES if gather_ms else 1,
                "fetch.wait.max.ms": gather_ms or 500,
                **self.log.config,
                **self._client,
                **READER,
            }
        )
        self._consumer.subscribe(
            [self.log.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._group_due = time.monotonic() + self._tuning.group_seconds
        try:
            while not stopping.is_set():
                self._round()
                self._let_acknowledge(stopping)
        finally:
            self._stop()

    def position(self) -> Position:
        """Where the lanes stand. Safe from other threads."""
        return Position({self.log.topic_id: {p: lane.position for p, lane in self._lanes.copy().items()}})

    def partitions(self) -> frozenset[int]:
        """Those it owns now. Safe from other threads."""
        return frozenset(self._lanes.copy())

    def lanes(self) -> list[LaneView]:
        """What it owns, for those who watch it. Safe from other threads."""
        lanes = sorted(self._lanes.copy().items())
        return [LaneView(partition, lane.position, lane.channel.events) for partition, lane in lanes]

    def quiet(self) -> bool:
        """Whether all that was decided has been acknowledged. Safe from other threads."""
        return not any(lane.channel.pending for lane in self._lanes.copy().values())

    def _round(self) -> None:
        """One turn: take what is there, apply it, look after acknowledgements and the group."""
        messages = self._take()
        if self._failure is not None:
            raise self._failure
        self._sender.poll()
        records, ends = self._sorted(messages)
        for partition, found in records.items():
            self._apply(partition, found)
        for partition, end in ends.items():
            lane = self._lanes.get(partition)
            if lane is not None and not lane.fenced:
                self._guarded(lane, lane.advance, end)
        if time.monotonic() >= self._group_due:
            self._group_due = time.monotonic() + self._tuning.group_seconds
            self._look_after()

    def _let_acknowledge(self, stopping: Flag) -> None:
        """Back pressure: with too much under way, wait for the brokers before taking more."""
        most = self._tuning.unacknowledged_max
        while sum(lane.channel.events for lane in self._lanes.values()) > most and not stopping.is_set():
            self._sender.poll(0.05)

    def _take(self) -> list[Message]:
        most = self._tuning.batch_max * max(1, len(self._lanes))
        messages = self._consumer.consume(most, 0)
        if not messages:
            messages = self._consumer.consume(1, IDLE_SECONDS)
            if messages and most > 1 and self._tuning.linger_seconds:
                messages += self._consumer.consume(most - 1, self._tuning.linger_seconds)
        return messages

    def _sorted(self, messages: Sequence[Message]) -> tuple[dict[int, list[Record]], dict[int, int]]:
        records: dict[int, list[Record]] = {}
        ends: dict[int, int] = {}
        for message in messages:
            error = message.error()
            partition: int = message.partition()  # type: ignore[assignment] # none only in errors of the client
            if error is None:
                record = _record((message.offset(), message.key(), message.value()))
                if partition in records:
                    records[partition].append(record)
                else:
                    records[partition] = [record]
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[partition] = place_of(message)[1]
            elif error.code() != KafkaError._MAX_POLL_EXCEEDED and not error.retriable():
                lane = self._lanes.get(partition)
                raise log_error(self.log.topic, partition, error, lane.position if lane else 0)
        return records, ends

    def _apply(self, partition: int, records: list[Record]) -> None:
        lane = self._lanes.get(partition)
        if lane is None or lane.fenced:
            return
        size = self._tuning.batch_max
        for at in range(0, len(records), size):
            if not self._guarded(lane, lane.apply, records[at : at + size]):
                return
            self._sender.poll()

    def _guarded(self, lane: Lane, call: Any, argument: Any) -> bool:
        try:
            call(argument)
            return True
        except StoreFenced:
            # Either the group gave the partition to another executor and we shall hear of it, or a
            # paused one woke up and claimed it by mistake. `_look_after` claims it back if it is ours.
            lane.fenced = True
            return False

    def _look_after(self) -> None:
        """Once in a while: tell the group, tidy outboxes, keep snapshots, claim back what is ours."""
        for partition, lane in [*self._lanes.items()]:
            if lane.fenced:
                lane.close()
                self._open(partition)
                self._consumer.seek(
                    TopicPartition(self.log.topic, partition, self._lanes[partition].position)
                )
                continue
            if not lane.channel.pending:
                self._guarded(lane, lambda _, lane=lane: lane.tidy(), None)
            if self._snapshots is not None:
                self._snapshots.keep(lane.store, lane.position)
        self._tell_group(self._lanes)

    def _tell_group(self, lanes: Mapping[int, Lane], *, wait: bool = False) -> None:
        offsets = []
        for partition, lane in lanes.items():
            at = lane.acknowledged()
            offsets.append(TopicPartition(self.log.topic, partition, at, self._word(at)))
        if offsets:
            try:
                if wait:
                    self._consumer.commit(offsets=offsets, asynchronous=False)
                else:
                    self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException:
                # The group's copy is a convenience; the store has the position.
                return

    def _word(self, offset: int) -> str:
        return f"{METADATA} {self.log.topic_id} {offset}"

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            grown = max((each.partition for each in partitions), default=0) + 1
            if grown > self.log.partitions:
                # The group hears of added partitions while we run; the store tells at the next start.
                store, expected = f"this executor's state of `{self.log.topic}`", self.log.partitions
                raise LogGrown(what=f"`{self.log.topic}`", store=store, expected=expected, actual=grown)
            for each in partitions:
                self._open(each.partition)
            consumer.incremental_assign(
                [
                    TopicPartition(self.log.topic, p.partition, self._lanes[p.partition].position)
                    for p in partitions
                ]
            )
        except BaseException as error:  # noqa: BLE001 - the client calls us; `_round` raises it where it can be handled
            self._failure = error

    def _open(self, partition: int) -> None:
        if self._snapshots is not None:
            self._snapshots.restore(self._stores, self.application, self.log.topic_id, partition)
        store = self._stores.open(self.application, self.log.topic_id, partition)
        try:
            position, _ = store.claim(self.log.partitions)
            faults.reach(ASSIGNED)
            self._check_history(partition, position)
            source = Source(self.log.name, self.log.topic_id, partition)
            tuning = self._tuning
            fold = Fold(
                self.application,
                source,
                self.log.codec,
                store,
                watch=tuning.watch,
                cached_max=tuning.cached_rows_max,
            )
            quiet_until = self._known_to_group(partition)
            lane = Lane(fold, store, self._sender, self.figures, position=position, quiet_until=quiet_until)
        except BaseException:
            store.close()
            raise
        self._lanes[partition] = lane

    def _check_history(self, partition: int, position: int) -> None:
        try:
            place = TopicPartition(self.log.topic, partition)
            start, _ = self._consumer.get_watermark_offsets(place, timeout=CALL_SECONDS)
        except KafkaException as error:
            raise LogUnavailable(topic=self.log.topic, reason=error.args[0].str()) from error
        if position < start:
            raise HistoryMissing(topic=self.log.topic, partition=partition, start=start, position=position)

    def _known_to_group(self, partition: int) -> int:
        """The position up to which an owner before us saw everything acknowledged.

        Somebody may set a group's offsets by hand; only an offset that carries our own word counts,
        since believing a wrong one would swallow events."""
        try:
            asked = [TopicPartition(self.log.topic, partition)]
            (found,) = self._consumer.committed(asked, timeout=CALL_SECONDS)
        except KafkaException:
            return 0
        return found.offset if found.offset > 0 and found.metadata == self._word(found.offset) else 0

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        leaving = {
            p.partition: self._lanes.pop(p.partition) for p in partitions if p.partition in self._lanes
        }
        faults.reach(REVOKED)
        self._sender.flush()
        self._tell_group({p: lane for p, lane in leaving.items() if not lane.fenced}, wait=True)
        for lane in leaving.values():
            if self._snapshots is not None and not lane.fenced:
                self._snapshots.keep(lane.store, lane.position, now=True)
            lane.close()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            if (lane := self._lanes.pop(each.partition, None)) is not None:
                lane.close()

    def _stop(self) -> None:
        try:
            self._consumer.close()  # revokes, which flushes and tells the group
        finally:
            for lane in self._lanes.values():
                lane.close()
            self._lanes = {}
            self._sender.close()
