"""Writing outputs and dead letters: with delivery reports, or inside transactions.

Owned by the client proxy's thread; nobody else touches the producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from penstock.consume import faults
from penstock.consume.mail import Committed, Delivered, Undelivered
from penstock.model.errors.consume import OutputUndelivered, TransactionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.consume.mail import Event, Publish
    from penstock.consume.offsets import Mark
    from penstock.consume.record import Output, Record

INIT_SECONDS_MAX: Final = 30.0
COMMIT_SECONDS_MAX: Final = 30.0
RETRIES_MAX: Final = 5


def topic_partitions(marks: list[Mark]) -> list[TopicPartition]:
    return [
        TopicPartition(mark.assignment.topic, mark.assignment.partition, mark.offset, metadata=mark.metadata)
        for mark in marks
    ]


class Publisher:
    """Writes at least once: a record counts as finished when its outputs are reported durable."""

    def __init__(self, make: Callable[[], Any], post: Callable[[Event], None]) -> None:
        self._make = make
        self._post = post
        self._producer: Any = None
        self._delivered: list[Record] = []

    def publish(self, command: Publish) -> None:
        if self._producer is None:
            self._producer = self._make()
        left = [len(command.outputs), True]
        for output in command.outputs:
            self._produce(output, lambda error, message: self._reported(command, left, error, message))

    def serve(self) -> None:
        """Takes in delivery reports; posts one event for all of them."""
        if self._producer is None:
            return
        self._producer.poll(0)
        if self._delivered:
            faults.reach(faults.BEFORE_DEAD_LETTER_COMMIT)
            delivered, self._delivered = self._delivered, []
            self._post(Delivered(delivered))

    def close(self, seconds: float) -> None:
        if self._producer is not None:
            self._producer.flush(seconds)
            self.serve()

    def _produce(self, output: Output, on_delivery: Any) -> None:
        facts: dict[str, Any] = {"value": output.value, "key": output.key}
        if output.headers:
            headers = output.headers
            facts["headers"] = list(headers.items() if hasattr(headers, "items") else headers)
        if output.partition is not None:
            facts["partition"] = output.partition
        if output.timestamp_ms is not None:
            facts["timestamp"] = output.timestamp_ms
        while True:
            try:
                self._producer.produce(output.topic, on_delivery=on_delivery, **facts)
            except BufferError:
                self._producer.poll(0.1)  # its queue is full: back pressure from the brokers
            else:
                return

    def _reported(self, command: Publish, left: list[Any], error: Any, message: Any) -> None:
        left[0] -= 1
        if error is not None and left[1]:
            left[1] = False
            reason = OutputUndelivered(record=command.records[0], topic=message.topic(), reason=error.str())
            self._post(Undelivered(command.records, reason))
        elif left[0] == 0 and left[1]:
            self._delivered.extend(command.records)


class TransactionalPublisher(Publisher):
    """Writes exactly once: outputs and the offsets of their records become visible together, or never."""

    def __init__(self, make: Callable[[], Any], post: Callable[[Event], None], transactional_id: str) -> None:
        super().__init__(make, post)
        self._id = transactional_id
        self._open = False
        self._error: str | None = None

    def start(self) -> None:
        """Fences whoever used this transactional id before, and ends what they left open."""
        self._producer = self._make()
        self._try(lambda: self._producer.init_transactions(INIT_SECONDS_MAX))

    def publish(self, command: Publish) -> None:
        self._begin()
        for output in command.outputs:
            self._produce(output, self._noted)
        faults.reach(faults.AFTER_PRODUCE)

    def serve(self) -> None:
        self._producer.poll(0)
        if self._error is not None:
            raise self.failed(self._error)

    def commit(self, marks: list[Mark], group_metadata: Any) -> None:
        """The records marked, their outputs and nothing else, as one."""
        if not marks and not self._open:
            return
        self._begin()
        if marks:
            parts = topic_partitions(marks)
            self._try(
                lambda: self._producer.send_offsets_to_transaction(parts, group_metadata, COMMIT_SECONDS_MAX)
            )
        faults.reach(faults.BEFORE_TRANSACTION_COMMIT)
        self._try(lambda: self._producer.commit_transaction(COMMIT_SECONDS_MAX))
        self._open = False
        self.serve()
        faults.reach(faults.AFTER_TRANSACTION_COMMIT)
        self._post(Committed(marks))

    def abort(self) -> None:
        """Leaves nothing half-written behind; called when the consumer gives up."""
        if self._open:
            self._open = False
            try:
                self._producer.abort_transaction(COMMIT_SECONDS_MAX)
            except KafkaException as error:
                raise self.failed(error.args[0].str()) from error

    def close(self, seconds: float) -> None:
        self.abort()
        self._producer.flush(seconds)

    def _begin(self) -> None:
        if not self._open:
            self._try(self._producer.begin_transaction)
            self._open = True

    def _noted(self, error: Any, _: Any) -> None:
        if error is not None:
            self._error = error.str()

    def _try(self, call: Callable[[], Any]) -> None:
        for attempt in range(RETRIES_MAX + 1):
            try:
                call()
            except KafkaException as error:
                cause = error.args[0]
                if cause.retriable() and not cause.txn_requires_abort() and attempt < RETRIES_MAX:
                    continue
                raise self.failed(cause.str()) from error
            else:
                return

    def failed(self, reason: str) -> TransactionFailed:
        return TransactionFailed(transactional_id=self._id, reason=reason)
