"""ParallelConsumer, the class applications use, and the supervisor that restarts it after a failure.

The supervisor runs one orchestrator after another, with a growing, jittered pause after each
failure. Errors of the caller are raised instead: a restart would not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from penstock.consume.core import Counts
from penstock.consume.handler_adapter import HandlerAdapter
from penstock.consume.inspection import Inspection, inspect_consumer
from penstock.consume.orchestrator import Orchestrator
from penstock.consume.runner import Latency
from penstock.consume.settings import checked_settings, client_properties
from penstock.gc_tuning import rare_collections
from penstock.model.errors import Fault
from penstock.model.errors.consume import ConsumeError, OptionInvalid
from penstock.timed_wait import wait_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from penstock.consume.metrics import ConsumerCollector
    from penstock.consume.settings import Settings

log = logging.getLogger("penstock.consume")

HandlerType = TypeVar("HandlerType", bound="Callable[..., Any]")

STEADY_SECONDS: Final = 60.0  # after a run this long the back-off starts over


class ParallelConsumer:
    """One member of a consumer group that handles many records at once.

    consumer = ParallelConsumer({"bootstrap.servers": …, "group.id": "billing"}, topics=["orders"])

    @consumer.handler
    async def handle(record): ...

    consumer.run()
    """

    def __init__(self, properties: Mapping[str, Any], topics: Sequence[str], **options: Any) -> None:
        self._settings = checked_settings(options)
        self._properties = _checked_properties(properties)
        self._topics = _checked_topics(topics)
        client_properties(self._properties)
        _check_delays(self._settings, self._topics)
        self._random = Random()
        self.counts = Counts()
        self._adapter = HandlerAdapter(self._settings, self.counts)
        self.latency = Latency()
        self._orchestrator: Orchestrator | None = None
        self._stopping = False
        self._paused = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_failure: BaseException | None = None

    @overload
    def handler(self, function: HandlerType) -> HandlerType: ...
    @overload
    def handler(self, *, topic: str | None = None) -> Callable[[HandlerType], HandlerType]: ...
    def handler(self, function: Any = None, *, topic: str | None = None) -> Any:
        """Registers the function that handles each record: a coroutine function or a plain one.

        `topic` is a name, or a pattern that begins with ^. Without it the function handles every topic that
        has no handler.
        """
        return self._register(1, 0.0, topic) if function is None else self._register(1, 0.0, topic)(function)

    def batch_handler(
        self, records: int, *, linger_seconds: float = 0.0, topic: str | None = None
    ) -> Callable[[HandlerType], HandlerType]:
        """Registers a function that handles up to `records` records at once, as a list.

        A batch that is not full waits for up to `linger_seconds`.
        """
        if records < 2:
            raise OptionInvalid(option="records", value=records, expected="expected at least 2")
        return self._register(records, linger_seconds, topic)

    def _register(
        self, batch_records: int, linger_seconds: float, topic: str | None
    ) -> Callable[[HandlerType], HandlerType]:
        def register(function: HandlerType) -> HandlerType:
            self._adapter.add(function, topic, batch_records, linger_seconds)
            return function

        return register

    def run(self) -> None:
        """Runs until SIGTERM, SIGINT or stop(); finishes and commits running records before it returns."""
        try:
            import uvloop
        except ImportError:
            new_loop = None
        else:
            new_loop = uvloop.new_event_loop
        # Garbage collection takes a tenth of the time of a consumer with a fast handler.
        with rare_collections(), asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._run_with_signals())

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not on the main thread
                loop.add_signal_handler(number, self.stop)
        try:
            await self.start()
            await self.wait()
        finally:
            for number in caught:
                with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                    loop.remove_signal_handler(number)

    async def start(self) -> None:
        if self._supervisor is not None:
            raise OptionInvalid(option="start", value="called twice", expected="a consumer is started once")
        self._adapter.check(self._topics)
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(), name="penstock-consume")

    async def wait(self) -> None:
        """Waits until the consumer has ended; raises the error that ended it."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    def stop(self) -> None:
        """Starts a graceful stop. Call it from any thread, as often as you like."""
        self._stopping = True
        self._on_loop(self._stop)

    def _stop(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
        if self._orchestrator is not None:
            self._orchestrator.stop()

    def pause(self) -> None:
        """Starts no more records until `resume()`; running ones finish, and the member keeps its partitions.

        Call it from any thread. It outlasts a restart after a failure.
        """
        self._paused = True
        self._on_loop(self._apply_pause)

    def resume(self) -> None:
        """Starts records again. Call it from any thread."""
        self._paused = False
        self._on_loop(self._apply_pause)

    def _apply_pause(self) -> None:
        if self._orchestrator is not None:
            (self._orchestrator.pause if self._paused else self._orchestrator.resume)()

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
                self._loop.call_soon_threadsafe(call)

    async def __aenter__(self) -> ParallelConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            await self.wait()
        else:
            with contextlib.suppress(ConsumeError):  # the error being raised takes precedence
                await self.wait()

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping:
            began = time.monotonic()
            self._orchestrator = Orchestrator(
                self._properties, self._topics, self._settings, self.counts, self.latency, self._random,
                self._adapter.runner, previous=self._orchestrator,
            )  # fmt: skip
            self._apply_pause()
            try:
                await self._orchestrator.run()
            except Exception as error:
                self._last_failure = error
                if _is_final(error):
                    raise
                failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
                await self._pause(error, failures)
        log.info("consumer stopped")

    async def _pause(self, error: BaseException, failures: int) -> None:
        assert self._stopped is not None
        if self._stopping:
            return
        self.counts.restarts += 1
        seconds = self._settings.restart.seconds(failures, self._random.random())
        known = isinstance(error, ConsumeError)
        log.error("consumer failed, restart in %.1f s: %s", seconds, error, exc_info=None if known else error)
        await wait_at_most(self._stopped, seconds)

    @property
    def group(self) -> str:
        return str(self._properties["group.id"])

    def collector(self) -> ConsumerCollector:
        """Prometheus metrics of this consumer: `REGISTRY.register(consumer.collector())`."""
        from penstock.consume.metrics import ConsumerCollector

        return ConsumerCollector(self)

    def not_ready(self) -> str:
        """Why it handles no records, for `/readyz`; empty if it does."""
        state = "idle" if self._orchestrator is None else self._orchestrator.state
        return "" if state in ("running", "paused") else f"the consumer is {state}"

    def inspect(self) -> Inspection:
        """What the consumer is doing now, and what limits it; see docs/consume.md."""
        return inspect_consumer(self._orchestrator, self.counts, self._settings, self._last_failure)


def _is_final(error: BaseException) -> bool:
    """Whether a restart cannot help: an error of the caller that is not retriable."""
    return isinstance(error, ConsumeError) and error.fault is Fault.CALLER and not error.retriable


def _checked_properties(properties: object) -> dict[str, Any]:
    if not isinstance(properties, Mapping):
        raise OptionInvalid(option="properties", value=properties, expected="expected a mapping")
    return dict(properties)


def _check_delays(settings: Settings, topics: list[str]) -> None:
    delayed = [each.topic for each in settings.delayed_retries]
    if delayed and len({*delayed, *topics, settings.dead_letter_topic}) < len(delayed) + len({*topics}) + 1:
        expected = "expected topics that differ from each other, from `topics` and from the dead-letter topic"
        raise OptionInvalid(option="delayed_retries", value=delayed, expected=expected)


def _checked_topics(topics: object) -> list[str]:
    if isinstance(topics, list | tuple) and topics and all(isinstance(each, str) and each for each in topics):
        return list(topics)
    raise OptionInvalid(option="topics", value=topics, expected="expected a list of topic names")
