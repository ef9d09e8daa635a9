"""The client proxy: the only owner of the Kafka clients, on a thread of its own.

Polls whole batches while there is room, commits what it is told, pauses and resumes, and answers
rebalances. It decides nothing about records. While there is no room it keeps the membership alive
by polling with everything paused.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.consume import faults, mail
from penstock.consume.assignment import Assignment
from penstock.consume.intake import steer
from penstock.consume.publisher import Publisher, TransactionalPublisher, topic_partitions
from penstock.consume.record import Record
from penstock.consume.refusal import is_passing, refusal
from penstock.consume.schedule import NullKeys, Order, lane_of
from penstock.consume.settings import client_properties, cooperative, producer_properties
from penstock.model.errors.consume import ClientRefused, LoopBlocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.consume.core import Core
    from penstock.consume.offsets import Mark
    from penstock.consume.settings import Settings

log = logging.getLogger("penstock.consume")

BATCH_RECORDS_MAX: Final = 4096
IDLE_SECONDS: Final = 0.05  # longest wait in one poll; commands wait as long at most
FULL_SECONDS: Final = 0.25  # no room for so long: pause everything
FULL_WAIT_SECONDS: Final = 0.01
CROWD_WAIT_SECONDS: Final = 0.001  # between looks at a partition that may be about to empty
CALLBACK_SECONDS: Final = 0.1  # without room, callbacks are served so often, and while a commit is under way
# Each poll for callbacks may bring one record along until the pause takes hold; room is kept for them.
OVERSHOOT_RECORDS_MAX: Final = round(FULL_SECONDS / FULL_WAIT_SECONDS) + 5
FIRST_RECORD_BYTES: Final = 16_384.0  # a guess, until there are records to measure
COMMITTED_SECONDS_MAX: Final = 60.0
ANSWER_SLACK_SECONDS: Final = 2.0  # what the event loop may take beyond revoke_seconds to answer
EOF: Final = KafkaError._PARTITION_EOF


class ClientProxy:
    """Started by the orchestrator, ended by a Stop command; says so with Ended or Failed."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: Sequence[str],
        settings: Settings,
        core: Core,
        post: Callable[[mail.Event], None],
    ) -> None:
        self._properties = client_properties(properties)
        self._properties["on_commit"] = self._on_commit
        self._properties.setdefault("error_cb", self._on_error)
        self._topics = list(topics)
        self._settings = settings
        self._core = core
        self._post = post
        self._cooperative = cooperative(self._properties)
        self._thread = threading.Thread(target=self._run, name="penstock-consume-client", daemon=True)
        self._commands: deque[mail.Command] = deque()
        self._room = threading.Event()
        self._client: Any = None
        self._assignments: dict[mail.Place, Assignment] = {}
        self._epoch = 0
        self._committing: list[Mark] = []
        self._reached: deque[mail.Reached] = deque()
        self._stop: mail.Stop | None = None
        self._error: BaseException | None = None
        self._busy = False  # the last batch was full: more is waiting
        self._halted = False  # everything paused for want of room
        self._no_room_since: float | None = None
        self._callbacks_due = 0.0
        self._enough_room = max(1, min(BATCH_RECORDS_MAX, settings.records_max // 4))
        self._reported_block = False
        self._record_bytes = FIRST_RECORD_BYTES  # mean of the last batch, falling slowly
        self.handed_records = 0
        self.handed_bytes = 0
        self.beat = time.monotonic()  # set by the event loop: it turns
        self.loop_thread: int | None = None
        self.handling: Callable[[], object] = lambda: "nothing"
        if settings.transactional_id is None:
            self._publisher: Publisher = Publisher(self._make_producer, post)
            self._transactions: TransactionalPublisher | None = None
        else:
            self._transactions = TransactionalPublisher(self._make_producer, post, settings.transactional_id)
            self._publisher = self._transactions

    # Called from the event loop

    def start(self) -> None:
        self._thread.start()

    def tell(self, command: mail.Command) -> None:
        self._commands.append(command)
        self._room.set()

    def made_room(self) -> None:
        """Wakes the proxy once a batch is worth fetching, not for every record that leaves."""
        if self._no_room_since is not None and self.room() >= self._enough_room:
            self._room.set()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def room(self) -> int:
        """How many more records fit in memory, by number and by the size that records had of late."""
        core = self._core
        records = core.bounds.records - OVERSHOOT_RECORDS_MAX - (self.handed_records - core.gone_records)
        size = core.bounds.bytes - (self.handed_bytes - core.gone_bytes)
        return 0 if size <= 0 else min(records, 1 + int(size / self._record_bytes))

    # The thread

    def _run(self) -> None:
        try:
            self._open()
            while self._stop is None:
                self._obey()
                self._publisher.serve()
                self._watch_loop()
                self._poll()
            self._close(flush=self._stop.flush)
        except BaseException as error:  # noqa: BLE001  whatever it is, the orchestrator must hear of it
            self._give_up(error)
        else:
            self._post(mail.Ended())

    def _open(self) -> None:
        if self._transactions is not None:
            self._transactions.start()
        try:
            make = self._settings.client or Consumer
            self._client = make(self._properties)
        except KafkaException as error:
            raise ClientRefused(reason=error.args[0].str()) from error
        self._client.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _make_producer(self) -> Any:
        properties = producer_properties(self._properties, self._settings)
        try:
            return (self._settings.producer_client or Producer)(properties)
        except KafkaException as error:
            raise ClientRefused(reason=error.args[0].str()) from error

    def _obey(self) -> None:
        while self._commands and self._stop is None:
            match self._commands.popleft():
                case mail.Publish() as command:
                    self._publisher.publish(command)
                case mail.Commit(marks):
                    self._commit(marks)
                case mail.Stop() as command:
                    self._stop = command

    def _poll(self) -> None:
        room = self.room()
        since = self._no_room_since
        if room <= 0 or (
            since is not None and room < self._enough_room and time.monotonic() - since < FULL_WAIT_SECONDS
        ):
            self._wait_for_room()
            return
        self._no_room_since = None
        if self._halted:
            self._halted = False
            self._client.resume(_parts(each for each in self._assignments.values() if each.paused is None))
        share = self._core.bounds.share(len(self._assignments))
        steering = steer(self._assignments.values(), share, time.monotonic(), self._core.latest)
        if steering.pause:
            self._client.pause(_parts(steering.pause))
        if steering.resume:
            self._client.resume(_parts(steering.resume))
        if steering.wait:
            self._room.clear()
            self._room.wait(CROWD_WAIT_SECONDS)
            return
        count = max(
            1, min(room, BATCH_RECORDS_MAX, share.records // 2, int(share.bytes / 2 / self._record_bytes))
        )
        messages = self._client.consume(count, 0) if self._busy else []
        if not messages:
            first = self._client.poll(IDLE_SECONDS)
            messages = [] if first is None else [first]
            if first is not None and count > 1:
                messages += self._client.consume(count - 1, 0)
        self._busy = len(messages) > 1
        self._raise_error()
        if messages:
            self._hand_over(messages)

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        if self._no_room_since is None:
            self._no_room_since = now
        self._room.clear()
        if self.room() >= self._enough_room:
            return
        if not self._halted and now - self._no_room_since > FULL_SECONDS:
            self._halted = True
            self._client.pause(_parts(self._assignments.values()))
        if self._halted or self._committing or now >= self._callbacks_due:
            self._callbacks_due = now + CALLBACK_SECONDS
            # For the outcome of commits, and for rebalances; it may bring a record along.
            message = self._client.poll(0)
            self._raise_error()
            if message is not None:
                self._hand_over([message])
        self._room.wait(FULL_WAIT_SECONDS)

    def _hand_over(self, messages: list[Any]) -> None:
        groups: list[tuple[Assignment, list[Record]]] = []
        topic: str | None = None
        partition = -1
        assignment: Assignment | None = None
        records: list[Record] = []
        settings, new = self._settings, Record.__new__
        # Then the key is the lane, and nobody needs to be asked.
        plain = settings.order is Order.KEY and settings.null_keys is NullKeys.UNORDERED
        several = len(self._topics) > 1 or self._topics[0].startswith("^")
        size_sum = 0
        for message in messages:
            if message.error() is not None:
                self._notice(message)
                continue
            if message.partition() != partition or (several and message.topic() != topic):
                topic, partition, records = message.topic(), message.partition(), []
                assignment = self._assignments.get((topic, partition))
                if assignment is not None:
                    groups.append((assignment, records))
            if assignment is None:
                continue  # taken from the queue just before its partition went
            # As Record(…) would, without the call: this runs for every record there is.
            record = new(Record)
            record.message = message
            record.assignment = assignment
            record.offset = message.offset()
            record.key = key = message.key()
            record.value = message.value()
            record.lane = key if plain else lane_of(key, settings.order, settings.null_keys)
            record.size = size = len(message) + len(key or b"")
            record.attempt = 1
            records.append(record)
            size_sum += size
        if size_sum or groups:
            count = 0
            for assignment, records in groups:
                assignment.handed += len(records)
                count += len(records)
            self.handed_records += count
            self.handed_bytes += size_sum
            self._record_bytes = max(1.0, self._record_bytes / 2, size_sum / count)
            self._post(mail.Received(groups))
        while self._reached:
            self._post(self._reached.popleft())

    def _notice(self, message: Any) -> None:
        error = message.error()
        if error.code() == EOF:
            assignment = self._assignments.get((message.topic(), message.partition()))
            if assignment is not None:
                self._reached.append(mail.Reached(assignment, message.offset()))
            return
        refused = refusal(error, self._properties["group.id"])
        if refused is not None:
            raise refused
        log.warning("Kafka reports: %s", error.str(), extra={"error": error.name()})

    def _watch_loop(self) -> None:
        """A handler that blocks the event loop is named; past max.poll.interval the member lets go."""
        silent = time.monotonic() - self.beat
        if silent < self._settings.blocked_seconds:
            self._reported_block = False
            return
        if not self._reported_block:
            self._reported_block = True
            error = LoopBlocked(seconds=silent, record=self.handling())
            frame = sys._current_frames().get(self.loop_thread or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            log.error("%s\n%s\n%s", error, error.advice, stack, extra={"error": error.code})
        interval = float(self._properties.get("max.poll.interval.ms", 300_000)) / 1000
        while time.monotonic() - self.beat > interval:
            time.sleep(IDLE_SECONDS)  # not polling: the group gives the partitions to a member that works

    # Commits

    def _commit(self, marks: list[Mark]) -> None:
        if self._transactions is not None:
            self._transactions.commit(marks, self._client.consumer_group_metadata())
            return
        marks = [mark for mark in marks if self._owns(mark.assignment)]
        if not marks:
            self._post(mail.Committed([]))
        else:
            faults.reach(faults.BEFORE_COMMIT)
            self._committing = marks
            try:
                self._client.commit(offsets=topic_partitions(marks), asynchronous=True)
            except KafkaException as error:
                self._committing = []
                self._post(_outcome(marks, error.args[0], []))

    def _on_commit(self, error: Any, parts: list[TopicPartition]) -> None:
        offsets = {(part.topic, part.partition, part.offset) for part in parts}
        marks = self._committing
        if all((*mark.assignment.key, mark.offset) in offsets for mark in marks):  # not a synchronous one's
            self._committing = []
            if marks:
                faults.reach(faults.AFTER_COMMIT)
                self._post(_outcome(marks, error, parts))

    def _owns(self, assignment: Assignment) -> bool:
        """Kafka takes commits for partitions of others from any member; we do not make them."""
        held = self._assignments.get(assignment.key)
        return held is not None and held.epoch == assignment.epoch

    def _commit_now(self, marks: list[Mark]) -> None:
        """Before partitions go: commits and waits for Kafka to say so."""
        if self._transactions is not None:
            self._transactions.commit(marks, self._client.consumer_group_metadata())
            return
        if not marks:
            return
        faults.reach(faults.BEFORE_COMMIT)
        try:
            parts = self._client.commit(offsets=topic_partitions(marks), asynchronous=False)
        except KafkaException as error:
            self._post(_outcome(marks, error.args[0], []))
        else:
            faults.reach(faults.AFTER_COMMIT)
            self._post(_outcome(marks, None, parts or []))

    # Rebalances; librdkafka calls these from within poll()

    def _on_assign(self, client: Any, parts: list[TopicPartition]) -> None:
        try:
            self._take_over(client, parts)
        except BaseException as error:  # noqa: BLE001  an exception must not pass through librdkafka
            self._error = error

    def _take_over(self, client: Any, parts: list[TopicPartition]) -> None:
        self._epoch += 1
        taken: list[Assignment] = []
        found = client.committed(parts, timeout=COMMITTED_SECONDS_MAX) if parts else []
        for part in found:
            if part.error is not None:
                raise KafkaException(part.error)
            committed = part.offset if part.offset >= 0 else None
            taken.append(Assignment(part.topic, part.partition, self._epoch, committed, part.metadata))
        # Start exactly where the map was read: what lies between is then known to be consistent.
        starts = [TopicPartition(part.topic, part.partition, part.offset) for part in found]
        if self._cooperative:
            client.incremental_assign(starts)
        else:
            client.assign(starts)
        for assignment in taken:
            self._assignments[assignment.key] = assignment
        if self._halted and starts:
            client.pause(starts)
        if taken:
            self._post(mail.Assigned(taken))

    def _on_revoke(self, client: Any, parts: list[TopicPartition]) -> None:
        try:
            self._let_go(parts)
        except BaseException as error:  # noqa: BLE001  an exception must not pass through librdkafka
            self._error = error

    def _let_go(self, parts: list[TopicPartition]) -> None:
        going = self._pop(parts)
        if not going:
            return
        question = mail.Revoking(going)
        self._post(question)
        deadline = time.monotonic() + self._settings.revoke_seconds + ANSWER_SLACK_SECONDS
        while not question.answer.given.wait(0.01) and time.monotonic() < deadline:
            self._obey()
            self._publisher.serve()
        faults.reach(faults.DURING_REVOKE)
        if not question.answer.given.is_set() and self._transactions is not None:
            # Outputs of these partitions may be in the open transaction, and their offsets cannot be.
            raise self._transactions.failed("the event loop did not answer a rebalance in time")
        self._obey()
        self._commit_now(question.answer.marks)

    def _on_lost(self, client: Any, parts: list[TopicPartition]) -> None:
        going = self._pop(parts)
        if going:
            self._post(mail.Lost(going))
            if self._transactions is not None:
                self._error = self._transactions.failed("its partitions were lost to another member")

    def _pop(self, parts: list[TopicPartition]) -> list[Assignment]:
        places = [(part.topic, part.partition) for part in parts]
        return [self._assignments.pop(place) for place in places if place in self._assignments]

    # The end

    def _close(self, *, flush: bool) -> None:
        if not flush:
            self._assignments.clear()  # what is not committed by now stays so
        self._client.close()
        self._raise_error()
        self._publisher.close(self._settings.drain_seconds)

    def _give_up(self, error: BaseException) -> None:
        """Closes what can be closed; the error that came first is the one that is told.

        What is finished is still committed on the way out, except in a transaction: its outputs are
        aborted, so its offsets must not be committed either.
        """
        if self._transactions is not None:
            self._assignments.clear()
        for close in (lambda: self._publisher.close(1.0), lambda: self._client and self._client.close()):
            try:
                close()
            except Exception as another:  # noqa: BLE001  the first error counts
                log.debug("while giving up: %s", another)
        self._post(mail.Failed(error))

    def _on_error(self, error: Any) -> None:
        refused = refusal(error, self._properties["group.id"])
        if refused is not None and error.fatal():
            self._error = refused
        elif is_passing(error):
            log.info("Kafka client: %s", error.str(), extra={"error": error.name()})
        else:
            log.warning("Kafka client: %s", error.str(), extra={"error": error.name()})

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _parts(assignments: Iterable[Assignment]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in assignments]


def _outcome(marks: list[Mark], error: Any, parts: Sequence[TopicPartition]) -> mail.Committed:
    """Which marks Kafka took and which it did not, from a commit's result."""
    if error is not None:
        return mail.Committed([], [(mark, error.str()) for mark in marks])
    refused = {(part.topic, part.partition): part.error.str() for part in parts if part.error is not None}
    return mail.Committed(
        [mark for mark in marks if mark.assignment.key not in refused],
        [(mark, refused[mark.assignment.key]) for mark in marks if mark.assignment.key in refused],
    )
