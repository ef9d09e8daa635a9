"""One limit at one point: a token bucket with Kafka's throttle arithmetic (KIP-13, KIP-219, KIP-599).

What is asked for is let through if the bucket is not in debt, however large it is; whatever it takes
beyond the tokens there are is debt, and whoever made it waits until it is paid: debt ÷ rate. So over
any time a point passes at most `rate` × time, the burst, and one request more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BURST_SECONDS: Final = 1.0  # of the rate that an idle bucket saves up
THROTTLE_SECONDS_MAX: Final = 1.0  # for what is known only afterwards: one window, as Kafka does
UNLIMITED: Final = float("inf")


@dataclass(slots=True)
class Bucket:
    """Tokens come back at `rate` a second, up to `burst_seconds` of it; fewer than none is debt."""

    rate: float
    tokens: float
    filled_at: float
    burst_seconds: float = BURST_SECONDS

    @classmethod
    def full(cls, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> Bucket:
        return cls(rate, rate * burst_seconds, now, burst_seconds)

    def spend(self, amount: float, now: float) -> float:
        """Take so much; the seconds that the one who asked has to wait before it may ask again."""
        if self.rate == UNLIMITED:
            return 0.0
        self._fill(now)
        self.tokens -= amount
        return self.wait_seconds()

    def spend_late(self, amount: float, now: float) -> float:
        """Take what was used at some time since it was last asked, in favour of whoever did: as if it had
        been then. So whoever was idle may get one burst more than if it had asked each time."""
        if self.rate == UNLIMITED:
            return 0.0
        self.tokens -= amount
        self._fill(now)
        return self.wait_seconds()

    def wait_seconds(self) -> float:
        """How long until there is no debt, as of the last time it was asked."""
        if self.tokens >= 0:
            return 0.0
        return -self.tokens / self.rate if self.rate > 0 else UNLIMITED

    def retune(self, rate: float, now: float) -> None:
        """A new limit from now on. What was saved up at the old rate beyond the new burst is lost;
        debt stays debt, and is paid at the new rate."""
        self._fill(now)
        if self.rate == UNLIMITED and rate != UNLIMITED:
            self.tokens = 0.0
        self.rate = rate
        if rate != UNLIMITED:
            self.tokens = min(self.tokens, rate * self.burst_seconds)

    def _fill(self, now: float) -> None:
        if now > self.filled_at and self.rate != UNLIMITED:
            self.tokens = min(
                self.rate * self.burst_seconds, self.tokens + (now - self.filled_at) * self.rate
            )
        self.filled_at = max(self.filled_at, now)


def throttle_ms(wait_seconds: float, *, at_most: float = UNLIMITED) -> int:
    """As Kafka tells it, in whole milliseconds, rounded up: a client must not come too early."""
    capped = min(wait_seconds, at_most)
    whole = int(capped * 1000)
    return whole if whole >= capped * 1000 else whole + 1
