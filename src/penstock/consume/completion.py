"""What happens to a record after its handler: finish, publish, retry, dead-letter or escalate."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from penstock.consume import messages
from penstock.consume.dead_letter import dead_letter, shown
from penstock.consume.record import Output
from penstock.model.errors.consume import (
    HandlerAborted,
    HandlerFailed,
    OutputRefused,
    OutputUndelivered,
    PayloadUnreadable,
    PayloadUnsendable,
    ResultInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.consume.core import Core
    from penstock.consume.record import Record
    from penstock.consume.settings import Settings
    from penstock.model.errors.consume import ConsumeError

log = logging.getLogger("penstock.consume")

# Another attempt would fail in the same way.
NOT_RETRIED: Final = (PayloadUnreadable, PayloadUnsendable, ResultInvalid, OutputRefused)


class Completion:
    """Completes records for all runners, on the event loop."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        core: Core,
        random: Random,
        *,
        send: Callable[[messages.Command], None],
        call_later: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
        wake_runner: Callable[[], None],
        escalate: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._group = group
        self._core = core
        self._random = random
        self._send = send
        self._call_later = call_later
        self._now = now
        self._wake_runner = wake_runner
        self._escalate = escalate
        # Being written to the dead-letter topic or a delayed-retry topic; by record, that topic.
        self._letters: dict[Record, str] = {}
        self._topics_after_failure = [each.topic for each in settings.delayed_retries]
        if settings.dead_letter_topic is not None:
            self._topics_after_failure.append(settings.dead_letter_topic)

    def succeed(self, record: Record, result: object) -> None:
        if result is None:
            self._core.finish(record)
            return
        try:
            outputs = _outputs(result)
        except Exception as error:  # noqa: BLE001  a generator runs the handler's code only now
            self.fail(record, error)
            return
        if outputs is None:
            self.fail(record, _invalid(record, result))
        else:
            self._publish([record], outputs)

    def succeed_batch(self, batch: list[Record], result: object) -> None:
        try:
            outputs = [] if result is None else _outputs(result)
        except Exception as error:  # noqa: BLE001  a generator runs the handler's code only now
            self.fail_batch(batch, error)
            return
        if outputs is None:
            self.fail_batch(batch, _invalid(batch[0], result))
        else:
            self._publish(batch, outputs)

    def fail(self, record: Record, cause: BaseException) -> None:
        """Retries, dead-letters or escalates the record, as the retry policy decides."""
        try:
            self._fail(record, cause)
        except Exception as defect:  # noqa: BLE001  raised to a runner, it would end that task, unnoticed
            self._escalate(defect)

    def _fail(self, record: Record, cause: BaseException) -> None:
        core = self._core
        core.counts.failed += 1
        if not record.assignment.live:
            core.abandon(record)
            return
        final = isinstance(cause, NOT_RETRIED)
        pause = None if final else self._settings.retry.pause_seconds(cause, record.attempt, self._random)
        if pause is not None:
            log.info(
                "%s failed, attempt %d: %s; retry in %.2f s", record, record.attempt, shown(cause), pause
            )
            core.retry_at(self._now() + pause, record)
            self._call_later(pause, self._wake)
        elif (topic := self._topic_after_failure(record, final=final)) is not None:
            log.warning("%s goes to %s after %d attempts: %s", record, topic, record.attempt, shown(cause))
            self._letters[record] = topic
            self._publish([record], [dead_letter(topic, self._group, record, cause)])
        else:
            core.abandon(record)
            failed = (
                cause if final else HandlerFailed(record=record, attempts=record.attempt, cause=shown(cause))
            )
            failed.__cause__ = cause if failed is not cause else cause.__cause__
            self._escalate(failed)

    def _topic_after_failure(self, record: Record, *, final: bool) -> str | None:
        """Where the record goes after its last attempt: the next delayed retry, or the dead-letter topic."""
        topics = self._topics_after_failure
        if final:  # a delay changes nothing
            return self._settings.dead_letter_topic
        following = topics[topics.index(record.topic) + 1 :] if record.topic in topics else topics
        return following[0] if following else None

    def fail_batch(self, batch: list[Record], cause: BaseException) -> None:
        """Runs a failed batch again record by record, to isolate the bad record."""
        if len(batch) == 1:
            self.fail(batch[0], cause)
            return
        log.info(
            "batch of %d from %s failed: %s; running each record alone", len(batch), batch[0], shown(cause)
        )
        self._core.counts.failed += 1
        self._core.coordinator.put_back(batch, alone=True)
        self._wake_runner()

    def abort(self, batch: list[Record], cause: BaseException) -> None:
        """Ends the consumer after SystemExit, KeyboardInterrupt and the like, which are not retried."""
        for record in batch:
            self._core.abandon(record)
        aborted = HandlerAborted(cause=shown(cause), record=batch[0])
        aborted.__cause__ = cause
        self._escalate(aborted)

    def delivered(self, records: Iterable[Record]) -> None:
        batch = list(records)
        for record in batch:
            topic = self._letters.pop(record, None) if self._letters else None
            if topic == self._settings.dead_letter_topic is not None:
                self._core.counts.dead_lettered += 1
            elif topic is not None:
                self._core.counts.delayed += 1
        self._core.finish_batch(batch)

    def undelivered(self, records: list[Record], error: ConsumeError) -> None:
        """Fails the records; a dead letter that cannot be written restarts the consumer instead.

        In a transaction the records count as finished already, and their outputs are aborted with those of
        others, by a restart. The next incarnation runs them again and fails those listed here.
        """
        if self._settings.transactional_id is not None:
            alone = len(records) == 1
            self._core.refused_outputs.update((_place(each), error if alone else None) for each in records)
            if alone and self._settings.dead_letter_topic is None:
                self._escalate(error)
        elif records[0] in self._letters:
            topic = self._letters.pop(records[0])
            self._core.abandon(records[0])
            self._escalate(OutputUndelivered(record=records[0], topic=topic, reason=str(error)))
        else:
            self.fail_batch(records, error)

    def _was_refused(self, records: list[Record]) -> bool:
        """Whether Kafka refused outputs of these records in an aborted transaction; then fails them."""
        refused = self._core.refused_outputs
        if not any(_place(record) in refused for record in records):
            return False
        if len(records) > 1:
            self._core.coordinator.put_back(records, alone=True)
            self._wake_runner()
            return True
        error = refused.pop(_place(records[0]))
        if error is None:  # one of a batch, and perhaps not the bad one
            return False
        self.fail(records[0], error)
        return True

    def _wake(self) -> None:
        self._core.coordinator.wake_retries(self._now())
        self._wake_runner()

    def _publish(self, records: list[Record], outputs: list[Output]) -> None:
        if not outputs:
            self._core.finish_batch(records)
            return
        if self._settings.transactional_id is None:
            self._send(messages.Publish(records, outputs))
            return
        if not all(record.assignment.live for record in records):
            # It is unknown which outputs of a batch belong to which record, and those of a partition that
            # was lost must not be written. The records that are still ours run again without the others.
            self._core.counts.late += sum(not record.assignment.live for record in records)
            self._core.coordinator.put_back(records)
            self._wake_runner()
            return
        if self._core.refused_outputs and self._was_refused(records):
            return
        self._send(messages.Publish(records, outputs))
        self.delivered(records)


def _outputs(result: object) -> list[Output] | None:
    """The outputs in a handler's result; None if it is no valid result."""
    if isinstance(result, Output):
        return [result]
    if not isinstance(result, Iterable) or isinstance(result, str | bytes | bytearray):
        return None
    outputs: list[Any] = list(result)
    return outputs if all(isinstance(each, Output) for each in outputs) else None


def _place(record: Record) -> tuple[str, int, int]:
    return (record.topic, record.partition, record.offset)


def _invalid(record: Record, result: object) -> ResultInvalid:
    return ResultInvalid(result=repr(result)[:200], record=record)
