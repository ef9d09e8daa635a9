"""When is a broker under pressure? When what is asked of it waits, again and again.

A sample a second: how many requests are in flight towards it, and how long the oldest has waited. One
that is over the threshold means nothing, since a collection of garbage or a new leader makes everybody
wait once. Pressure begins after `SUSTAINED` such samples in a row and ends after as many calm ones; calm
is below half of the threshold, so that it does not flutter around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from penstock.model.events import Phase

WAIT_SECONDS: Final = 0.5  # of the oldest request: the threshold
CALM: Final = 0.5  # of the threshold
SUSTAINED: Final = 5  # samples
AGAIN_MS: Final = 10_000  # between two events of one spell


@dataclass(frozen=True, slots=True)
class Sample:
    time_ms: int
    in_flight: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class Watched:
    """One broker, of late."""

    samples: tuple[Sample, ...] = field(default=())  # the last `SUSTAINED`
    began_ms: int | None = None  # of the spell under way
    told_ms: int = 0

    @property
    def in_flight(self) -> int:
        return round(sum(one.in_flight for one in self.samples) / max(1, len(self.samples)))

    @property
    def waited_seconds(self) -> float:
        return sum(one.waited_seconds for one in self.samples) / max(1, len(self.samples))


def watch(before: Watched, sample: Sample) -> tuple[Watched, Phase | None, int]:
    """After one more sample: what is known, what is to be told, and when the spell began."""
    samples = (*before.samples, sample)[-SUSTAINED:]
    after = replace(before, samples=samples)
    full = len(samples) == SUSTAINED
    began = before.began_ms
    if began is None:
        if not (full and all(one.waited_seconds > WAIT_SECONDS for one in samples)):
            return after, None, 0
        began = samples[0].time_ms
        return replace(after, began_ms=began, told_ms=sample.time_ms), Phase.BEGAN, began
    if full and all(one.waited_seconds <= CALM * WAIT_SECONDS for one in samples):
        return replace(after, began_ms=None), Phase.ENDED, began
    if sample.time_ms - before.told_ms >= AGAIN_MS:
        return replace(after, told_ms=sample.time_ms), Phase.LASTS, began
    return after, None, 0
