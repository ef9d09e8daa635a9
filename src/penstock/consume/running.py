"""What the runners have in common: what runs now, and how long handlers take."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.consume.core import Core
    from penstock.consume.record import Record
    from penstock.consume.settle import Settlement

# Seconds; the upper bounds of the buckets of the latency histogram.
LATENCY_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """A record in a handler's hands since `started` (monotonic seconds)."""

    record: Record
    started: float
    cancelled: float | None = None


@dataclass(slots=True)
class Latency:
    """Handler times as a histogram; written without locks, by the event loop alone."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        self.buckets[bisect_left(LATENCY_BOUNDS, seconds)] += count
        self.seconds += seconds * count


@dataclass(frozen=True, slots=True)
class Work:
    """What a runner is given: the handler, how much of it at once, and whom to tell."""

    handler: Callable[[Any], Any]
    concurrency: int  # records, batches or processes at work at once
    batch_records: int  # handed to the handler together; 1: one by one, not in a list
    core: Core
    settlement: Settlement
    latency: Latency
    turn: Callable[[], None]  # called after each stretch of work


class Runner(Protocol):
    """Pulls records from the coordinator and gives results to the settlement."""

    @property
    def can_cancel(self) -> bool: ...
    def notify(self) -> None: ...
    def running(self) -> Iterator[Running]: ...
    def cancel(self, record: Record, *, timed_out: bool) -> None: ...
    async def close(self, seconds: float) -> None: ...
