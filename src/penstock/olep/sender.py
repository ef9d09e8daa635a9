"""Sends outgoing events, in order and without a gap.

The rule that lets a receiver get by with one mark a stream: in every destination partition the
events of a stream appear first in ascending order. It holds because
- an outbox is sent in the order of its batches, and a batch in the order of its events;
- the producer is idempotent, so within its life a partition takes them in that order, and
  gapless, so that one which fails for good stops all that follow;
- whoever starts anew begins with the oldest batch that was not acknowledged as a whole.
A paused executor that wakes up after another took over sends the same bytes under the same ids.

Only the last event of a batch for each destination partition asks for a delivery report: by the
first two points it speaks for those before it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, Producer

from penstock.model import faults
from penstock.model.errors.olep import LogUnavailable
from penstock.olep.log import APPENDER
from penstock.olep.placing import partition_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError, Message

    from penstock.olep.fold import Outgoing
    from penstock.olep.log import Log

SEND_BEFORE = faults.declare(
    "olep.send.before", "a batch is stored, none of its events is handed to the client"
)
SEND_HALF = faults.declare(
    "olep.send.half", "some events of a batch are sent and acknowledged, some are not sent"
)
SENT = faults.declare("olep.sent", "all events of a batch are acknowledged, its outbox entry is still there")

GAPLESS: Final[Mapping[str, Any]] = {
    **APPENDER,
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,  # never give up: a gap would be worse than a wait
    "queue.buffering.max.messages": 500_000,
    "linger.ms": 2,
}
FLUSH_SECONDS: Final = 10.0


class Pending:
    """A batch whose events have not all been acknowledged."""

    __slots__ = ("outgoing", "position", "start", "unacknowledged")

    def __init__(self, start: int, position: int, outgoing: Sequence[Outgoing]) -> None:
        self.start = start  # position before the batch
        self.position = position  # position after it
        self.outgoing = outgoing
        self.unacknowledged = 0


class Channel:
    """The unacknowledged batches of one lane, oldest first."""

    __slots__ = ("events", "pending", "sent")

    def __init__(self) -> None:
        self.pending: deque[Pending] = deque()
        self.sent = 0  # outbox entries at or below this position may be dropped
        self.events = 0

    def acknowledged(self, position: int) -> int:
        """Below this, all that was caused is in its log."""
        return self.pending[0].start if self.pending else position

    def _acknowledge(self, batch: Pending) -> None:
        batch.unacknowledged -= 1
        while self.pending and self.pending[0].unacknowledged == 0:
            done = self.pending.popleft()
            self.sent = done.position
            self.events -= len(done.outgoing)
            faults.reach(SENT)


class Sender:
    """One producer for all lanes of an executor."""

    def __init__(self, logs: Mapping[str, Log], config: Mapping[str, Any], **settings: Any) -> None:
        self._targets = {name: (log.topic, log.partitions) for name, log in logs.items()}
        self._config = {**config, **GAPLESS, **settings, "error_cb": self._failed}
        self._producer = Producer(self._config)
        self._fatal: KafkaError | None = None

    def send(self, channel: Channel, batch: Pending) -> None:
        """Hands a batch to the client; its acknowledgement arrives in `poll`."""
        faults.reach(SEND_BEFORE)
        channel.pending.append(batch)
        channel.events += len(batch.outgoing)
        targets, produce = self._targets, self._producer.produce
        placed = []
        tails: dict[tuple[str, int], int] = {}
        for number, (log, key, _) in enumerate(batch.outgoing):
            topic, partitions = targets[log]
            partition = partition_of(key, partitions)
            tails[topic, partition] = number
            placed.append((topic, partition))
        batch.unacknowledged = len(tails)
        report = partial(self._delivered, channel, batch)
        last = frozenset(tails.values())
        for number, (_, key, value) in enumerate(batch.outgoing):
            topic, partition = placed[number]
            try:
                produce(topic, value, key, partition, report if number in last else None)
            except BufferError:
                self._wait_for_room(topic, value, key, partition, report if number in last else None)
            except KafkaException as error:
                raise LogUnavailable(topic=topic, reason=error.args[0].str()) from error
            if number * 2 < len(batch.outgoing) <= number * 2 + 2:
                self._half()

    def poll(self, timeout: float = 0.0) -> None:
        """Takes delivery reports. Raises LogUnavailable when the producer has failed for good."""
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
        """Drops what is still queued: it is in the outbox."""
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

    def _half(self) -> None:
        if faults.is_armed(SEND_HALF):
            self._producer.flush(FLUSH_SECONDS)
            faults.reach(SEND_HALF)

    def _delivered(
        self, channel: Channel, batch: Pending, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            channel._acknowledge(batch)
        elif error.code() != error._PURGE_QUEUE and error.code() != error._PURGE_INFLIGHT:
            self._fatal = error

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
