"""Retry policies: whether a failed record runs again, after which pause, and where it waits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random


@dataclass(frozen=True, slots=True)
class DelayedRetry:
    """A topic in which failed records wait before they run again, so that they block no other record."""

    topic: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a record is tried, by exception type; the most specific type applies.

        Retry(attempts=5, by_type={ValueError: Retry(attempts=1), ConnectionError: Retry(attempts=None)})

    `attempts` includes the first run; None means without limit.
    """

    attempts: int | None = 10
    backoff: Backoff = field(default_factory=Backoff)
    by_type: Mapping[type[BaseException], Retry] = field(default_factory=dict)

    def pause_seconds(self, cause: BaseException, attempt: int, random: Random) -> float | None:
        """The pause before the next attempt; None if there is none."""
        for kind in type(cause).__mro__:
            if kind in self.by_type:
                return self.by_type[kind].pause_seconds(cause, attempt, random)
        if self.attempts is not None and attempt >= self.attempts:
            return None
        return self.backoff.seconds(attempt, random.random())
