"""Readers that wait until a view has reached a position.

The thread that writes the view wakes the waiters, so none polls. A wait ends in one of three ways: the view
has reached the position, the timeout has passed, or the view is no longer written. A waiter holds no
resource of the store. There is a heap of waiters for each partition.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

from penstock.model.errors.views import WaitersFull

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WAITERS_MAX: Final = 50_000
_COMPACT_ABOVE: Final = 1000  # entries of cancelled waiters before the heaps are rebuilt


class WaitResult(StrEnum):
    """How a wait ended."""

    REACHED = "reached"
    TIMED_OUT = "timed-out"
    STOPPED = "stopped"


class _Waiter:
    __slots__ = ("future", "left")

    def __init__(self, left: int) -> None:
        self.future: Future[WaitResult] = Future()
        self.left = left  # partitions that have not reached the position


class PositionWaiters:
    """Thread-safe. The writer of the view calls `reached` and `stopped`, readers the rest."""

    def __init__(self, view: str, *, waiters_max: int = WAITERS_MAX) -> None:
        self.view = view
        self._max = waiters_max
        self._lock = threading.Lock()
        self._heaps: dict[int, list[tuple[int, int, _Waiter]]] = {}
        self._positions: dict[int, int] = {}
        self._numbers = count()
        self._waiting = 0
        self._cancelled = 0
        self._running = False

    def register(self, position: Mapping[int, int]) -> Future[WaitResult]:
        """A future that resolves to REACHED or STOPPED. Pass it to `cancel` on a timeout."""
        with self._lock:
            behind = {p: offset for p, offset in position.items() if self._positions.get(p, 0) < offset}
            waiter = _Waiter(len(behind))
            if not behind:
                waiter.future.set_result(WaitResult.REACHED)
            elif not self._running:
                waiter.future.set_result(WaitResult.STOPPED)
            elif self._waiting >= self._max:
                raise WaitersFull(view=self.view, count=self._waiting)
            else:
                self._waiting += 1
                for partition, offset in behind.items():
                    heap = self._heaps.setdefault(partition, [])
                    heappush(heap, (offset, next(self._numbers), waiter))
        return waiter.future

    def wait(
        self, position: Mapping[int, int], timeout: float, *, on_registered: Callable[[], None] | None = None
    ) -> WaitResult:
        """Calls `on_registered` once the waiter is registered, to wake a writer that was idle."""
        future = self.register(position)
        if on_registered is not None:
            on_registered()
        try:
            return future.result(timeout)
        except FutureTimeout:
            return self.cancel(future)

    def cancel(self, future: Future[WaitResult]) -> WaitResult:
        """Ends the wait; a result that arrived meanwhile still counts."""
        with self._lock:
            if not future.cancel():
                return future.result()
            self._waiting -= 1
            self._cancelled += 1
            if self._cancelled > _COMPACT_ABOVE:
                self._compact()
        return WaitResult.TIMED_OUT

    def reached(self, positions: Mapping[int, int]) -> None:
        """The view has committed these positions."""
        due: list[_Waiter] = []
        with self._lock:
            self._running = True
            for partition, position in positions.items():
                # A new generation may be behind the previous one.
                self._positions[partition] = position
                heap = self._heaps.get(partition)
                while heap and heap[0][0] <= position:
                    waiter = heappop(heap)[2]
                    waiter.left -= 1
                    if not waiter.left:
                        due.append(waiter)
            ended = [waiter for waiter in due if waiter.future.set_running_or_notify_cancel()]
            self._waiting -= len(ended)
        for waiter in ended:
            waiter.future.set_result(WaitResult.REACHED)

    def stopped(self) -> None:
        """The view is no longer written: all waits end with STOPPED, now and later."""
        with self._lock:
            self._running = False
            entries = {id(entry[2]): entry[2] for heap in self._heaps.values() for entry in heap}
            ended = [each for each in entries.values() if each.future.set_running_or_notify_cancel()]
            self._heaps = {}
            self._waiting = self._cancelled = 0
        for waiter in ended:
            waiter.future.set_result(WaitResult.STOPPED)

    def waiting(self) -> int:
        return self._waiting

    def _compact(self) -> None:
        for heap in self._heaps.values():
            heap[:] = [entry for entry in heap if not entry[2].future.cancelled()]
            heapify(heap)
        self._cancelled = 0
