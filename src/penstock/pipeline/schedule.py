"""When jobs run: every so often, counted from the end of the run before, failures with patience.

One at a time, so that no job ever overlaps itself and none takes another's cores. A run that fails
is told and tried again later; the other jobs keep their rhythm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.pipeline.job import Job

RETRY_SECONDS: Final = 60.0
RETRY_SECONDS_MAX: Final = 3600.0
WAIT_SECONDS_MAX: Final = 1.0  # between two looks at whether to stop


@dataclass(frozen=True, slots=True)
class Past:
    """How a job's last runs went."""

    ended: float  # seconds since 1970
    failures: int = 0  # in a row


@dataclass(frozen=True, slots=True)
class Due:
    job: str
    at: float


def plan(jobs: Iterable[Job], past: Mapping[str, Past], now: float) -> list[Due]:
    """Every job that has a rhythm, by when it is due; one that never ran is due now."""
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
            wait = min(
                RETRY_SECONDS * 2 ** min(last.failures - 1, 10), RETRY_SECONDS_MAX, max(wait, RETRY_SECONDS)
            )
        due.append(Due(job.name, last.ended + wait))
    return sorted(due, key=lambda each: (each.at, each.job))


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def wait(self, seconds: float) -> None: ...


def keep_time(
    jobs: Iterable[Job],
    run: Callable[[Job], None],
    *,
    clock: Clock,
    stopped: Callable[[], bool],
    failed: Callable[[Job, PenstockError], None],
    once: bool = False,
) -> bool:
    """Runs what is due until stopped, or each job once. Returns whether every run went well."""
    known = {job.name: job for job in jobs}
    past: dict[str, Past] = {}
    well = True
    while not stopped():
        due = [each for each in plan(known.values(), past, clock.now()) if not (once and each.job in past)]
        if not due:
            break
        job, early = known[due[0].job], due[0].at - clock.now()
        if early > 0:
            clock.wait(min(WAIT_SECONDS_MAX, early))
            continue
        try:
            run(job)
            past[job.name] = Past(clock.now())
        except PenstockError as error:
            well = False
            before = past.get(job.name)
            past[job.name] = Past(clock.now(), (before.failures if before else 0) + 1)
            failed(job, error)
    return well
