"""The client proxy: the only owner of the Kafka clients, on a dedicated thread.

It polls whole batches while memory allows, commits on command, pauses and resumes partitions, and
handles rebalances. It makes no decision about records. While memory is full it polls with all
partitions paused, so that the member stays in the group.
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

from penstock.consume import fault_points, messages
from penstock.consume.assignment import Assignment
from penstock.consume.back_pressure import plan_fetch
from penstock.consume.kafka_errors import as_consume_error, is_transient
from penstock.consume.publisher import Publisher, TransactionalPublisher, topic_partitions
from penstock.consume.record import Record
from penstock.consume.schedule import NullKeys, Order, queue_key_of
from penstock.consume.settings import client_properties, cooperative, producer_properties
from penstock.model.errors.consume import ClientRefused, LoopBlocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.consume.core import Core
    from penstock.consume.offset_controller import PartitionCommit
    from penstock.consume.settings import Settings

log = logging.getLogger("penstock.consume")

BATCH_RECORDS_MAX: Final = 4096
# Longest wait in one poll. A command cannot interrupt it, so polls are short while one may come.
IDLE_SECONDS: Final = 0.05
BUSY_SECONDS: Final = 0.002
FULL_SECONDS: Final = 0.25  # memory full this long: pause everything
FULL_WAIT_SECONDS: Final = 0.01
OVER_SHARE_WAIT_SECONDS: Final = 0.001  # between checks of a partition that may soon drain
# While memory is full, callbacks of commits and rebalances are served this often.
CALLBACK_SECONDS: Final = 0.1
# Each such poll may return one record until the pause takes effect; memory is reserved for them.
OVERSHOOT_RECORDS_MAX: Final = round(FULL_SECONDS / FULL_WAIT_SECONDS) + 5
FIRST_RECORD_BYTES: Final = 16_384.0  # a guess until records were measured
COMMITTED_SECONDS_MAX: Final = 60.0
REPLY_SLACK_SECONDS: Final = 2.0  # what the event loop may take beyond revoke_seconds to reply
EOF: Final = KafkaError._PARTITION_EOF


class ClientProxy:
    """Started by the orchestrator, stopped by a Stop command; posts Ended or Failed last."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: Sequence[str],
        settings: Settings,
        core: Core,
        post: Callable[[messages.Event], None],
    ) -> None:
        self._properties = client_properties(properties)
        self._properties["on_commit"] = self._on_commit
        self._properties.setdefault("error_cb", self._on_error)
        self._delays = {each.topic: each.seconds for each in settings.delayed_retries}
        self._topics = [*topics, *self._delays]
        self._settings = settings
        self._core = core
        self._post = post
        self._cooperative = cooperative(self._properties)
        self._thread = threading.Thread(target=self._run, name="penstock-consume-client", daemon=True)
        self._commands: deque[messages.Command] = deque()
        self._room = threading.Event()
        self._client: Any = None
        self._assignments: dict[messages.PartitionId, Assignment] = {}
        self._epoch = 0
        self._committing: list[PartitionCommit] = []
        self._stopping = False
        self._error: BaseException | None = None
        self._more_waiting = False  # the last poll returned several records
        self._all_paused = False  # because memory is full
        self._no_room_since: float | None = None
        self._callbacks_due = 0.0
        self._enough_room = max(1, min(BATCH_RECORDS_MAX, settings.records_max // 4))
        self._reported_block = False
        self._record_bytes = FIRST_RECORD_BYTES  # mean of the last batch; at most halves with each
        self.polled_records = 0
        self.polled_bytes = 0
        self.heartbeat = time.monotonic()  # set by the event loop while it runs
        self.loop_thread: int | None = None
        self.current_record: Callable[[], object] = lambda: "nothing"
        if settings.transactional_id is None:
            self._publisher: Publisher = Publisher(self._make_producer, post)
            self._transactions: TransactionalPublisher | None = None
        else:
            self._transactions = TransactionalPublisher(self._make_producer, post, settings.transactional_id)
            self._publisher = self._transactions

    # Called from the event loop

    def start(self) -> None:
        self._thread.start()

    def send(self, command: messages.Command) -> None:
        self._commands.append(command)
        self._room.set()

    def made_room(self) -> None:
        """Wakes the proxy when a batch is worth fetching, not for every finished record."""
        if self._no_room_since is not None and self.room() >= self._enough_room:
            self._room.set()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def room(self) -> int:
        """How many more records fit in memory, by count and by the mean size of recent records."""
        core = self._core
        records = core.bounds.records - OVERSHOOT_RECORDS_MAX - (self.polled_records - core.released_records)
        size = core.bounds.bytes - (self.polled_bytes - core.released_bytes)
        return 0 if size <= 0 else min(records, 1 + int(size / self._record_bytes))

    # The thread

    def _run(self) -> None:
        try:
            self._open()
            while not self._stopping:
                self._run_commands()
                self._publisher.serve()
                self._check_event_loop()
                self._poll()
            self._close()
        except BaseException as error:  # noqa: BLE001  every failure is posted to the orchestrator
            self._close_after(error)
        else:
            self._post(messages.Ended())

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

    def _run_commands(self) -> None:
        while self._commands and not self._stopping:
            self._run_command(self._commands.popleft())

    def _run_command(self, command: messages.Command) -> None:
        match command:
            case messages.Publish():
                self._publisher.publish(command)
            case messages.Commit(commits):
                self._commit(commits)
            case messages.Stop():
                self._stopping = True
            case messages.CommitRevoked():
                pass  # too late: `_release_partitions` waits for it no longer

    def _poll(self) -> None:
        room = self.room()
        since = self._no_room_since
        if room <= 0 or (
            since is not None and room < self._enough_room and time.monotonic() - since < FULL_WAIT_SECONDS
        ):
            self._wait_for_room()
            return
        self._no_room_since = None
        if self._all_paused:
            self._all_paused = False
            running = [each for each in self._assignments.values() if each.paused is None]
            self._client.resume(_partitions_of(running))
        share = self._core.bounds.share(len(self._assignments))
        plan = plan_fetch(self._assignments.values(), share, time.monotonic(), self._core.latest)
        if plan.pause:
            self._client.pause(_partitions_of(plan.pause))
        if plan.resume:
            self._client.resume(_partitions_of(plan.resume))
        if plan.wait:
            self._room.clear()
            self._room.wait(OVER_SHARE_WAIT_SECONDS)
            return
        count = max(
            1, min(room, BATCH_RECORDS_MAX, share.records // 2, int(share.bytes / 2 / self._record_bytes))
        )
        batch = self._client.consume(count, 0) if self._more_waiting else []
        if not batch:
            busy = self._core.coordinator.credit < self._settings.uncommitted_max  # commands will follow
            first = self._client.poll(BUSY_SECONDS if busy else IDLE_SECONDS)
            batch = [] if first is None else [first]
            if first is not None and count > 1:
                batch += self._client.consume(count - 1, 0)
        self._more_waiting = len(batch) > 1
        self._raise_error()
        if batch:
            self._forward(batch)

    def _wait_for_room(self) -> None:
        now = time.monotonic()
        if self._no_room_since is None:
            self._no_room_since = now
        self._room.clear()
        if self.room() >= self._enough_room:
            return
        if not self._all_paused and now - self._no_room_since > FULL_SECONDS:
            self._all_paused = True
            self._client.pause(_partitions_of(self._assignments.values()))
        if self._all_paused or self._committing or now >= self._callbacks_due:
            self._callbacks_due = now + CALLBACK_SECONDS
            # Serves the callbacks of commits and rebalances; it may return a record.
            message = self._client.poll(0)
            self._raise_error()
            if message is not None:
                self._forward([message])
        self._room.wait(FULL_WAIT_SECONDS)

    def _forward(self, batch: list[Any]) -> None:
        groups: list[tuple[Assignment, list[Record]]] = []
        topic: str | None = None
        partition = -1
        assignment: Assignment | None = None
        records: list[Record] = []
        settings, new = self._settings, Record.__new__
        # The raw key is then the queue key, which saves a call for each record.
        key_is_queue = settings.order is Order.KEY and settings.null_keys is NullKeys.UNORDERED
        many_topics = len(self._topics) > 1 or self._topics[0].startswith("^")
        size_sum = 0
        ends: list[Any] = []
        for message in batch:
            if message.error() is not None:
                if message.error().code() == EOF:
                    ends.append(message)
                else:
                    self._handle_error(message.error())
                continue
            if message.partition() != partition or (many_topics and message.topic() != topic):
                topic, partition, records = message.topic(), message.partition(), []
                assignment = self._assignments.get((topic, partition))
                if assignment is not None:
                    groups.append((assignment, records))
            if assignment is None:
                continue  # polled just before its partition was revoked
            # Equivalent to Record(…), without the call: this runs for every record.
            record = new(Record)
            record.message = message
            record.assignment = assignment
            record.offset = message.offset()
            record.key = key = message.key()
            record.value = message.value()
            record.queue_key = key if key_is_queue else queue_key_of(key, settings.order, settings.null_keys)
            record.size = size = len(message) + len(key or b"")
            record.attempt = 1
            records.append(record)
            size_sum += size
        if size_sum or groups:
            count = 0
            for assignment, records in groups:
                assignment.polled += len(records)
                assignment.polled_end = records[-1].offset + 1
                count += len(records)
            self.polled_records += count
            self.polled_bytes += size_sum
            self._record_bytes = max(1.0, self._record_bytes / 2, size_sum / count)
            self._post(messages.Received(groups))
        for message in ends:
            assignment = self._assignments.get((message.topic(), message.partition()))
            # After the last record the end is no news: waking the event loop for it would delay records.
            if assignment is not None and message.offset() > assignment.polled_end:
                assignment.polled_end = message.offset()
                self._post(messages.EndReached(assignment, message.offset()))

    def _handle_error(self, error: Any) -> None:
        refused = as_consume_error(error, self._properties["group.id"])
        if refused is not None:
            raise refused
        log.warning("Kafka error: %s", error.str(), extra={"error": error.name()})

    def _check_event_loop(self) -> None:
        """Reports the handler that blocks the event loop; past max.poll.interval.ms stops polling."""
        blocked = time.monotonic() - self.heartbeat
        if blocked < self._settings.blocked_seconds:
            self._reported_block = False
            return
        if not self._reported_block:
            self._reported_block = True
            error = LoopBlocked(seconds=blocked, record=self.current_record())
            frame = sys._current_frames().get(self.loop_thread or 0)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            log.error("%s\n%s\n%s", error, error.advice, stack, extra={"error": error.code})
        interval = float(self._properties.get("max.poll.interval.ms", 300_000)) / 1000
        while time.monotonic() - self.heartbeat > interval:
            time.sleep(IDLE_SECONDS)  # the group gives its partitions to another member

    # Commits

    def _commit(self, commits: list[PartitionCommit]) -> None:
        if self._transactions is not None:
            self._transactions.commit(commits, self._client.consumer_group_metadata())
            return
        commits = [commit for commit in commits if self._owns(commit.assignment)]
        if not commits:
            self._post(messages.Committed([]))
        else:
            fault_points.reach(fault_points.BEFORE_COMMIT)
            self._committing = commits
            try:
                self._client.commit(offsets=topic_partitions(commits), asynchronous=True)
            except KafkaException as error:
                self._committing = []
                self._post(_outcome(commits, error.args[0], []))

    def _on_commit(self, error: Any, partitions: list[TopicPartition]) -> None:
        offsets = {(each.topic, each.partition, each.offset) for each in partitions}
        commits = self._committing
        # Else this is the callback of a synchronous commit.
        if all((*commit.assignment.key, commit.offset) in offsets for commit in commits):
            self._committing = []
            if commits:
                fault_points.reach(fault_points.AFTER_COMMIT)
                self._post(_outcome(commits, error, partitions))

    def _owns(self, assignment: Assignment) -> bool:
        """Kafka accepts commits for partitions that another member owns, so this must check."""
        current = self._assignments.get(assignment.key)
        return current is not None and current.epoch == assignment.epoch

    def _commit_sync(self, commits: list[PartitionCommit]) -> None:
        """Commits before partitions are revoked, and waits for the response."""
        if self._transactions is not None:
            self._transactions.commit(commits, self._client.consumer_group_metadata())
            return
        if not commits:
            return
        fault_points.reach(fault_points.BEFORE_COMMIT)
        try:
            partitions = self._client.commit(offsets=topic_partitions(commits), asynchronous=False)
        except KafkaException as error:
            self._post(_outcome(commits, error.args[0], []))
        else:
            fault_points.reach(fault_points.AFTER_COMMIT)
            self._post(_outcome(commits, None, partitions or []))

    # Rebalances: librdkafka calls these from within poll()

    def _on_assign(self, client: Any, partitions: list[TopicPartition]) -> None:
        try:
            self._accept_partitions(client, partitions)
        except BaseException as error:  # noqa: BLE001  must not propagate through librdkafka
            self._error = error

    def _accept_partitions(self, client: Any, partitions: list[TopicPartition]) -> None:
        self._epoch += 1
        assigned: list[Assignment] = []
        stored = client.committed(partitions, timeout=COMMITTED_SECONDS_MAX) if partitions else []
        for each in stored:
            if each.error is not None:
                raise KafkaException(each.error)
            committed = each.offset if each.offset >= 0 else None
            delay = self._delays.get(each.topic, 0.0)
            assigned.append(
                Assignment(each.topic, each.partition, self._epoch, committed, each.metadata, delay)
            )
        # Start at the offset that came with the map; any other offset would make the map void.
        starts = [TopicPartition(each.topic, each.partition, each.offset) for each in stored]
        if self._cooperative:
            client.incremental_assign(starts)
        else:
            client.assign(starts)
        for assignment in assigned:
            self._assignments[assignment.key] = assignment
        if self._all_paused and starts:
            client.pause(starts)
        if assigned:
            self._post(messages.Assigned(assigned))

    def _on_revoke(self, client: Any, partitions: list[TopicPartition]) -> None:
        try:
            self._release_partitions(partitions)
        except BaseException as error:  # noqa: BLE001  must not propagate through librdkafka
            self._error = error

    def _release_partitions(self, partitions: list[TopicPartition]) -> None:
        revoked = self._remove(partitions)
        if not revoked:
            return
        revoke = messages.Revoking(revoked)
        self._post(revoke)
        commits = self._run_commands_until_reply(revoke)
        fault_points.reach(fault_points.DURING_REVOKE)
        if commits is not None:
            self._commit_sync(commits)
        elif self._transactions is not None:
            # The open transaction may contain outputs of these partitions, and their offsets are unknown.
            raise self._transactions.failed("the event loop did not reply to a rebalance in time")

    def _run_commands_until_reply(self, revoke: messages.Revoking) -> list[PartitionCommit] | None:
        """What to commit; None if the event loop did not reply in time. Runs no command after the reply."""
        deadline = time.monotonic() + self._settings.revoke_seconds + REPLY_SLACK_SECONDS
        while time.monotonic() < deadline:
            self._room.clear()
            while self._commands:
                command = self._commands.popleft()
                if isinstance(command, messages.CommitRevoked) and command.revoke is revoke:
                    return command.commits
                self._run_command(command)
            self._publisher.serve()
            self._room.wait(0.01)
        return None

    def _on_lost(self, client: Any, partitions: list[TopicPartition]) -> None:
        revoked = self._remove(partitions)
        if revoked:
            self._post(messages.Lost(revoked))
            if self._transactions is not None:
                self._error = self._transactions.failed("its partitions were lost to another member")

    def _remove(self, partitions: list[TopicPartition]) -> list[Assignment]:
        keys = [(each.topic, each.partition) for each in partitions]
        return [self._assignments.pop(key) for key in keys if key in self._assignments]

    # Shutdown

    def _close(self) -> None:
        self._client.close()
        self._raise_error()
        self._publisher.close(self._settings.drain_seconds)

    def _close_after(self, error: BaseException) -> None:
        """Closes the clients after an error, and posts that error.

        Finished records are still committed on the way out, except in a transaction: its outputs are
        aborted, so their offsets must not be committed.
        """
        if self._transactions is not None:
            self._assignments.clear()
        for close in (lambda: self._publisher.close(1.0), lambda: self._client and self._client.close()):
            try:
                close()
            except Exception as another:  # noqa: BLE001  the first error is the one to report
                log.debug("close after a failure failed too: %s", another)
        self._post(messages.Failed(error))

    def _on_error(self, error: Any) -> None:
        refused = as_consume_error(error, self._properties["group.id"])
        if refused is not None and error.fatal():
            self._error = refused
        elif is_transient(error):
            log.info("transient Kafka client error: %s", error.str(), extra={"error": error.name()})
        else:
            log.warning("Kafka client error: %s", error.str(), extra={"error": error.name()})

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def _partitions_of(assignments: Iterable[Assignment]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in assignments]


def _outcome(
    commits: list[PartitionCommit], error: Any, results: Sequence[TopicPartition]
) -> messages.Committed:
    """Which partitions Kafka committed and which it refused, from the result of a commit."""
    if error is not None:
        return messages.Committed([], [(commit, error.str()) for commit in commits])
    refused = {(each.topic, each.partition): each.error.str() for each in results if each.error is not None}
    return messages.Committed(
        [commit for commit in commits if commit.assignment.key not in refused],
        [(commit, refused[commit.assignment.key]) for commit in commits if commit.assignment.key in refused],
    )
