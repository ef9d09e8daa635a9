"""Runs a coroutine and reports the processor time of each of its steps.

Logins and platform requests run as tasks, which wait for most of their time. What they use of the event loop
between two waits is charged to their tenant, as what a connection does with its bytes is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

Result = TypeVar("Result")


class Metered:
    """Await it instead of the coroutine."""

    __slots__ = ("_charge", "_work")

    def __init__(self, work: Coroutine[Any, Any, Result], charge: Callable[[float], None]) -> None:
        self._work = work
        self._charge = charge  # called with the time at which a step started

    def __await__(self) -> Generator[Any, Any, Any]:
        work, charge = self._work, self._charge
        value: Any = None
        failure: BaseException | None = None
        while True:
            started = time.monotonic()
            try:
                waited_for = work.send(value) if failure is None else work.throw(failure)
            except StopIteration as ended:
                return ended.value
            finally:
                charge(started)
            value = failure = None
            try:
                value = yield waited_for
            except BaseException as error:  # noqa: BLE001 - cancellation, too, belongs to the coroutine
                failure = error
