"""Decides when jobs run: at an interval after the previous run ended, with back-off after failures.

Jobs run one at a time, so a job never overlaps itself and none competes for another's cores. A failed run
is reported and retried later; the other jobs keep their intervals.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from penstock.model.backoff import Backoff
from penstock.model.errors import PenstockError
from penstock.model.errors.pipeline import JobDefect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.pipeline.job import Job

BACKOFF: Final = Backoff(60.0, 3600.0)
WAIT_SECONDS_MAX: Final = 1.0  # between two checks for a stop
LISTED_SECONDS: Final = 60.0  # after which topics are matched with patterns again

_log = logging.getLogger("penstock.pipeline")


@dataclass(frozen=True, slots=True)
class PastRuns:
    """The outcome of a job's last runs."""

    ended: float  # by the schedule's clock
    failures: int = 0  # in a row


@dataclass(frozen=True, slots=True)
class Due:
    job: str
    at: float


def plan(jobs: Iterable[Job], past: Mapping[str, PastRuns], now: float) -> list[Due]:
    """The jobs with an interval, ordered by when they are due. A job that never ran is due now."""
    due = []
    for job in jobs:
        if job.every_seconds is None:
            continue
        last = past.get(job.name)
        if last is None:
            due.append(Due(job.name, now))
            continue
        wait = float(job.every_seconds)
        if last.failures:
            wait = min(BACKOFF.seconds(last.failures), max(wait, BACKOFF.first_seconds))
        due.append(Due(job.name, last.ended + wait))
    return sorted(due, key=lambda each: (each.at, each.job))


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since any moment. They never go back, as a clock that is set does."""
        ...

    def wait(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class ListedJobs:
    """Jobs that are listed again every minute: topics come and go."""

    def __init__(self, list_jobs: Callable[[], Iterable[Job]], clock: Clock) -> None:
        self._list_jobs = list_jobs
        self._clock = clock
        self._jobs: list[Job] = []
        self._listed: float | None = None

    def __iter__(self) -> Iterator[Job]:
        now = self._clock.now()
        if self._listed is None or now - self._listed >= LISTED_SECONDS:
            # Without the cluster, the jobs of before: they report it.
            with contextlib.suppress(PenstockError) if self._jobs else contextlib.nullcontext():
                self._jobs = list(self._list_jobs())
            self._listed = now
        return iter(self._jobs)


def run_schedule(
    jobs: Iterable[Job],
    run: Callable[[Job], None],
    *,
    clock: Clock,
    stopped: Callable[[], bool],
    failed: Callable[[Job, PenstockError], None],
    once: bool = False,
) -> bool:
    """Runs due jobs until stopped, or each job once. Returns whether every run succeeded."""
    past: dict[str, PastRuns] = {}
    succeeded = True
    while not stopped():
        by_name = {job.name: job for job in jobs}
        due = [each for each in plan(by_name.values(), past, clock.now()) if not (once and each.job in past)]
        if not due:
            break
        job, early = by_name[due[0].job], due[0].at - clock.now()
        if early > 0:
            clock.wait(min(WAIT_SECONDS_MAX, early))
            continue
        try:
            run(job)
            past[job.name] = PastRuns(clock.now())
        except Exception as error:  # noqa: BLE001 - belongs to this job, not to the schedule
            succeeded = False
            previous = past.get(job.name)
            past[job.name] = PastRuns(clock.now(), (previous.failures if previous else 0) + 1)
            failed(job, _as_catalogued(job, error))
    return succeeded


def _as_catalogued(job: Job, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    _log.error("%s raised", job.name, exc_info=error)
    return JobDefect(job=job.name, reason=f"{type(error).__name__}: {error}")
