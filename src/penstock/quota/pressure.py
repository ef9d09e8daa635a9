"""When a broker is under pressure: requests to it wait too long, in several samples in a row.

A single slow sample means nothing, because a garbage collection or a new leader delays every request
once. Pressure begins after `SUSTAINED` slow samples in a row and ends after as many calm ones. Calm is
below half of the threshold, so that the state does not flap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from penstock.model.events import Phase

WAIT_SECONDS: Final = 0.5  # threshold for the oldest request
CALM_RATIO: Final = 0.5  # of the threshold
SUSTAINED: Final = 5  # samples
HANDLERS_BUSY_MIN: Final = 0.7  # of the time; below that a broker has handlers to spare
QUEUED_MIN: Final = 8  # requests: as many as a broker has handlers by default
REPORT_INTERVAL_MS: Final = 10_000  # between two events while pressure lasts


@dataclass(frozen=True, slots=True)
class Sample:
    time_ms: int
    in_flight: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class PressureState:
    """The recent samples of one broker, and whether it is under pressure."""

    samples: tuple[Sample, ...] = ()  # the last `SUSTAINED`
    began_ms: int | None = None  # start of the current pressure; none: no pressure
    reported_ms: int = 0

    @property
    def in_flight(self) -> int:
        return round(sum(one.in_flight for one in self.samples) / max(1, len(self.samples)))

    @property
    def waited_seconds(self) -> float:
        return sum(one.waited_seconds for one in self.samples) / max(1, len(self.samples))


def is_overloaded(handlers_busy: float | None, queued: float) -> bool:
    """Whether a broker's own metrics confirm that it has more requests than it can handle."""
    return (handlers_busy is not None and handlers_busy >= HANDLERS_BUSY_MIN) or queued >= QUEUED_MIN


def observe(before: PressureState, sample: Sample) -> tuple[PressureState, Phase | None, int]:
    """The next state, the event to report if any, and when the pressure began."""
    samples = (*before.samples, sample)[-SUSTAINED:]
    after = replace(before, samples=samples)
    full = len(samples) == SUSTAINED
    began = before.began_ms
    if began is None:
        if not full or any(one.waited_seconds <= WAIT_SECONDS for one in samples):
            return after, None, 0
        began = samples[0].time_ms
        return replace(after, began_ms=began, reported_ms=sample.time_ms), Phase.BEGAN, began
    if full and all(one.waited_seconds <= CALM_RATIO * WAIT_SECONDS for one in samples):
        return replace(after, began_ms=None), Phase.ENDED, began
    if sample.time_ms - before.reported_ms >= REPORT_INTERVAL_MS:
        return replace(after, reported_ms=sample.time_ms), Phase.LASTS, began
    return after, None, 0
