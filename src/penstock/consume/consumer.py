"""ParallelConsumer: what applications use. Options in, a handler in, run.

The supervisor lives here: it starts an incarnation, and when one fails starts the next after a
pause that grows, varied by chance. What the caller got wrong is raised instead: trying again
would not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect as introspection
import logging
import signal
import time
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from penstock.consume.core import Counts
from penstock.consume.handling import Handling
from penstock.consume.inspection import Inspection, look
from penstock.consume.orchestrator import Orchestrator
from penstock.consume.running import Latency
from penstock.consume.settings import client_properties, settled
from penstock.garbage import rare_collections
from penstock.model.errors import Fault
from penstock.model.errors.consume import ConsumeError, HandlerMissing, HandlerUnusable, OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from penstock.consume.metrics import ConsumerCollector
    from penstock.consume.running import Runner

log = logging.getLogger("penstock.consume")

HandlerType = TypeVar("HandlerType", bound="Callable[..., Any]")

STEADY_SECONDS: Final = 60.0  # an incarnation that lived so long starts the pauses anew


class ParallelConsumer:
    """One member of a consumer group that handles many records at once.

    consumer = ParallelConsumer({"bootstrap.servers": …, "group.id": "billing"}, topics=["orders"])

    @consumer.handler
    async def handle(record): ...

    consumer.run()
    """

    def __init__(self, properties: Mapping[str, Any], topics: Sequence[str], **options: Any) -> None:
        self._settings = settled(options)
        self._properties = _checked_properties(properties)
        self._topics = _checked_topics(topics)
        client_properties(self._properties)
        self._handling: Handling | None = None
        self._random = Random()
        self.counts = Counts()
        self.latency = Latency()
        self._orchestrator: Orchestrator | None = None
        self._stopping = False
        self._stopped: asyncio.Event | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_failure: BaseException | None = None

    # Handlers

    @overload
    def handler(self, function: HandlerType) -> HandlerType: ...
    @overload
    def handler(self) -> Callable[[HandlerType], HandlerType]: ...
    def handler(self, function: Any = None) -> Any:
        """Registers the function that gets each record; async, plain, or for processes by option."""
        if function is None:
            return self.handler
        self._register(function, 1)
        return function

    def batch_handler(self, records: int) -> Callable[[HandlerType], HandlerType]:
        """Registers a function that gets up to so many records at once, as a list."""
        if records < 2:
            raise OptionInvalid(option="records", value=records, expected="expected at least 2")

        def register(function: HandlerType) -> HandlerType:
            self._register(function, records)
            return function

        return register

    def _register(self, function: Any, batch_records: int) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if not callable(function):
            raise HandlerUnusable(handler=name, reason="it cannot be called")
        try:
            introspection.signature(function).bind(object())
        except TypeError as error:
            raise HandlerUnusable(handler=name, reason=str(error)) from None
        except ValueError:
            pass  # a built-in without a signature: it shows when it is called
        if self._handling is not None:
            raise HandlerUnusable(handler=name, reason="the consumer has a handler already")
        self._handling = Handling(function, batch_records, self._settings, self.counts)

    # Life

    def run(self) -> None:
        """Runs until SIGTERM, SIGINT or stop(); what is being handled is finished and committed first."""
        try:
            import uvloop
        except ImportError:
            new_loop = None
        else:
            new_loop = uvloop.new_event_loop
        # Searching for garbage takes a tenth of the time of a consumer with little else to do.
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
        if self._handling is None:
            raise HandlerMissing(topics=", ".join(self._topics))
        if self._supervisor is not None:
            raise OptionInvalid(option="start", value="called twice", expected="a consumer is started once")
        self._handling.check()
        self._stopped = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(), name="penstock-consume")

    async def wait(self) -> None:
        """Until the consumer has ended; raises what ended it."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    def stop(self) -> None:
        """Ends the consumer gently. Safe to call more than once, from the event loop."""
        self._stopping = True
        if self._stopped is not None:
            self._stopped.set()
        if self._orchestrator is not None:
            self._orchestrator.stop()

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
            with contextlib.suppress(ConsumeError):  # the error under way is the one to tell
                await self.wait()

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping:
            began = time.monotonic()
            self._orchestrator = Orchestrator(
                self._properties, self._topics, self._settings, self.counts, self.latency, self._random,
                self._make_runner,
            )  # fmt: skip
            try:
                await self._orchestrator.run()
            except Exception as error:
                self._last_failure = error
                if _is_final(error):
                    raise
                failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
                await self._pause(error, failures)
        log.info("stopped")

    async def _pause(self, error: BaseException, failures: int) -> None:
        assert self._stopped is not None
        if self._stopping:
            return
        self.counts.restarts += 1
        seconds = self._settings.restart.seconds(failures, self._random)
        known = isinstance(error, ConsumeError)
        log.error("failed, restarts in %.1f s: %s", seconds, error, exc_info=None if known else error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    def _make_runner(self, *parts: Any) -> Runner:
        assert self._handling is not None
        return self._handling.runner(*parts)

    # Looking in

    @property
    def group(self) -> str:
        return str(self._properties["group.id"])

    def collector(self) -> ConsumerCollector:
        """Prometheus metrics of this consumer: `REGISTRY.register(consumer.collector())`."""
        from penstock.consume.metrics import ConsumerCollector

        return ConsumerCollector(self)

    def inspect(self) -> Inspection:
        """What is in flight and why; see docs/consume.md."""
        return look(self._orchestrator, self.counts, self._settings, self._last_failure)


def _is_final(error: BaseException) -> bool:
    """The caller's mistakes are not mended by a restart, except those that a record or Kafka may outgrow."""
    return isinstance(error, ConsumeError) and error.fault is Fault.CALLER and not error.retriable


def _checked_properties(properties: object) -> dict[str, Any]:
    if not isinstance(properties, Mapping):
        raise OptionInvalid(option="properties", value=properties, expected="expected a mapping")
    return dict(properties)


def _checked_topics(topics: object) -> list[str]:
    if isinstance(topics, list | tuple) and topics and all(isinstance(each, str) and each for each in topics):
        return list(topics)
    raise OptionInvalid(option="topics", value=topics, expected="expected a list of topic names")
