"""What all runners share: their base class, what they run, handler latency."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.consume.completion import Completion
    from penstock.consume.core import Core
    from penstock.consume.record import Record

# Seconds; the upper bounds of the buckets of the latency histogram.
LATENCY_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """A record being handled since `started` (monotonic seconds)."""

    record: Record
    started: float
    cancelled: float | None = None


@dataclass(slots=True)
class Latency:
    """Handler times as a histogram; needs no lock, since only the event loop writes it."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += count
        self.seconds += seconds * count


@dataclass(frozen=True, slots=True)
class Work:
    """What a runner is given: the handler, its concurrency, and where results go."""

    handler: Callable[[Any], Any]
    concurrency: int  # records, batches or processes at once
    batch_records: int  # for each call of the handler; 1: a record, not a list
    linger_seconds: float  # how long a batch that is not full waits for more records
    core: Core
    completion: Completion
    latency: Latency
    on_progress: Callable[[], None]  # called after some records completed


def read_generator(result: object) -> object:
    """The result of a plain function. A generator is read where it was made: its code may block."""
    return [*result] if isinstance(result, GeneratorType) else result


class Runner(ABC):
    """Takes records from the coordinator, runs the handler and passes results to Completion."""

    can_cancel: ClassVar[bool] = True

    def __init__(self, work: Work) -> None:
        self._handler = work.handler
        self._concurrency = work.concurrency
        self._batch_records = work.batch_records
        self._linger_seconds = work.linger_seconds
        self._linger: asyncio.TimerHandle | None = None
        self._linger_over = False
        self._core = work.core
        self._coordinator = work.core.coordinator
        self._completion = work.completion
        self._latency = work.latency
        self._on_progress = work.on_progress
        self._loop = asyncio.get_running_loop()
        self._closing = False

    def _next_batch(self) -> list[Record]:
        """The next batch to run; empty if none is ready, or if it may still become fuller."""
        if self._linger_seconds and not self._batch_is_due():
            return []
        self._linger_over = False
        return self._coordinator.take_batch(self._batch_records)

    def _batch_is_due(self) -> bool:
        """Whether a batch is full, or its first record has waited for linger_seconds."""
        if self._linger_over or self._coordinator.startable(self._batch_records) >= self._batch_records:
            return True
        if self._linger is None and self._coordinator.has_ready:
            self._linger = self._loop.call_later(self._linger_seconds, self._end_linger)
        return False

    def _end_linger(self) -> None:
        self._linger = None
        self._linger_over = self._coordinator.has_ready
        self.notify()

    @abstractmethod
    def notify(self) -> None: ...
    @abstractmethod
    def running(self) -> Iterator[Running]: ...
    @abstractmethod
    def cancel(self, record: Record, *, timed_out: bool) -> None: ...
    @abstractmethod
    async def close(self, seconds: float) -> None: ...
