"""What becomes of a record after its handler: finished, written, retried, dead-lettered, escalated."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.consume import mail
from penstock.consume.deadletter import dead_letter
from penstock.consume.record import Output
from penstock.model.errors.consume import (
    HandlerAborted,
    HandlerFailed,
    PayloadUnreadable,
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


class Settlement:
    """Shared by all runners; runs on the event loop."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        core: Core,
        random: Random,
        *,
        tell: Callable[[mail.Command], None],
        later: Callable[[float, Callable[[], None]], object],
        now: Callable[[], float],
        ready: Callable[[], None],
        escalate: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._group = group
        self._core = core
        self._random = random
        self._tell = tell
        self._later = later
        self._now = now
        self._ready = ready
        self._escalate = escalate
        self._dead: set[Record] = set()  # on their way to the dead-letter topic

    def succeed(self, record: Record, result: object) -> None:
        if result is None:
            self._core.finish(record)
            return
        outputs = _outputs(result)
        if outputs is None:
            self.fail(record, _invalid(record, result))
        else:
            self._publish([record], outputs)

    def succeed_batch(self, batch: list[Record], result: object) -> None:
        outputs = [] if result is None else _outputs(result)
        if outputs is None:
            self.fail_batch(batch, _invalid(batch[0], result))
        else:
            self._publish(batch, outputs)

    def fail(self, record: Record, cause: BaseException) -> None:
        """By the retry policy: again later, to the dead letters, or up to the supervisor."""
        core = self._core
        core.counts.failed += 1
        if not record.assignment.live:
            core.abandon(record)
            return
        final = isinstance(cause, PayloadUnreadable | ResultInvalid)
        pause = None if final else self._settings.retry.pause_seconds(cause, record.attempt, self._random)
        if pause is not None:
            log.info("%s failed, attempt %d: %r; again in %.2f s", record, record.attempt, cause, pause)
            core.retry_at(self._now() + pause, record)
            self._later(pause, self._wake)
        elif self._settings.dead_letter_topic is not None:
            log.warning("%s goes to the dead letters after %d attempts: %r", record, record.attempt, cause)
            self._dead.add(record)
            letter = dead_letter(self._settings.dead_letter_topic, self._group, record, cause)
            self._publish([record], [letter])
        else:
            core.abandon(record)
            failed = (
                cause if final else HandlerFailed(record=record, attempts=record.attempt, cause=repr(cause))
            )
            failed.__cause__ = cause if failed is not cause else cause.__cause__
            self._escalate(failed)

    def fail_batch(self, batch: list[Record], cause: BaseException) -> None:
        """A batch that failed is run again record by record, so that the bad one is found."""
        if len(batch) == 1:
            self.fail(batch[0], cause)
            return
        log.info("a batch of %d from %s failed: %r; each runs alone", len(batch), batch[0], cause)
        self._core.counts.failed += 1
        for record in batch:
            record.attempt += 1
        self._core.coordinator.put_back(batch)
        self._ready()

    def abort(self, record: Record, cause: BaseException) -> None:
        """SystemExit, KeyboardInterrupt and their like: not ours to retry."""
        self._core.abandon(record)
        aborted = HandlerAborted(cause=repr(cause), record=record)
        aborted.__cause__ = cause
        self._escalate(aborted)

    def delivered(self, records: Iterable[Record]) -> None:
        batch = list(records)
        for record in batch:
            if record in self._dead:
                self._dead.discard(record)
                self._core.counts.dead_lettered += 1
        self._core.finish_batch(batch)

    def undelivered(self, records: list[Record], error: ConsumeError) -> None:
        """A dead letter that cannot be written must not be lost: that restarts the whole."""
        if records[0] in self._dead:
            self._dead.discard(records[0])
            self._core.abandon(records[0])
            self._escalate(error)
        else:
            self.fail_batch(records, error)

    def _wake(self) -> None:
        self._core.coordinator.wake(self._now())
        self._ready()

    def _publish(self, records: list[Record], outputs: list[Output]) -> None:
        if not outputs:
            self._core.finish_batch(records)
            return
        if self._settings.transactional_id is None:
            self._tell(mail.Publish(records, outputs))
            return
        live = [record for record in records if record.assignment.live]
        if len(live) == len(records):  # the outputs of a record that is no longer ours must not be written
            self._tell(mail.Publish(records, outputs))
        self.delivered(records)


def _outputs(result: object) -> list[Output] | None:
    """What the handler wants written; None if that cannot be made out."""
    if isinstance(result, Output):
        return [result]
    if not isinstance(result, Iterable) or isinstance(result, str | bytes | bytearray):
        return None
    found: list[Any] = list(result)
    return found if all(isinstance(each, Output) for each in found) else None


def _invalid(record: Record, result: object) -> ResultInvalid:
    return ResultInvalid(result=repr(result)[:200], record=record)
