"""How long to wait after failures in a row: exponential, capped, and spread by a chance that is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_EXPONENT_MAX: Final = 64  # every cap is reached long before


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow from `first_seconds` by `factor` to `most_seconds`, each varied by ± `jitter`."""

    first_seconds: float = 0.1
    most_seconds: float = 30.0
    factor: float = 2.0
    jitter: float = 0.2

    def seconds(self, failures: int, chance: float = 0.5) -> float:
        """The pause after that many failures in a row, at least one.

        `chance` is between 0 and 1, and 0.5 adds no jitter.
        """
        pause = min(self.most_seconds, self.first_seconds * self.factor ** min(failures - 1, _EXPONENT_MAX))
        return float(pause * (1 + self.jitter * (2 * chance - 1)))
