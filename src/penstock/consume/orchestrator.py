"""The orchestrator: one incarnation of the consumer, from joining the group to leaving it.

It passes the client proxy's events to the pure core, wakes the runners, and sends the core's
decisions back to the proxy. An unexpected failure ends the incarnation; the supervisor starts
another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.consume import messages
from penstock.consume.back_pressure import Bounds
from penstock.consume.client_proxy import ClientProxy
from penstock.consume.completion import Completion
from penstock.consume.core import Core
from penstock.model.errors.consume import ClientFailed, HandlerStuck, HandlerTimedOut, HandlerUnstoppable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from penstock.consume.assignment import Assignment
    from penstock.consume.core import Counts
    from penstock.consume.record import Record
    from penstock.consume.runner import Latency, Runner
    from penstock.consume.settings import Settings

log = logging.getLogger("penstock.consume")

TICK_SECONDS: Final = 0.05
CHECK_SECONDS_MAX: Final = 1.0  # between two looks for handlers that run too long
UNSTOPPABLE_SECONDS: Final = 5.0  # a cancelled handler that runs longer ends the incarnation


class Orchestrator:
    """Connects core, client proxy and runner; runs on the event loop."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topics: Sequence[str],
        settings: Settings,
        counts: Counts,
        latency: Latency,
        random: Random,
        make_runner: Callable[..., Runner],
        previous: Orchestrator | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self.core: Core = Core(
            Bounds(settings.records_max, settings.buffer_bytes), settings.uncommitted_max, counts,
            previous.core if previous else None,
        )  # fmt: skip
        self._inbox: deque[messages.Event] = deque()
        self._signalled = False
        self.proxy = ClientProxy(properties, topics, settings, self.core, self._post)
        self._completion = Completion(
            settings, properties["group.id"], self.core, random,
            send=self.proxy.send, call_later=self._loop.call_later, now=self._loop.time,
            wake_runner=self._wake_runner, escalate=self._escalate,
        )  # fmt: skip
        self._make_runner = make_runner
        self._latency = latency
        self._runner: Runner | None = None
        # Of earlier incarnations, with a handler that does not end.
        self._old_runners = [each for each in previous.runners() if any(each.running())] if previous else []
        self._failure: BaseException | None = None
        self._shutdown = asyncio.Event()  # set when it failed or should stop
        self._proxy_closed = asyncio.Event()  # the proxy has closed the clients
        self._draining = False
        self._paused = False
        self._revokes: list[tuple[messages.Revoking, float]] = []
        self._commit_due = math.inf
        self._committing = False
        self._reported: set[Record] = set()
        # With a thousand running records a check takes milliseconds, so it is not done at every tick.
        shortest = min(settings.stuck_seconds, settings.handler_seconds_max or settings.stuck_seconds)
        self._check_seconds = min(CHECK_SECONDS_MAX, shortest / 10)
        self._check_due = 0.0
        self._transactional = settings.transactional_id is not None
        self._commit_seconds = (
            settings.transaction_seconds if self._transactional else settings.commit_seconds
        )

    async def run(self) -> None:
        """Runs until stop() or a failure; raises the failure."""
        self._runner = self._make_runner(self.core, self._completion, self._latency, self._on_progress)
        self.proxy.loop_thread = threading.get_ident()
        self.proxy.current_record = self._latest_record
        self.proxy.heartbeat = time.monotonic()
        self._commit_due = time.monotonic() + self._commit_seconds
        self.proxy.start()
        ticker = asyncio.create_task(self._tick(), name="penstock-consume-tick")
        try:
            await self._shutdown.wait()
            await self._drain()
        finally:
            await self._close(ticker)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finishes the running records, commits and leaves the group."""
        if not self._draining:
            self._draining = True
            self.core.coordinator.halt()
            self._shutdown.set()

    def pause(self) -> None:
        """Starts no more records and keeps the partitions; fetching stops when memory is full."""
        if not self._paused:
            self._paused = True
            self.core.coordinator.halt()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.core.coordinator.unhalt()
            self._wake_runner()

    def runners(self) -> list[Runner]:
        return [*self._old_runners, *([] if self._runner is None else [self._runner])]

    def running(self) -> list[Any]:
        return [] if self._runner is None else list(self._runner.running())

    @property
    def state(self) -> str:
        if self._proxy_closed.is_set():
            return "restarting" if self._failure is not None else "stopped"
        if self._draining:
            return "draining"
        return "paused" if self._paused else "running"

    def _post(self, event: messages.Event) -> None:
        """Called from the proxy's thread: one wake-up for all events that are waiting."""
        self._inbox.append(event)
        if not self._signalled:
            self._signalled = True
            self._loop.call_soon_threadsafe(self._process_inbox)

    def _process_inbox(self) -> None:
        self._signalled = False
        while self._inbox:
            self._handle(self._inbox.popleft())
        self._on_progress()
        self._wake_runner()

    def _handle(self, event: messages.Event) -> None:
        core = self.core
        match event:
            case messages.Received(groups):
                for assignment, records in groups:
                    core.receive(assignment, records)
            case messages.EndReached(assignment, offset):
                core.advance(assignment, offset)
            case messages.Committed() as outcome:
                self._handle_committed(outcome)
            case messages.Delivered(records):
                self._completion.delivered(records)
            case messages.Undelivered(records, error):
                self._completion.undelivered(records, error)
            case messages.Assigned(assignments):
                self._reply_to_revokes(late=True)
                for assignment in assignments:
                    core.assign(assignment)
                log.info("assigned: %s", assignments)
            case messages.Revoking():
                self._start_revoke(event)
            case messages.Lost(assignments):
                log.warning("lost: %s", assignments)
                self._drop(assignments)
            case messages.Failed(error):
                self._proxy_closed.set()
                self._escalate(error)
            case messages.Ended():
                self._proxy_closed.set()

    def _wake_runner(self) -> None:
        if self._runner is not None and not self._draining:
            self._runner.notify()

    def _on_progress(self) -> None:
        """Commits if enough is finished, and admits and fetches records as far as memory allows."""
        core = self.core
        core.update_totals()
        if core.finished_since_commit >= self._settings.commit_records:
            self._commit()
        core.admit(time.time())
        self.proxy.made_room()
        if self._revokes:
            self._reply_to_revokes()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                now = time.monotonic()
                self.proxy.heartbeat = now
                if now >= self._commit_due:
                    self._commit()
                self._on_progress()
                if now >= self._check_due:
                    self._check_due = now + self._check_seconds
                    self._check_handlers(now)
                self._wake_runner()
            except Exception as error:  # noqa: BLE001  a bug must restart the consumer, not stop the ticks
                self._escalate(error)
                return

    def _check_handlers(self, now: float) -> None:
        """Cancels handlers past their time limit; reports those that ignore it or never return."""
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

    def _latest_record(self) -> object:
        """The record taken last: the one that most likely blocks a blocked event loop."""
        running = self.running()
        return max(running, key=lambda each: each.started).record if running else "no record"

    # Commits

    def _commit(self) -> None:
        if self._committing or self._proxy_closed.is_set():
            return
        self._commit_due = time.monotonic() + self._commit_seconds
        commits = self.core.pending_commits()
        if commits:
            self._committing = True
            self.proxy.send(messages.Commit(commits))

    def _handle_committed(self, outcome: messages.Committed) -> None:
        self._committing = False
        core = self.core
        core.acknowledge(outcome.done)
        if outcome.done:
            core.counts.commits += 1
        if outcome.refused:
            core.counts.commit_failures += 1
            commit, reason = outcome.refused[0]
            for each, _ in outcome.refused:
                if not each.assignment.live:
                    core.counts.abandoned += each.finished - each.assignment.finished_committed
            log.warning(
                "commit of %s at %d refused, will be retried: %s", commit.assignment, commit.offset, reason
            )

    # Revoked and lost partitions

    def _start_revoke(self, revoke: messages.Revoking) -> None:
        """Withdraws waiting records at once; running ones get revoke_seconds to finish."""
        log.info("revoked: %s", revoke.assignments)
        for assignment in revoke.assignments:
            self.core.close(assignment)
        self._revokes.append((revoke, time.monotonic() + self._settings.revoke_seconds))
        self._reply_to_revokes()

    def _reply_to_revokes(self, *, late: bool = False) -> None:
        """Replies to rebalances whose records have finished or whose time is up.

        `late`: the proxy no longer waits, so the revoked partitions are dropped before new ones come.
        """
        now = time.monotonic()
        for entry in list(self._revokes):
            revoke, deadline = entry
            revoked = [self.core.latest(assignment) for assignment in revoke.assignments]
            if not late and now < deadline and self._failure is None and self._busy_with(revoked):
                continue
            self._revokes.remove(entry)
            # One transaction has the outputs of all partitions, so it needs the offsets of all.
            commits = self.core.pending_commits(None if self._transactional else revoked)
            self._drop(revoke.assignments, flushed=True)
            self.proxy.send(messages.CommitRevoked(revoke, commits))

    def _busy_with(self, revoked: list[Assignment]) -> bool:
        return any(assignment.in_flight for assignment in revoked)

    def _drop(self, assignments: list[Assignment], *, flushed: bool = False) -> None:
        revoked = {self.core.latest(assignment) for assignment in assignments}
        for assignment in revoked:
            self.core.drop(assignment, flushed=flushed)
        if self.core.refused_outputs and self._failure is None:  # other members find out by themselves
            keys = {assignment.key for assignment in revoked}
            for place in [each for each in self.core.refused_outputs if each[:2] in keys]:
                del self.core.refused_outputs[place]
        runner = self._runner
        if runner is not None and runner.can_cancel:
            for running in list(runner.running()):
                if running.record.assignment in revoked:
                    runner.cancel(running.record, timed_out=False)

    # Shutdown

    def _escalate(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self.stop()

    async def _drain(self) -> None:
        """Waits up to drain_seconds for running records; returns at once after a failure."""
        deadline = time.monotonic() + self._settings.drain_seconds
        while time.monotonic() < deadline and self._failure is None and not self._proxy_closed.is_set():
            if not self.running() and not self._busy_with(list(self.core.assignments.values())):
                return
            await asyncio.sleep(0.005)

    async def _close(self, ticker: asyncio.Task[None]) -> None:
        """Closes the runner, then the proxy, which asks what to commit as it leaves the group."""
        assert self._runner is not None
        grace = 1.0 if self._failure is not None else UNSTOPPABLE_SECONDS
        await self._runner.close(grace)
        self.proxy.send(messages.Stop())
        seconds = self._settings.revoke_seconds + self._settings.drain_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._proxy_closed.wait()
        except TimeoutError:
            if self._failure is None:
                self._failure = ClientFailed(reason=f"did not close within {seconds:g} s")
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        if not await asyncio.to_thread(self.proxy.join, 5.0):
            log.error("client thread did not end; left running")
        for assignment in list(self.core.assignments.values()):
            self.core.drop(assignment)
        # Two records of one key must not run at once, in the next incarnation either.
        running = [each.record for runner in self.runners() for each in runner.running()]
        self.core.coordinator.keep_blocked(running)
