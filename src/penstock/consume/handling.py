"""From the user's function to a runner: filter, deserialisers, and the kind of worker it needs."""

from __future__ import annotations

import inspect as introspection
import pickle
from typing import TYPE_CHECKING, Any

from penstock.consume.lanes import AsyncRunner
from penstock.consume.processes import ProcessRunner
from penstock.consume.running import Work
from penstock.consume.settings import Workers
from penstock.consume.threads import ThreadRunner
from penstock.model.errors.consume import HandlerUnusable, PayloadUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.consume.core import Core, Counts
    from penstock.consume.record import Record
    from penstock.consume.running import Latency, Runner
    from penstock.consume.settings import Settings
    from penstock.consume.settle import Settlement


class Handling:
    """A handler and all that is wrapped around it."""

    def __init__(self, function: Any, batch_records: int, settings: Settings, counts: Counts) -> None:
        self._function = function
        self._batch_records = batch_records
        self._settings = settings
        self._counts = counts

    @property
    def name(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    @property
    def is_async(self) -> bool:
        call = getattr(self._function, "__call__", None)  # noqa: B004  an object with an async __call__
        return introspection.iscoroutinefunction(self._function) or introspection.iscoroutinefunction(call)

    def check(self) -> None:
        """Refuses what could only fail later."""
        if self._settings.workers is not Workers.PROCESSES:
            if self._settings.workers is Workers.THREADS and self.is_async:
                raise HandlerUnusable(handler=self.name, reason="a coroutine function cannot run on threads")
            return
        if self.is_async or self._batch_records > 1:
            raise HandlerUnusable(handler=self.name, reason="processes take plain functions of one record")
        try:
            pickle.dumps(self._function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise HandlerUnusable(
                handler=self.name,
                reason=f"it cannot be sent to a process: {error}; define it at module level",
            ) from None

    def runner(
        self, core: Core, settlement: Settlement, latency: Latency, turn: Callable[[], None]
    ) -> Runner:
        settings = self._settings
        if settings.workers is Workers.PROCESSES:
            work = Work(self._function, settings.processes, 1, core, settlement, latency, turn)
            return ProcessRunner(work, self._prepare if self._wraps else None)
        handler, batch = self._wrapped(), self._batch_records
        work = Work(handler, settings.concurrency, batch, core, settlement, latency, turn)
        return AsyncRunner(work) if self.is_async else ThreadRunner(work)

    @property
    def _wraps(self) -> bool:
        settings = self._settings
        return any((settings.filter, settings.key_deserializer, settings.value_deserializer))

    def _prepare(self, record: Record) -> bool:
        """Deserialises in place; False if the filter does not want the record."""
        settings = self._settings
        for part, read in (("key", settings.key_deserializer), ("value", settings.value_deserializer)):
            if read is None:
                continue
            raw = getattr(record.message, part)()
            try:
                setattr(record, part, None if raw is None else read(raw))
            except Exception as error:
                raise PayloadUnreadable(part=part, record=record, cause=repr(error)) from error
        if settings.filter is not None and not settings.filter(record):
            self._counts.filtered += 1
            return False
        return True

    def _wrapped(self) -> Any:
        function, prepare = self._function, self._prepare
        if not self._wraps:
            return function
        if self._batch_records > 1:
            if self.is_async:

                async def handle_batch(batch: list[Record]) -> object:
                    wanted = [record for record in batch if prepare(record)]
                    return await function(wanted) if wanted else None

                return handle_batch
            return lambda batch: (
                function(wanted) if (wanted := [each for each in batch if prepare(each)]) else None
            )
        if self.is_async:

            async def handle(record: Record) -> object:
                return await function(record) if prepare(record) else None

            return handle
        return lambda record: function(record) if prepare(record) else None
