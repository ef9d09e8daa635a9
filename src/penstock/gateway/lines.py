"""Those who wait for one limit of a tenant: in line, first come, first served, a frame at a time.

Whatever would use more of a limit that is in debt is left where it is, its connection is not read, and
it stands in line. When the debt is paid the first one goes on, until there is debt again. So a tenant
passes what its limit allows, on however many connections it asks, and each of these gets its turn.
Nobody stands in line for longer than `seconds_max`: clients give a request half a minute by default.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.model.events import Dimension

WAIT_SECONDS_MAX: Final = 15.0
NAP_SECONDS: Final = 0.01  # between two looks: what came back meanwhile goes to one, or to several
LOOK_SECONDS_MAX: Final = 1.0  # so that what is waited for shows while it is


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Waiter(Protocol):
    def go_on(self, line: Line, /) -> None:
        """Its turn has come."""

    def alarm(self, line: Line, seconds: float, /) -> Alarm:
        """After so long the line is to be served."""


class Limit(Protocol):
    def rate(self, dimension: Dimension, /) -> float: ...

    def debt_seconds(self, dimension: Dimension, now: float, /) -> float:
        """How long until it is paid."""

    def prepay(self, dimension: Dimension, amount: float, now: float, /) -> None:
        """Somebody who stood in line goes on, and is going to use so much."""

    def forfeit(self, dimension: Dimension, amount: float, /) -> None:
        """It is not going to, after all: its connection ended."""

    def waited(self, dimension: Dimension, seconds: float, /) -> None:
        """For so long somebody stood in line."""


class Line:
    __slots__ = (
        "_accounted_at", "_alarm", "_limit", "_seconds_max", "_waiting", "dimension", "owed", "waited_at",
    )  # fmt: skip

    def __init__(self, limit: Limit, dimension: Dimension, seconds_max: float = WAIT_SECONDS_MAX) -> None:
        self._limit = limit
        self._seconds_max = seconds_max
        self._waiting: deque[tuple[Waiter, float, float]] = deque()  # who, for how much, since when
        self._alarm: Alarm | None = None
        self._accounted_at = 0.0
        self.dimension = dimension
        self.owed = 0.0  # what all of them are going to use
        self.waited_at = float("-inf")  # when anybody was last seen in it

    def __len__(self) -> int:
        return len(self._waiting)

    def blocks(self, now: float, *, in_turn: bool = False) -> bool:
        """Must one who comes now stand in it? One whose turn it is need not mind the others."""
        return (not in_turn and bool(self._waiting)) or self._limit.debt_seconds(self.dimension, now) > 0

    def waited_since(self, moment: float) -> bool:
        return bool(self._waiting) or self.waited_at > moment

    def wait_seconds(self, now: float) -> float:
        """How long one who comes now will stand in it."""
        rate = self._limit.rate(self.dimension)
        ahead = self.owed / rate if rate > 0 else self._seconds_max
        return min(self._limit.debt_seconds(self.dimension, now) + ahead, self._seconds_max)

    def join(self, waiter: Waiter, amount: float, now: float) -> None:
        self._account(now)
        self._waiting.append((waiter, amount, now))
        self.owed += amount
        self.waited_at = now
        if self._alarm is None:
            self._arm(now)

    def leave(self, waiter: Waiter, now: float) -> None:
        """Its connection is gone."""
        self._account(now)
        for place, (one, amount, _) in enumerate(self._waiting):
            if one is waiter:
                del self._waiting[place]
                self.owed -= amount
                return

    def take(self, amount: float, now: float) -> None:
        self._limit.prepay(self.dimension, amount, now)

    def forfeit(self, amount: float) -> None:
        self._limit.forfeit(self.dimension, amount)

    def serve(self, now: float) -> None:
        """Whoever may go on does. Also to be called when the limit has changed."""
        self._account(now)
        try:
            for _ in range(len(self._waiting)):  # who comes back meanwhile waits for the next look
                waiter, amount, since = self._waiting[0]
                if now < since + self._seconds_max and self._limit.debt_seconds(self.dimension, now) > 0:
                    break
                self._waiting.popleft()
                self.owed -= amount
                waiter.go_on(self)
        finally:
            self._arm(now)

    def _arm(self, now: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._waiting:
            longest = min(LOOK_SECONDS_MAX, self._waiting[0][2] + self._seconds_max - now)
            wait = min(self._limit.debt_seconds(self.dimension, now), longest)
            self._alarm = self._waiting[0][0].alarm(self, max(wait, NAP_SECONDS))
        else:
            self.owed = 0.0  # sums of floats leave crumbs

    def _account(self, now: float) -> None:
        if self._waiting:
            self._limit.waited(self.dimension, max(0.0, now - self._accounted_at))
            self.waited_at = now
        self._accounted_at = max(self._accounted_at, now)
