"""Connections that wait for one limit of a tenant: first in, first out, one frame at a time.

A frame that would use more of a limit in debt stays unread, and its connection joins the queue. When the debt
is paid the first one proceeds, until there is debt again. So a tenant passes what its limit allows on any
number of connections, and each of these gets its turn. No connection waits longer than `seconds_max`: clients
time out a request after half a minute by default.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.gateway.limits.tenant_quota import TenantQuota
    from penstock.model.events import Dimension

WAIT_SECONDS_MAX: Final = 15.0
POLL_SECONDS_MIN: Final = 0.01  # between two checks; one or several connections may proceed at each
POLL_SECONDS_MAX: Final = 1.0  # so that waiting time shows in the metrics while it lasts


class Timer(Protocol):
    def cancel(self) -> None: ...


class Waiter(Protocol):
    def proceed(self, queue: ThrottleQueue, /) -> None:
        """Called when its frame may proceed."""

    def timer(self, queue: ThrottleQueue, seconds: float, /) -> Timer:
        """Start a timer that serves the queue after so long."""


class ThrottleQueue:
    """The connections waiting for one limit."""

    __slots__ = (
        "_accounted_at", "_seconds_max", "_timer", "_waiting", "dimension", "queued_amount", "quota",
        "waited_at",
    )  # fmt: skip

    def __init__(
        self, quota: TenantQuota, dimension: Dimension, seconds_max: float = WAIT_SECONDS_MAX
    ) -> None:
        self.quota = quota
        self._seconds_max = seconds_max
        self._waiting: deque[tuple[Waiter, float, float]] = deque()  # connection, amount, since when
        self._timer: Timer | None = None
        self._accounted_at = 0.0
        self.dimension = dimension
        self.queued_amount = 0.0  # expected use of all of them
        self.waited_at = float("-inf")  # when a connection was last waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def blocks(self, now: float, *, being_served: bool = False) -> bool:
        """Whether a new frame must wait. The connection being served does not wait for the others."""
        return (not being_served and bool(self._waiting)) or self.quota.debt_seconds(self.dimension, now) > 0

    def waited_since(self, moment: float) -> bool:
        return bool(self._waiting) or self.waited_at > moment

    def throttle_seconds(self, now: float) -> float:
        """How long a connection that joins now will wait."""
        rate = self.quota.rate(self.dimension)
        ahead = self.queued_amount / rate if rate > 0 else self._seconds_max
        return min(self.quota.debt_seconds(self.dimension, now) + ahead, self._seconds_max)

    def throttle_seconds_of(self, waiter: Waiter, now: float) -> float:
        """How long a waiting connection will still wait: for those before it, not for its own frame."""
        rate, ahead = self.quota.rate(self.dimension), 0.0
        for queued, amount, since in self._waiting:
            if queued is waiter:
                longest = max(0.0, since + self._seconds_max - now)
                behind = ahead / rate if rate > 0 else longest
                return min(self.quota.debt_seconds(self.dimension, now) + behind, longest)
            ahead += amount
        return 0.0

    def join(self, waiter: Waiter, amount: float, now: float) -> None:
        self._account(now)
        self._waiting.append((waiter, amount, now))
        self.queued_amount += amount
        self.waited_at = now
        if self._timer is None:
            self._arm(now)

    def leave(self, waiter: Waiter, now: float) -> None:
        """Remove a closed connection."""
        self._account(now)
        for position, (queued, amount, _) in enumerate(self._waiting):
            if queued is waiter:
                del self._waiting[position]
                self.queued_amount -= amount
                return

    def serve(self, now: float) -> None:
        """Let connections proceed while there is no debt. Call it when the limit changes, too."""
        self._account(now)
        try:
            for _ in range(len(self._waiting)):  # a connection that joins again waits for the next check
                waiter, amount, since = self._waiting[0]
                if now < since + self._seconds_max and self.quota.debt_seconds(self.dimension, now) > 0:
                    break
                self._waiting.popleft()
                self.queued_amount -= amount
                waiter.proceed(self)
        finally:
            self._arm(now)

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            longest = min(POLL_SECONDS_MAX, self._waiting[0][2] + self._seconds_max - now)
            wait = min(self.quota.debt_seconds(self.dimension, now), longest)
            self._timer = self._waiting[0][0].timer(self, max(wait, POLL_SECONDS_MIN))
        else:
            self.queued_amount = 0.0  # clears floating-point residue

    def _account(self, now: float) -> None:
        if self._waiting:
            self.quota.waited(self.dimension, max(0.0, now - self._accounted_at))
            self.waited_at = now
        self._accounted_at = max(self._accounted_at, now)
