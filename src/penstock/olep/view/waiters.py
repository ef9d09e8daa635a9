"""Readers that wait until a view has reached a position, in a heap for each partition.

The thread that writes the view wakes those who are due, so nobody polls. A waiter ends in one of
three ways: the view has reached its position, its time is up, or the view is not written any more.
It holds nothing of the store while it waits.
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
_TIDY_ABOVE: Final = 1000  # entries of waiters that gave up, before heaps are rebuilt


class Arrival(StrEnum):
    REACHED = "reached"
    TIMED_OUT = "timed-out"
    STOPPED = "stopped"


class _Waiter:
    __slots__ = ("future", "left")

    def __init__(self, left: int) -> None:
        self.future: Future[Arrival] = Future()
        self.left = left  # partitions that have not reached its position


class Waiters:
    """Thread-safe. `reached` is called by the writer of the view, the rest by readers."""

    def __init__(self, view: str, *, waiters_max: int = WAITERS_MAX) -> None:
        self.view = view
        self._max = waiters_max
        self._lock = threading.Lock()
        self._heaps: dict[int, list[tuple[int, int, _Waiter]]] = {}
        self._positions: dict[int, int] = {}
        self._numbers = count()
        self._waiting = 0
        self._given_up = 0
        self._running = False

    def begin(self, position: Mapping[int, int]) -> Future[Arrival]:
        """A future that ends with REACHED or STOPPED. Hand it to `give_up` when time is up."""
        with self._lock:
            behind = {p: offset for p, offset in position.items() if self._positions.get(p, 0) < offset}
            waiter = _Waiter(len(behind))
            if not behind:
                waiter.future.set_result(Arrival.REACHED)
            elif not self._running:
                waiter.future.set_result(Arrival.STOPPED)
            elif self._waiting >= self._max:
                raise WaitersFull(view=self.view, count=self._waiting)
            else:
                self._waiting += 1
                for partition, offset in behind.items():
                    heap = self._heaps.setdefault(partition, [])
                    heappush(heap, (offset, next(self._numbers), waiter))
        return waiter.future

    def wait(
        self, position: Mapping[int, int], timeout: float, *, tell: Callable[[], None] | None = None
    ) -> Arrival:
        """`tell` is called once the waiter is registered, for a writer that rests when nobody waits."""
        future = self.begin(position)
        if tell is not None:
            tell()
        try:
            return future.result(timeout)
        except FutureTimeout:
            return self.give_up(future)

    def give_up(self, future: Future[Arrival]) -> Arrival:
        """Ends the waiting; what came in the last moment still counts."""
        with self._lock:
            if not future.cancel():
                return future.result()
            self._waiting -= 1
            self._given_up += 1
            if self._given_up > _TIDY_ABOVE:
                self._tidy()
        return Arrival.TIMED_OUT

    def reached(self, positions: Mapping[int, int]) -> None:
        """The view has committed these positions."""
        due: list[_Waiter] = []
        with self._lock:
            self._running = True
            for partition, position in positions.items():
                # A generation that takes over may stand lower than the one before it.
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
            waiter.future.set_result(Arrival.REACHED)

    def stopped(self) -> None:
        """The view is not written any more; whoever waits or comes is told so at once."""
        with self._lock:
            self._running = False
            entries = {id(entry[2]): entry[2] for heap in self._heaps.values() for entry in heap}
            ended = [each for each in entries.values() if each.future.set_running_or_notify_cancel()]
            self._heaps = {}
            self._waiting = self._given_up = 0
        for waiter in ended:
            waiter.future.set_result(Arrival.STOPPED)

    def waiting(self) -> int:
        return self._waiting

    def _tidy(self) -> None:
        for heap in self._heaps.values():
            heap[:] = [entry for entry in heap if not entry[2].future.cancelled()]
            heapify(heap)
        self._given_up = 0
