"""Write outputs and dead letters: with delivery reports, or inside transactions.

Only the client proxy's thread uses the producer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from penstock.consume import fault_points
from penstock.consume.kafka_errors import output_error
from penstock.consume.messages import Committed, Delivered, Undelivered
from penstock.model.errors.consume import OutputRefused, TransactionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.consume.messages import Event, Publish
    from penstock.consume.offset_controller import PartitionCommit
    from penstock.consume.record import Output, Record
    from penstock.model.errors.consume import ConsumeError

INIT_SECONDS_MAX: Final = 30.0
COMMIT_SECONDS_MAX: Final = 30.0
RETRIES_MAX: Final = 5


def topic_partitions(commits: list[PartitionCommit]) -> list[TopicPartition]:
    return [
        TopicPartition(
            commit.assignment.topic, commit.assignment.partition, commit.offset, metadata=commit.metadata
        )
        for commit in commits
    ]


class Publisher:
    """Writes at least once: a record finishes when its outputs are reported durable."""

    def __init__(self, make_producer: Callable[[], Any], post: Callable[[Event], None]) -> None:
        self._make_producer = make_producer
        self._post = post
        self._producer: Any = None
        self._delivered: list[Record] = []

    def publish(self, command: Publish) -> None:
        if self._producer is None:
            self._producer = self._make_producer()
        left = [len(command.outputs), True]
        for output in command.outputs:
            refused = self._produce(
                command, output, lambda error, message: self._on_report(command, left, error, message)
            )
            if refused is not None:
                left[1] = False
                self._post(Undelivered(command.records, refused))
                return

    def serve(self) -> None:
        """Processes delivery reports; posts one event for all of them."""
        if self._producer is None:
            return
        self._producer.poll(0)
        if self._delivered:
            fault_points.reach(fault_points.BEFORE_DEAD_LETTER_COMMIT)
            delivered, self._delivered = self._delivered, []
            self._post(Delivered(delivered))

    def close(self, seconds: float) -> None:
        if self._producer is not None:
            self._producer.flush(seconds)
            self.serve()

    def _produce(self, command: Publish, output: Output, on_delivery: Any) -> ConsumeError | None:
        """Sends the output; returns the error if Kafka can never accept it."""
        arguments: dict[str, Any] = {"value": output.value, "key": output.key}
        if output.headers:
            headers = output.headers
            arguments["headers"] = list(headers.items() if hasattr(headers, "items") else headers)
        if output.partition is not None:
            arguments["partition"] = output.partition
        if output.timestamp_ms is not None:
            arguments["timestamp"] = output.timestamp_ms
        while True:
            try:
                self._producer.produce(output.topic, on_delivery=on_delivery, **arguments)
            except BufferError:
                self._producer.poll(0.1)  # the producer's queue is full: wait for the brokers
            except (KafkaException, TypeError, ValueError) as error:
                refused = output_error(command.records[0], output.topic, error)
                if isinstance(refused, OutputRefused):
                    return refused
                raise
            else:
                return None

    def _on_report(self, command: Publish, left: list[Any], error: Any, message: Any) -> None:
        left[0] -= 1
        if error is not None and left[1]:
            left[1] = False
            reason = output_error(command.records[0], message.topic(), error)
            self._post(Undelivered(command.records, reason))
        elif left[0] == 0 and left[1]:
            self._delivered.extend(command.records)


class TransactionalPublisher(Publisher):
    """Writes exactly once: outputs and the offsets of their records are committed together."""

    def __init__(
        self, make_producer: Callable[[], Any], post: Callable[[Event], None], transactional_id: str
    ) -> None:
        super().__init__(make_producer, post)
        self._id = transactional_id
        self._open = False
        self._error: str | None = None

    def start(self) -> None:
        """Fences the previous user of this transactional id and ends its open transaction."""
        self._producer = self._make_producer()
        self._retry(lambda: self._producer.init_transactions(INIT_SECONDS_MAX))

    def publish(self, command: Publish) -> None:
        self._begin()
        on_delivery = partial(self._on_delivery, command)
        for output in command.outputs:
            refused = self._produce(command, output, on_delivery)
            if refused is not None:
                self._post(Undelivered(command.records, refused))
                raise self.failed(str(refused))
        fault_points.reach(fault_points.AFTER_PRODUCE)

    def serve(self) -> None:
        self._producer.poll(0)
        if self._error is not None:
            raise self.failed(self._error)

    def commit(self, commits: list[PartitionCommit], group_metadata: Any) -> None:
        """Commits the outputs sent so far and these offsets in one transaction."""
        if not commits and not self._open:
            return
        self._begin()
        if commits:
            partitions = topic_partitions(commits)
            self._retry(
                lambda: self._producer.send_offsets_to_transaction(
                    partitions, group_metadata, COMMIT_SECONDS_MAX
                )
            )
        fault_points.reach(fault_points.BEFORE_TRANSACTION_COMMIT)
        self._retry(lambda: self._producer.commit_transaction(COMMIT_SECONDS_MAX))
        self._open = False
        self.serve()
        fault_points.reach(fault_points.AFTER_TRANSACTION_COMMIT)
        self._post(Committed(commits))

    def close(self, seconds: float) -> None:
        """Aborts the open transaction."""
        if self._open:
            self._open = False
            try:
                self._producer.abort_transaction(COMMIT_SECONDS_MAX)
            except KafkaException as error:
                raise self.failed(error.args[0].str()) from error
        self._producer.flush(seconds)

    def _begin(self) -> None:
        if not self._open:
            self._retry(self._producer.begin_transaction)
            self._open = True

    def _on_delivery(self, command: Publish, error: Any, message: Any) -> None:
        if error is not None:
            self._error = error.str()
            refused = output_error(command.records[0], message.topic(), error)
            if isinstance(refused, OutputRefused):  # others were only aborted with it
                self._post(Undelivered(command.records, refused))

    def _retry(self, call: Callable[[], Any]) -> None:
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
