"""What becomes of a record whose handler failed, and how long to wait. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow from `first_seconds` by `factor` to `most_seconds`, each varied by ± `jitter`."""

    first_seconds: float = 0.1
    most_seconds: float = 30.0
    factor: float = 2.0
    jitter: float = 0.2

    def seconds(self, failures: int, random: Random) -> float:
        """The pause after that many failures in a row, at least one."""
        exponent = min(failures - 1, 64)
        pause = min(self.most_seconds, self.first_seconds * self.factor**exponent)
        return float(pause * (1 + self.jitter * (2 * random.random() - 1)))


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a record is tried, by the type of exception; the most specific type counts.

        Retry(attempts=5, by_type={ValueError: Retry(attempts=1), ConnectionError: Retry(attempts=None)})

    `attempts` counts the first run too; None means for ever.
    """

    attempts: int | None = 10
    backoff: Backoff = Backoff()
    by_type: Mapping[type[BaseException], Retry] = field(default_factory=dict)

    def pause_seconds(self, cause: BaseException, attempt: int, random: Random) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        for kind in type(cause).__mro__:
            if kind in self.by_type:
                return self.by_type[kind].pause_seconds(cause, attempt, random)
        if self.attempts is not None and attempt >= self.attempts:
            return None
        return self.backoff.seconds(attempt, random)


NEVER = Retry(attempts=1)
