"""Wrap the user's handlers with routes, middleware, filter and deserializers, and choose their runner."""

from __future__ import annotations

import inspect as introspection
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.consume.async_runners import AsyncRunner
from penstock.consume.process_runners import ProcessRunner
from penstock.consume.runner import Work
from penstock.consume.settings import Workers
from penstock.consume.thread_runners import ThreadRunner
from penstock.model.dead_letter import failure_headers
from penstock.model.errors.consume import HandlerMissing, HandlerUnusable, PayloadUnreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.consume.completion import Completion
    from penstock.consume.core import Core, Counts
    from penstock.consume.record import Record
    from penstock.consume.runner import Latency, Runner
    from penstock.consume.settings import Settings


Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Router:
    """Calls the handler of a record's topic: the one for that name, else for a pattern, else the default.

    A record that comes back for a delayed retry goes to the handler of its first topic. A batch is split by
    handler.
    """

    handlers: dict[str | None, Handler]  # by topic or pattern; None: the default
    delayed: frozenset[str]

    def __call__(self, given: Any) -> Any:
        if not isinstance(given, list):
            return self.handler_of(given)(given)
        return _joined([handler(part) for handler, part in self.parts(given)])

    async def call_async(self, batch: list[Record]) -> list[Any]:
        return _joined([await handler(part) for handler, part in self.parts(batch)])

    def parts(self, batch: list[Record]) -> list[tuple[Handler, list[Record]]]:
        parts: dict[Handler, list[Record]] = {}
        for record in batch:
            parts.setdefault(self.handler_of(record), []).append(record)
        return list(parts.items())

    def handler_of(self, record: Record) -> Handler:
        topic = record.topic
        if topic in self.delayed:
            topic = failure_headers(record.headers).get("topic", topic)
        handler = self.find(topic)
        if handler is None:
            raise HandlerMissing(topics=topic)
        return handler

    def find(self, topic: str) -> Handler | None:
        handlers = self.handlers
        if topic in handlers:
            return handlers[topic]
        patterns = (each for each in handlers if each is not None and each.startswith("^"))
        return handlers.get(next((each for each in patterns if re.match(each, topic)), None))


def _joined(results: list[Any]) -> list[Any]:
    """The outputs of several handlers; anything else stays in the list and is rejected later."""
    outputs: list[Any] = []
    for result in results:
        if isinstance(result, list | tuple):
            outputs += result
        elif result is not None:
            outputs.append(result)
    return outputs


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    return introspection.iscoroutinefunction(function) or introspection.iscoroutinefunction(call)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


class HandlerAdapter:
    """The handlers of a consumer, and the options that apply to them."""

    def __init__(self, settings: Settings, counts: Counts) -> None:
        self._settings = settings
        self._counts = counts
        self._handlers: dict[str | None, Handler] = {}  # by topic; None: for all others
        self._batch_records = 1
        self._linger_seconds = 0.0
        self._async = False

    def add(self, function: Any, topic: str | None, batch_records: int, linger_seconds: float) -> None:
        """Registers a handler, for one topic, a pattern of topics, or all that no other handles."""
        name = _name(function)
        if not callable(function):
            raise HandlerUnusable(handler=name, reason="it cannot be called")
        try:
            introspection.signature(function).bind(object())
        except TypeError as error:
            raise HandlerUnusable(handler=name, reason=str(error)) from None
        except ValueError:
            pass  # a built-in without a signature: only a call can show
        if topic in self._handlers:
            where = "the consumer" if topic is None else f"topic {topic}"
            raise HandlerUnusable(handler=name, reason=f"{where} has a handler already")
        kind = (_is_async(function), batch_records, linger_seconds)
        if self._handlers and kind != (self._async, self._batch_records, self._linger_seconds):
            reason = "the handlers of a consumer are all coroutine functions or all plain, of equal batches"
            raise HandlerUnusable(handler=name, reason=reason)
        self._handlers[topic] = function
        self._async, self._batch_records, self._linger_seconds = kind

    def check(self, topics: Sequence[str]) -> None:
        """Rejects topics without a handler, and handlers that cannot run on the chosen kind of worker."""
        router = Router(self._handlers, frozenset())
        missing = [each for each in topics if router.find(each) is None and not each.startswith("^")]
        if missing or not self._handlers:
            raise HandlerMissing(topics=", ".join(missing or topics))
        name = ", ".join(map(_name, self._handlers.values()))
        for each in self._settings.middleware:
            if _is_async(each) is not self._async:
                reason = "middleware and handlers are all coroutine functions or all plain"
                raise HandlerUnusable(handler=_name(each), reason=reason)
            try:
                introspection.signature(each).bind(object(), call_next=object())
            except TypeError as error:
                reason = f"middleware takes a record and call_next: {error}"
                raise HandlerUnusable(handler=_name(each), reason=reason) from None
        workers = self._settings.workers
        if workers is not Workers.AUTO and self._async:
            reason = f"a coroutine function cannot run on {workers.value}"
            raise HandlerUnusable(handler=name, reason=reason)
        if workers is Workers.PROCESSES:
            try:
                pickle.dumps(self._function())
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                reason = f"it cannot be sent to a process: {error}; define it at module level"
                raise HandlerUnusable(handler=name, reason=reason) from None

    def runner(
        self, core: Core, completion: Completion, latency: Latency, on_progress: Callable[[], None]
    ) -> Runner:
        settings, in_processes = self._settings, self._settings.workers is Workers.PROCESSES
        work = Work(
            self._function() if in_processes else self._wrapped(),
            settings.processes if in_processes else settings.concurrency,
            self._batch_records, self._linger_seconds, core, completion, latency, on_progress,
        )  # fmt: skip
        if in_processes:
            return ProcessRunner(work, self._prepare if self._wraps else None)
        return AsyncRunner(work) if self._async else ThreadRunner(work)

    def _function(self) -> Handler:
        """The handler, or the router among several, inside the middleware."""
        if list(self._handlers) == [None]:
            function = self._handlers[None]
        else:
            delayed = frozenset(each.topic for each in self._settings.delayed_retries)
            router = Router(self._handlers, delayed)
            function = router.call_async if self._async and self._batch_records > 1 else router
        for each in reversed(self._settings.middleware):
            function = partial(each, call_next=function)
        return function

    @property
    def _wraps(self) -> bool:
        settings = self._settings
        return any((settings.filter, settings.key_deserializer, settings.value_deserializer))

    def _prepare(self, record: Record) -> bool:
        """Deserializes key and value in place; False if the filter rejects the record."""
        settings = self._settings
        for field, deserialize in (
            ("key", settings.key_deserializer),
            ("value", settings.value_deserializer),
        ):
            if deserialize is None:
                continue
            raw = getattr(record.message, field)()
            try:
                setattr(record, field, None if raw is None else deserialize(raw))
            except Exception as error:
                raise PayloadUnreadable(field=field, record=record, cause=repr(error)) from error
        if settings.filter is not None and not settings.filter(record):
            self._counts.filtered += 1
            return False
        return True

    def _wrapped(self) -> Any:
        function, prepare = self._function(), self._prepare
        if not self._wraps:
            return function
        many = self._batch_records > 1
        if self._async:

            async def handle(given: Any) -> object:
                accepted = list(filter(prepare, given)) if many else prepare(given) and given
                return await function(accepted) if accepted else None

            return handle

        def call(given: Any) -> object:
            accepted = list(filter(prepare, given)) if many else prepare(given) and given
            return function(accepted) if accepted else None

        return call
