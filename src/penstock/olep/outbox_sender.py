"""Sends outgoing events, in order and without gaps.

A receiver needs only one mark for each stream, because in every destination partition the events of a
stream first appear in ascending order. This holds because:
- an outbox is sent in the order of its batches, and a batch in the order of its events;
- the producer is idempotent, so a partition receives them in that order, and gapless, so an event that
  fails permanently stops all that follow;
- an executor that starts again begins with the oldest batch that was not fully acknowledged.
A paused executor that resumes after a take-over sends the same bytes under the same ids.

Only the last event of a batch for each destination partition asks for a delivery report: by the first two
points, it acknowledges those before it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer

from penstock.model import fault_points
from penstock.model.errors.olep import LogUnavailable
from penstock.olep.log import PRODUCER_CONFIG
from penstock.olep.outbox import addressed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from penstock.olep.fold import Outgoing
    from penstock.olep.log import Log

SEND_BEFORE = fault_points.declare(
    "olep.send.before", "a batch is stored, none of its events is queued in the client"
)
SEND_HALF = fault_points.declare(
    "olep.send.half", "some events of a batch are sent and acknowledged, some are not sent"
)
SENT = fault_points.declare("olep.sent", "all events of a batch are acknowledged, its outbox entry remains")

GAPLESS_CONFIG: Final[Mapping[str, Any]] = {
    **PRODUCER_CONFIG,
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,  # retry for ever: a gap would be worse than a delay
    "queue.buffering.max.messages": 500_000,
    "linger.ms": 2,
}
FLUSH_SECONDS: Final = 10.0


class PendingBatch:
    """A batch whose events have not all been acknowledged."""

    __slots__ = ("outgoing", "position", "start", "unacknowledged")

    def __init__(self, start: int, position: int, outgoing: Sequence[Outgoing]) -> None:
        self.start = start  # position before the batch
        self.position = position  # position after it
        self.outgoing = outgoing
        self.unacknowledged = 0


class InFlight:
    """The unacknowledged batches of one partition task, oldest first."""

    __slots__ = ("events", "pending", "sent")

    def __init__(self) -> None:
        self.pending: deque[PendingBatch] = deque()
        self.sent = 0  # outbox entries at or below this position may be deleted
        self.events = 0  # unacknowledged

    def acknowledged_position(self, position: int) -> int:
        """All events caused by records below this position are acknowledged."""
        return self.pending[0].start if self.pending else position

    def acknowledge(self, batch: PendingBatch) -> None:
        batch.unacknowledged -= 1
        while self.pending and self.pending[0].unacknowledged == 0:
            done = self.pending.popleft()
            self.sent = done.position
            self.events -= len(done.outgoing)
            fault_points.reach(SENT)


class OutboxSender:
    """One producer for all partition tasks of an executor."""

    def __init__(self, logs: Mapping[str, Log], config: Mapping[str, Any], **settings: Any) -> None:
        self._targets = {name: (log.topic, log.partitions) for name, log in logs.items()}
        self._config = {**config, **GAPLESS_CONFIG, **settings, "error_cb": self._failed}
        self._producer = Producer(self._config)
        self._fatal: KafkaError | None = None

    def send(self, in_flight: InFlight, batch: PendingBatch) -> None:
        """Queues a batch in the client; `poll` receives its acknowledgement."""
        fault_points.reach(SEND_BEFORE)
        in_flight.pending.append(batch)
        in_flight.events += len(batch.outgoing)
        produce = self._producer.produce
        messages, last = addressed(batch.outgoing, self._targets)
        batch.unacknowledged = len(last)
        report = partial(self._delivered, in_flight, batch)
        for number in last:
            messages[number] += (report,)
        half = len(messages) // 2
        for number, message in enumerate(messages):
            try:
                produce(*message)
            except BufferError:
                self._wait_for_room(*message)
            except KafkaException as error:
                raise LogUnavailable(topic=message[0], reason=error.args[0].str()) from error
            if number == half:
                self._reach_send_half()

    def poll(self, timeout: float = 0.0) -> None:
        """Receives delivery reports. Raises LogUnavailable if the producer has failed permanently."""
        try:
            self._producer.poll(timeout)
        except KafkaException as error:
            self._fatal = error.args[0]
        if self._fatal is not None:
            topics = ", ".join(topic for topic, _ in self._targets.values())
            raise LogUnavailable(topic=topics, reason=self._fatal.str())

    def flush(self, timeout: float = FLUSH_SECONDS) -> None:
        self._producer.flush(timeout)

    def close(self) -> None:
        """Drops queued events: they are still in the outbox."""
        self._producer.purge()
        self._producer.flush(FLUSH_SECONDS)

    def _wait_for_room(self, *arguments: Any) -> None:
        while True:
            self.poll(0.1)
            try:
                self._producer.produce(*arguments)
            except BufferError:
                continue
            return

    def _reach_send_half(self) -> None:
        if fault_points.is_armed(SEND_HALF):
            self._producer.flush(FLUSH_SECONDS)
            fault_points.reach(SEND_HALF)

    def _delivered(
        self, in_flight: InFlight, batch: PendingBatch, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            in_flight.acknowledge(batch)
        elif error.code() != error._PURGE_QUEUE and error.code() != error._PURGE_INFLIGHT:
            self._fatal = error

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
