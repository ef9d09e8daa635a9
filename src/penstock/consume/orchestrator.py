"""The orchestrator: one incarnation of the consumer, from joining the group to leaving it.

Reads the client proxy's mail, feeds the pure core, wakes the runners, and sends what the core
decides back to the proxy. Anything unexpected ends the incarnation; the supervisor starts another.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.consume import mail
from penstock.consume.core import Core
from penstock.consume.intake import Bounds
from penstock.consume.proxy import ClientProxy
from penstock.consume.settle import Settlement
from penstock.model.errors.consume import ClientFailed, HandlerStuck, HandlerTimedOut, HandlerUnstoppable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from penstock.consume.assignment import Assignment
    from penstock.consume.core import Counts
    from penstock.consume.record import Record
    from penstock.consume.running import Latency, Runner
    from penstock.consume.settings import Settings

log = logging.getLogger("penstock.consume")

TICK_SECONDS: Final = 0.05
UNSTOPPABLE_SECONDS: Final = 5.0  # a cancelled handler that still runs after this is given up on


class Orchestrator:
    """Holds the parts together; all of it runs on one event loop, except the proxy's thread."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: Sequence[str],
        settings: Settings,
        counts: Counts,
        latency: Latency,
        random: Random,
        make_runner: Callable[..., Runner],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self.core = Core(Bounds(settings.records_max, settings.buffer_bytes), settings.exposure, counts)
        self._mail: deque[mail.Event] = deque()
        self._signalled = False
        self._proxy = ClientProxy(properties, topics, settings, self.core, self._post)
        self._settlement = Settlement(
            settings, properties["group.id"], self.core, random,
            tell=self._proxy.tell, later=self._loop.call_later, now=self._loop.time,
            ready=self._ready, escalate=self._escalate,
        )  # fmt: skip
        self._make_runner = make_runner
        self._latency = latency
        self._runner: Runner | None = None
        self._failure: BaseException | None = None
        self._over = asyncio.Event()  # failed, or told to stop
        self._ended = asyncio.Event()  # the proxy has closed the clients
        self._draining = False
        self._answering: list[tuple[mail.Revoking, float]] = []
        self._commit_due = 0.0
        self._committing = False
        self._reported: set[Record] = set()
        transactional = settings.transactional_id is not None
        self._commit_seconds = settings.transaction_seconds if transactional else settings.commit_seconds

    async def run(self) -> None:
        """Until stop() is called, or something fails; then the failure is raised."""
        self._runner = self._make_runner(self.core, self._settlement, self._latency, self._turn)
        self._proxy.loop_thread = threading.get_ident()
        self._proxy.handling = self._handling
        self._proxy.beat = time.monotonic()
        self._proxy.start()
        ticker = asyncio.create_task(self._tick(), name="penstock-consume-tick")
        try:
            await self._over.wait()
            await self._drain()
        finally:
            await self._close(ticker)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finish what is being handled, commit, leave the group."""
        self._end()

    def running(self) -> list[Any]:
        return [] if self._runner is None else list(self._runner.running())

    @property
    def state(self) -> str:
        if self._ended.is_set():
            return "restarting" if self._failure is not None else "stopped"
        return "draining" if self._draining else "running"

    @property
    def proxy(self) -> ClientProxy:
        return self._proxy

    # The mailbox

    def _post(self, event: mail.Event) -> None:
        """Called from the proxy's thread: one wake-up for however much has come."""
        self._mail.append(event)
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._read_mail)

    def _read_mail(self) -> None:
        self._signalled = False
        while self._mail:
            self._take_in(self._mail.popleft())
        self._turn()
        self._ready()

    def _take_in(self, event: mail.Event) -> None:
        core = self.core
        match event:
            case mail.Received(groups):
                for assignment, records in groups:
                    core.receive(assignment, records)
            case mail.Reached(assignment, offset):
                core.reach(assignment, offset)
            case mail.Committed() as outcome:
                self._take_outcome(outcome)
            case mail.Delivered(records):
                self._settlement.delivered(records)
            case mail.Undelivered(records, error):
                self._settlement.undelivered(records, error)
            case mail.Assigned(assignments):
                self._answer(late=True)
                for assignment in assignments:
                    core.assign(assignment)
                log.info("assigned: %s", assignments)
            case mail.Revoking():
                self._start_revoke(event)
            case mail.Lost(assignments):
                log.warning("lost: %s", assignments)
                self._drop(assignments)
            case mail.Failed(error):
                self._ended.set()
                self._escalate(error)
            case mail.Ended():
                self._ended.set()

    # Work

    def _ready(self) -> None:
        if self._runner is not None and not self._draining:
            self._runner.notify()

    def _turn(self) -> None:
        """After a stretch of work: commit if much is finished, let in and fetch what there is room for."""
        core = self.core
        core.settle_books()
        if core.finished_since_commit >= self._settings.commit_records:
            self._commit()
        core.admit()
        self._proxy.made_room()
        if self._answering:
            self._answer()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                now = time.monotonic()
                self._proxy.beat = now
                if now >= self._commit_due:
                    self._commit()
                self._turn()
                self._watch(now)
                self._ready()
            except Exception as error:  # noqa: BLE001  a bug here must restart the whole, not stop the clock
                self._escalate(error)
                return

    def _watch(self, now: float) -> None:
        """Handlers over their time are cancelled; those that ignore it, or just do not return, are named."""
        limit, stuck = self._settings.handler_seconds_max, self._settings.stuck_seconds
        runner = self._runner
        assert runner is not None
        for running in list(runner.running()):
            record, seconds = running.record, now - running.started
            if running.cancelled is not None:
                if now - running.cancelled > UNSTOPPABLE_SECONDS:
                    self._escalate(HandlerUnstoppable(record=record, seconds=now - running.cancelled))
            elif limit is not None and seconds > limit and runner.can_cancel:
                runner.cancel(record, timed_out=True)
            elif seconds > min(stuck, limit or stuck) and record not in self._reported:
                self._reported.add(record)
                error = (
                    HandlerStuck(record=record, seconds=seconds)
                    if limit is None
                    else HandlerTimedOut(record=record, seconds=limit)
                )
                log.warning("%s. %s", error, error.advice, extra={"error": error.code})
        if self._reported:
            self._reported &= {running.record for running in runner.running()}

    def _handling(self) -> object:
        """What a blocked event loop is most likely blocked by: the record taken last."""
        running = self.running()
        return max(running, key=lambda each: each.started).record if running else "nothing of ours"

    # Commits

    def _commit(self) -> None:
        if self._committing or self._ended.is_set():
            return
        self._commit_due = time.monotonic() + self._commit_seconds
        marks = self.core.marks()
        if marks:
            self._committing = True
            self._proxy.tell(mail.Commit(marks))

    def _take_outcome(self, outcome: mail.Committed) -> None:
        self._committing = False
        core = self.core
        core.acknowledge(outcome.done)
        if outcome.done:
            core.counts.commits += 1
        if outcome.refused:
            core.counts.commit_failures += 1
            mark, reason = outcome.refused[0]
            for each, _ in outcome.refused:
                if not each.assignment.live:
                    core.counts.abandoned += each.finished - each.assignment.covered
            log.warning("commit of %s at %d refused, tried again: %s", mark.assignment, mark.offset, reason)

    # Partitions going

    def _start_revoke(self, question: mail.Revoking) -> None:
        """What waits is withdrawn at once; what runs gets revoke_seconds to end."""
        log.info("revoked: %s", question.assignments)
        for assignment in question.assignments:
            self.core.close(assignment)
        self._answering.append((question, time.monotonic() + self._settings.revoke_seconds))
        self._answer()

    def _answer(self, *, late: bool = False) -> None:
        """`late`: the proxy has gone on without an answer, so what went is dropped before more comes."""
        now = time.monotonic()
        for entry in list(self._answering):
            question, deadline = entry
            going = [self.core.latest(assignment) for assignment in question.assignments]
            if not late and now < deadline and self._failure is None and self._busy_with(going):
                continue
            self._answering.remove(entry)
            marks = self.core.marks(going)
            self._drop(question.assignments, flushed=True)
            question.answer.give(marks)

    def _busy_with(self, going: list[Assignment]) -> bool:
        return any(assignment.started for assignment in going)

    def _drop(self, assignments: list[Assignment], *, flushed: bool = False) -> None:
        going = {self.core.latest(assignment) for assignment in assignments}
        for assignment in going:
            self.core.drop(assignment, flushed=flushed)
        runner = self._runner
        if runner is not None and runner.can_cancel:
            for running in list(runner.running()):
                if running.record.assignment in going:
                    runner.cancel(running.record, timed_out=False)

    # The end

    def _escalate(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._end()

    def _end(self) -> None:
        if not self._draining:
            self._draining = True
            self.core.coordinator.halt()
            self._over.set()

    async def _drain(self) -> None:
        """Waits for what is being handled; after a failure only long enough to keep what is done."""
        deadline = time.monotonic() + self._settings.drain_seconds
        while time.monotonic() < deadline and self._failure is None and not self._ended.is_set():
            if not self.running() and not self._busy_with(list(self.core.assignments.values())):
                return
            await asyncio.sleep(0.005)

    async def _close(self, ticker: asyncio.Task[None]) -> None:
        """Handlers first, then the client, which asks what to commit while it leaves the group."""
        assert self._runner is not None
        grace = 1.0 if self._failure is not None else UNSTOPPABLE_SECONDS
        await self._runner.close(grace)
        self._proxy.tell(mail.Stop())
        seconds = self._settings.revoke_seconds + self._settings.drain_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            if self._failure is None:
                self._failure = ClientFailed(reason=f"did not close within {seconds:g} s")
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        if not await asyncio.to_thread(self._proxy.join, 5.0):
            log.error("the Kafka client's thread does not end; it is left behind")
        for assignment in list(self.core.assignments.values()):
            self.core.drop(assignment)
