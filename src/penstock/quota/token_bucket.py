"""A token bucket with Kafka's throttle arithmetic (KIP-13, KIP-219, KIP-599).

A request passes if the bucket is not in debt, however large it is. What it takes beyond the tokens
available becomes debt, and the next request waits until the debt is paid: debt ÷ rate. So over any time
at most `rate` × time, one burst and one request pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

BURST_SECONDS: Final = 1.0  # of the rate, saved by an idle bucket
THROTTLE_SECONDS_MAX: Final = 1.0  # for costs known only afterwards: one window, like Kafka
UNLIMITED: Final = float("inf")


@dataclass(slots=True)
class Bucket:
    """Refills at `rate` tokens per second, up to `burst_seconds` of the rate; negative tokens are debt."""

    rate: float
    tokens: float
    filled_at: float
    burst_seconds: float = BURST_SECONDS

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        return cls(rate, rate * BURST_SECONDS, now)

    def spend(self, amount: float, now: float) -> float:
        """Takes the amount; returns how many seconds to wait before the next request."""
        if self.rate == UNLIMITED:
            return 0.0
        self._fill(now)
        self.tokens -= amount
        return self.wait_seconds()

    def spend_late(self, amount: float, now: float) -> float:
        """Takes an amount used at an unknown time since the last call, as if right after that call.

        After idle time a tenant may so get one burst more than if each use had been charged at once.
        """
        if self.rate == UNLIMITED:
            return 0.0
        self.tokens -= amount
        self._fill(now)
        return self.wait_seconds()

    def take(self, amount: float, now: float) -> bool:
        """Takes the amount if the bucket has that many tokens; never goes into debt."""
        if self.rate == UNLIMITED:
            return True
        self._fill(now)
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True

    def wait_seconds(self) -> float:
        """Seconds until the debt is paid, as of the last call."""
        if self.tokens >= 0:
            return 0.0
        return -self.tokens / self.rate if self.rate > 0 else UNLIMITED

    def retune(self, rate: float, now: float) -> None:
        """Changes the rate. Tokens beyond the new burst are lost; debt stays, and is paid at the new rate."""
        self._fill(now)
        if self.rate == UNLIMITED and rate != UNLIMITED:
            self.tokens = 0.0
        self.rate = rate
        if rate != UNLIMITED:
            self.tokens = min(self.tokens, rate * self.burst_seconds)

    def _fill(self, now: float) -> None:
        if now > self.filled_at and self.rate != UNLIMITED:
            refilled = self.tokens + (now - self.filled_at) * self.rate
            self.tokens = min(self.rate * self.burst_seconds, refilled)
        self.filled_at = max(self.filled_at, now)


def throttle_ms(wait_seconds: float, *, at_most: float) -> int:
    """`throttle_time_ms`: whole milliseconds, rounded up, so that clients never return too early."""
    return math.ceil(min(wait_seconds, at_most) * 1000)
